"""How long a child takes to write, and calibration to see it, on a hybrid of 88 blocks (537M).

Each arm runs in a process of its own, in turn, so often as asked; medians count. The copy reads and
writes the same bytes with plain system calls and an fsync, as the child's writer does.

    python benchmarks/build.py --work NEW [--before OTHER_CHECKOUT/src] [--repeats 3]

`--before` times an older source tree in the same run. Writes benchmarks/results/build.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATTERN = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
"""Nemotron-3-Super's 88 blocks."""

SEQUENCES, TOKENS = 4, 128


def config() -> dict[str, Any]:
    sys.path.insert(0, str(HERE.parent))
    from benchmarks.eighth import WORDS, parent  # noqa: PLC0415

    return parent() | {
        "layers_block_type": [WORDS[letter] for letter in PATTERN],
        "num_hidden_layers": len(PATTERN),
        "n_groups": 8,
        "n_routed_experts": 128,
        "moe_intermediate_size": 192,
        "moe_latent_size": 192,
        "moe_shared_expert_intermediate_size": 512,
    }


def make_parent(folder: Path) -> None:
    from fretsaw.checkpoint.random_weights import write_random_checkpoint  # noqa: PLC0415

    folder.mkdir()
    source = folder.with_suffix(".json")
    source.write_text(json.dumps(config()))
    write_random_checkpoint(source, folder=folder)


def copy(parent: Path, work: Path) -> dict[str, float]:
    """Every byte of the weights read and written again."""
    started = time.perf_counter()
    for file in parent.glob("*.safetensors"):
        with file.open("rb") as source, (work / "copy").open("wb") as target:
            while part := source.read(2**24):
                target.write(part)
            target.flush()
            os.fsync(target.fileno())
    seconds = time.perf_counter() - started
    (work / "copy").unlink()
    return {"copy": seconds}


def build(parent: Path, work: Path) -> dict[str, float]:
    """The child of a choice that changes nothing: every tensor is read, put in order, written."""
    import torch  # noqa: PLC0415

    from fretsaw.checkpoint.child import write_child  # noqa: PLC0415
    from fretsaw.checkpoint.reader import Checkpoint  # noqa: PLC0415
    from fretsaw.core.variant import Choice, Variant  # noqa: PLC0415

    torch.set_num_threads(1)
    source = Checkpoint(parent)
    same = Choice(tuple(map(Variant, range(source.shape.num_blocks))), score=0.0, costs={})
    orders = {
        i: {"state": torch.arange(block.sizes["state"]).flip(0).repeat(block.sizes["group"], 1)}
        for i, block in enumerate(source.shape.blocks)
        if block.mixer == "mamba"
    }
    child = work / "child"
    shutil.rmtree(child, ignore_errors=True)
    child.mkdir()
    started = time.perf_counter()
    write_child(
        source,
        same,
        folder=child,
        orders=orders,
        repaired=lambda *_: None,
        shard_bytes=5 * 10**9,
    )
    return {"build": time.perf_counter() - started}


def calibrate(parent: Path, _: Path) -> dict[str, float]:
    """One forward pass of the text, then the same text with the sums of every unit."""
    import torch  # noqa: PLC0415

    from fretsaw.checkpoint.reader import Checkpoint  # noqa: PLC0415
    from fretsaw.runtime.blocks import BlockView  # noqa: PLC0415
    from fretsaw.runtime.load import load_model  # noqa: PLC0415
    from fretsaw.runtime.statistics import collect_statistics  # noqa: PLC0415

    torch.set_num_threads(1)
    source = Checkpoint(parent)
    view = BlockView(load_model(source, dtype=torch.float32, device="cpu"), source.shape)
    ids = torch.randint(0, 300, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        view.run(view.embed(ids), start=0)
        started = time.perf_counter()
        view.run(view.embed(ids), start=0)
        forward = time.perf_counter() - started
    started = time.perf_counter()
    collect_statistics(view, [ids])
    return {"forward": forward, "calibrate": time.perf_counter() - started}


ARMS = {"copy": copy, "build": build, "calibrate": calibrate}


def timed(arm: str, *, work: Path, src: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--work", str(work), "--arm", arm]
    environment = os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--arm", choices=ARMS)
    options = parser.parse_args()
    parent = options.work / "parent"
    if options.arm:
        print(json.dumps(ARMS[options.arm](parent, options.work)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    if not parent.is_dir():
        make_parent(parent)
    trees = {"now": HERE.parent / "src"} | ({"before": options.before} if options.before else {})
    seconds: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for arm in ARMS:
            for name, src in trees.items() if arm != "copy" else [("now", trees["now"])]:
                for what, found in timed(arm, work=options.work, src=src.absolute()).items():
                    key = what if what in ("copy", "forward") else f"{what}, {name}"
                    seconds.setdefault(key, []).append(found)
                    print(f"{key}: {found:.1f} s", flush=True)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "load_average": os.getloadavg(),
        "bytes": sum(f.stat().st_size for f in parent.glob("*.safetensors")),
        "tokens": SEQUENCES * TOKENS,
        "seconds": seconds,
        "medians": medians,
        "build_over_copy": medians["build, now"] / medians["copy"],
        "calibrate_over_forward": medians["calibrate, now"] / medians["forward"],
    }
    (HERE / "results" / "build.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("medians", "build_over_copy")}, indent=1))


if __name__ == "__main__":
    main()
