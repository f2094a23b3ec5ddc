"""What replace-one scoring costs against a full forward per variant: same machine, same run.

    python benchmarks/score.py --parent recipes/demo/parent --threads 2

Times, in turn and as medians: (a) one full forward with its comparison, per variant, as a scorer
without shortcuts would do; (b) `replace_one` over all variants of a grid, one variant per pass and
several per pass, its prefix included. Random token ids: time does not depend on their values.
Writes benchmarks/results/score.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.shape import ModelShape
from fretsaw.core.variant import Variant
from fretsaw.runtime.blocks import BlockView
from fretsaw.runtime.load import load_model
from fretsaw.runtime.replace import replace_one
from fretsaw.solver.divergence import Divergence, Reference, reference_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=Path, default=Path("recipes/demo/parent"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--per-pass", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/score.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    checkpoint = Checkpoint(arguments.parent)
    view = BlockView(load_model(checkpoint), checkpoint.shape)
    vocab = checkpoint.shape.sizes["vocab"]
    ids = torch.randint(0, vocab, (arguments.sequences, arguments.length))
    grid = variants_of(checkpoint.shape)
    count = sum(map(len, grid.values()))
    with torch.no_grad():
        reference = reference_of(view.final(view.run(view.embed(ids), start=0)), view.head)

    contenders: dict[str, Callable[[], object]] = {
        "full forward": lambda: full_forward(view, ids, reference=reference),
        "prefix": lambda: prefix(view, ids),
    }
    for size in arguments.per_pass:
        contenders[f"replace-one, {size} a pass"] = lambda size=size: list(
            replace_one(
                view,
                grid,
                ids=ids,
                batch_sequences=arguments.sequences,
                variants_per_pass=size,
                repair=lambda *_: {},
                enter_block=lambda _: None,
            )
        )
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.repeats):
        for name, run in contenders.items():
            seconds[name].append(timed(run))
            print(f"{name}: {seconds[name][-1]:.3f} s", flush=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    full = medians["full forward"]
    ratios = {n: s / (count * full) for n, s in medians.items() if n.startswith("replace")}
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "variants": count,
        "tokens": ids.numel(),
        "threads": arguments.threads,
        "seconds": seconds,
        "prefix_over_full": medians["prefix"] / full,
        "per_variant_over_full": ratios,
    }
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(result, indent=1) + "\n")
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} of a full forward per variant ({count} variants)")


@torch.no_grad()
def prefix(view: BlockView, ids: torch.Tensor) -> torch.Tensor:
    """Every block once, which all variants share."""
    return view.run(view.embed(ids), start=0)


@torch.no_grad()
def full_forward(view: BlockView, ids: torch.Tensor, *, reference: Reference) -> float:
    """What a scorer without shortcuts does per variant: the whole network, then the comparison.

    The reference is given to it for nothing.
    """
    final = view.final(view.run(view.embed(ids), start=0))
    total = Divergence()
    total.add(reference, final, head=view.head, ids=ids)
    return total.kl


def variants_of(shape: ModelShape) -> dict[int, list[Variant]]:
    """The grid of the demo: five widths per MoE block, two states per Mamba block."""
    grid: dict[int, list[Variant]] = {}
    for i, block in enumerate(shape.blocks):
        if block.mixer == "moe":
            ffn = block.sizes["ffn"]
            grid[i] = [Variant(i, {"ffn": ffn * n // 6}) for n in (5, 4, 3, 2)]
        elif block.mixer == "mamba":
            grid[i] = [Variant(i, {"state": block.sizes["state"] * 3 // 4})]
    return grid


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
