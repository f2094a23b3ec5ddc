"""Ablation of closed-form repair: replace-one KL on held-out text, by kind of cut and of repair.

    python benchmarks/repair.py CHECKPOINT TEXT [--out benchmarks/results/repair.json]

CHECKPOINT is a folder in Hugging Face layout; TEXT a folder with calibration.jsonl and
validation.jsonl, one {"text": ...} a line. Units are ranked and repairs are fitted on calibration
text; every figure is measured on validation text, against the checkpoint's own output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.shape import Block
from fretsaw.core.variant import Variant
from fretsaw.runtime.blocks import BlockView, order_model, run_block
from fretsaw.runtime.load import load_model
from fretsaw.runtime.repair import Repairer, RepairKind, RepairSettings
from fretsaw.runtime.replace import replace_one
from fretsaw.runtime.statistics import collect_statistics, rank_units
from fretsaw.solver.divergence import Divergence, reference_of
from fretsaw.train.data import load_split
from fretsaw.train.packing import load_tokenizer, pack
from fretsaw.train.splits import Split

CUTS: dict[str, dict[str, dict[str, float]]] = {
    "width 3/4": {"moe": {"ffn": 0.75}},
    "width 1/2": {"moe": {"ffn": 0.5}},
    "width 1/4": {"moe": {"ffn": 0.25}},
    "top-k 1/2": {"moe": {"top_k": 0.5}},
    "width 1/2, top-k 1/2": {"moe": {"ffn": 0.5, "top_k": 0.5}},
    "state 3/4": {"mamba": {"state": 0.75}},
    "state 1/2": {"mamba": {"state": 0.5}},
}
"""Cut -> mixer -> dimension or setting -> fraction kept."""

CHILDREN: dict[str, dict[str, dict[str, float]]] = {
    "width 3/4, state 3/4": {"moe": {"ffn": 0.75}, "mamba": {"state": 0.75}},
    "width 5/8, state 3/4": {"moe": {"ffn": 0.625}, "mamba": {"state": 0.75}},
    "width 5/8, top-k 1/2, state 3/4": {
        "moe": {"ffn": 0.625, "top_k": 0.5},
        "mamba": {"state": 0.75},
    },
}
"""Whole children with uniform cuts, after the three rounds of arXiv 2607.04371, section 2.3."""

DEFAULT_KINDS = ["none", "gain", "experts", "output", "both", "joint"]
MODES = ["none:0", "both:0.3", "joint:0.3"]


Library = tuple[dict[int, list[Variant]], dict[tuple[int, str], str]]
"""Block -> variants, and (block, key) -> cut."""


@dataclass(frozen=True)
class Result:
    """Replace-one KL of one block, cut and repair."""

    block: int
    cut: str
    repair: str
    ridge: float
    kl: float


@dataclass(frozen=True)
class Child:
    """A whole child under one mode of repair: KL to the parent and loss, nats."""

    cut: str
    mode: str
    kl: float
    loss: float


class Repairs:
    """Repairs of the block being scored, following the walk through the network."""

    def __init__(self, view: BlockView, ids: Tensor, settings: RepairSettings) -> None:
        self._view, self._settings = view, settings
        self._hidden = view.embed(ids)
        self._at = 0
        self._repairer: Repairer | None = None
        self.seconds = 0.0

    def enter(self, block: int) -> None:
        """Go to the input of `block`."""
        while self._at < block:
            module = self._view.block(self._at)
            batches = torch.split(self._hidden, self._settings.batch_sequences)
            self._hidden = torch.cat([run_block(module, h) for h in batches])
            self._at += 1
        self._repairer = Repairer(
            self._view, block, fit_hidden=self._hidden, settings=self._settings
        )

    def weights(self, block: int, variant: Variant) -> dict[str, Tensor]:
        """Repaired weights of a variant."""
        assert self._repairer is not None
        started = time.monotonic()
        replaced = self._repairer.replaced(variant.apply(self._view.shape.blocks[block]))
        self.seconds += time.monotonic() - started
        return replaced


def cut_block(block: Block, fractions: dict[str, float], *, granularity: int) -> dict[str, int]:
    """Sizes and settings of a cut, widths rounded to the granularity."""
    values = {}
    for dim, fraction in fractions.items():
        step = 1 if dim == "top_k" else granularity
        values[dim] = max(step, round(block.values[dim] * fraction / step) * step)
    return values


def library(view: BlockView, *, granularity: int, stride: int) -> Library:
    """Variants of every `stride`-th block of each kind, and the name of each one's cut."""
    names: dict[tuple[int, str], str] = {}
    variants: dict[int, list[Variant]] = {}
    for cut, by_mixer in CUTS.items():
        for mixer, fractions in by_mixer.items():
            blocks = [i for i, b in enumerate(view.shape.blocks) if b.mixer == mixer]
            for index in blocks[::stride]:
                values = cut_block(view.shape.blocks[index], fractions, granularity=granularity)
                variant = Variant(index, values)
                names[index, variant.key] = cut
                variants.setdefault(index, []).append(variant)
    return variants, names


@torch.no_grad()
def measure(
    view: BlockView, settings: RepairSettings, *, fit: Tensor, judge: Tensor, cuts: Library
) -> Iterator[Result]:
    """Replace-one KL of every cut of every block under one kind of repair."""
    variants, names = cuts
    repairs = Repairs(view, fit, settings)
    for scored in replace_one(
        view,
        variants,
        ids=judge,
        batch_sequences=settings.batch_sequences,
        variants_per_pass=4,
        repair=repairs.weights,
        enter_block=repairs.enter,
    ):
        place = scored.variant.block
        cut = names[place, scored.variant.key]
        yield Result(place, cut, settings.kind, settings.ridge, scored.kl)


def print_table(results: list[Result], console: Console) -> None:
    """Mean KL per cut and repair, and its ratio to no repair per block (geometric mean)."""
    columns = list(dict.fromkeys((r.repair, r.ridge) for r in results))
    table = Table(title="replace-one KL, mean over blocks, nats (geometric-mean ratio to none)")
    table.add_column("cut")
    for repair, ridge in columns:
        table.add_column(repair if repair in ("none", "gain") else f"{repair} {ridge:g}")
    plain = {(r.block, r.cut): r.kl for r in results if r.repair == "none"}
    plain = plain or {(r.block, r.cut): r.kl for r in results}
    for cut in CUTS:
        row = [cut]
        for column in columns:
            found = [r for r in results if (r.repair, r.ridge) == column and r.cut == cut]
            mean = statistics.fmean(r.kl for r in found)
            ratios = [max(r.kl, 1e-12) / max(plain[r.block, r.cut], 1e-12) for r in found]
            row.append(f"{mean:.5f} ({statistics.geometric_mean(ratios):.2f})")
        table.add_row(*row)
    console.print(table)


@torch.no_grad()
def assemble(
    view: BlockView, values: Mapping[str, dict[str, int]], *, fit: Tensor, mode: str
) -> list[nn.Module]:
    """The blocks of a child with the same cut in every block of a kind; mode is KIND:RIDGE."""
    kind, ridge = mode.split(":")
    settings = RepairSettings(kind=cast("RepairKind", kind), ridge=float(ridge))
    blocks: list[nn.Module] = []
    hidden = view.embed(fit)
    for index, shape in enumerate(view.shape.blocks):
        module = view.block(index)
        after = run_batches(module, hidden)
        if shape.mixer in values:
            block = shape.with_values(values[shape.mixer])
            repairer = Repairer(view, index, fit_hidden=hidden, settings=settings)
            module = view.variant(index, block=block, replaced=repairer.replaced(block))
        blocks.append(module)
        hidden = after
    return blocks


def run_batches(module: nn.Module, hidden: Tensor) -> Tensor:
    """A block on many sequences, (sequences, tokens, hidden)."""
    return torch.cat([run_block(module, h) for h in torch.split(hidden, 8)])


@torch.no_grad()
def divergence(view: BlockView, blocks: list[nn.Module], ids: Tensor) -> Divergence:
    """KL and loss of a child's blocks against the parent."""
    total = Divergence()
    for batch in torch.split(ids, 8):
        ours = theirs = view.embed(batch)
        for index, block in enumerate(blocks):
            ours, theirs = run_block(block, ours), run_block(view.block(index), theirs)
        reference = reference_of(view.final(theirs), view.head)
        total.add(reference, view.final(ours), head=view.head, ids=batch)
    return total


def assembled(
    view: BlockView, modes: list[str], *, fit: Tensor, judge: Tensor, granularity: int
) -> Iterator[Child]:
    """KL of whole children with uniform cuts, per mode of repair."""
    for cut, by_mixer in CHILDREN.items():
        values: dict[str, dict[str, int]] = {
            b.mixer: cut_block(b, by_mixer[b.mixer], granularity=granularity)
            for b in view.shape.blocks
            if b.mixer in by_mixer
        }
        for mode in modes:
            child = assemble(view, values, fit=fit, mode=mode)
            found = divergence(view, child, judge)
            yield Child(cut, mode, found.kl, found.loss)


def print_children(children: list[Child], console: Console) -> None:
    """KL of each child, by mode of repair."""
    table = Table(title="whole child, uniform cuts, KL to the parent, nats")
    table.add_column("cut")
    for mode in dict.fromkeys(c.mode for c in children):
        table.add_column(mode)
    for cut in CHILDREN:
        table.add_row(cut, *(f"{c.kl:.4f}" for c in children if c.cut == cut))
    console.print(table)


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/repair.json"))
    parser.add_argument("--kinds", nargs="+", default=DEFAULT_KINDS)
    parser.add_argument("--ridges", nargs="+", type=float, default=[0.1, 0.3])
    parser.add_argument("--sweeps", type=int, default=2)
    parser.add_argument("--fit-sequences", type=int, default=64)
    parser.add_argument("--judge-sequences", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--granularity", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1, help="every n-th block of each kind")
    parser.add_argument("--modes", nargs="*", default=MODES, help="KIND:RIDGE of whole children")
    return parser.parse_args()


def read_text(arguments: argparse.Namespace, split: Split, *, sequences: int, vocab: int) -> Tensor:
    """Packed text of a split, (sequences, tokens)."""
    return pack(
        load_split(arguments.text, split),
        load_tokenizer(arguments.checkpoint),
        num_sequences=sequences,
        sequence_length=arguments.length,
        seed=0,
        vocab_size=vocab,
    )


class Report:
    """Every figure so far, written anew after each, so that a killed run keeps what it has."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._file: Path = arguments.out
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(arguments).items()}
        self._head = {"date": time.strftime("%Y-%m-%d"), "settings": settings}
        self.results: list[Result] = []
        self.children: list[Child] = []
        self.cpu_s: dict[str, float] = {}

    def write(self) -> None:
        """Write the file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "cpu_s": self.cpu_s,
            "results": [asdict(r) for r in self.results],
            "children": [asdict(c) for c in self.children],
        }
        text = json.dumps({**self._head, **figures}, indent=1)
        self._file.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Run the ablation, print the tables, write every figure."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    checkpoint = Checkpoint(arguments.checkpoint)
    view = BlockView(load_model(checkpoint), checkpoint.shape)
    vocab = checkpoint.shape.sizes["vocab"]
    fit = read_text(arguments, "calibration", sequences=arguments.fit_sequences, vocab=vocab)
    judge = read_text(arguments, "validation", sequences=arguments.judge_sequences, vocab=vocab)
    ranking = rank_units(view, collect_statistics(view, torch.split(fit, 8)), min_tokens=32)
    order_model(view, ranking.orders)
    report, log, out = Report(arguments), Console(stderr=True), Console(width=200)
    cuts = library(view, granularity=arguments.granularity, stride=arguments.stride)
    for kind in arguments.kinds:
        for ridge in arguments.ridges if kind not in ("none", "gain") else [0.0]:
            started = time.process_time()
            settings = RepairSettings(kind=kind, ridge=ridge, sweeps=arguments.sweeps)
            report.results += measure(view, settings, fit=fit, judge=judge, cuts=cuts)
            report.cpu_s[f"{kind} {ridge:g}"] = round(time.process_time() - started, 1)
            report.write()
            log.log(f"{kind} ridge {ridge:g}: {report.cpu_s[f'{kind} {ridge:g}']} CPU s")
    print_table(report.results, out)
    granularity, modes = arguments.granularity, arguments.modes
    for child in assembled(view, modes, fit=fit, judge=judge, granularity=granularity):
        report.children.append(child)
        report.write()
        log.log(f"{child.cut}, {child.mode}: KL {child.kl:.5f}")
    print_children(report.children, out)


if __name__ == "__main__":
    main()
