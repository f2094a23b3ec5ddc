"""What was lost and what came back: parent, and each round before and after healing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table

from fretsaw.core.units import format_bytes, format_count
from fretsaw.reports.quantized import QUANTIZED_COLUMNS, Quantized, quantized_rows
from fretsaw.reports.shown import Shown
from fretsaw.train.found import FoundText


@dataclass(frozen=True)
class SummaryLine:
    """One model of the run.

    Attributes:
        name: ``parent``, ``round 1 cut``, ``round 1 healed``, …
        costs: Whole-model costs by name.
        loss: Held-out next-token loss, nats.
        kl: Held-out KL(parent || model) per token, nats.
        agreement: Share of tokens whose greedy prediction is the parent's.
        seconds: Time that led from the line before to this one.
        tokens: Tokens of healing, 0 elsewhere.
        kept_tokens: Tokens of healing behind the weights that were kept, 0 for those of the cut;
            None where nothing was healed.
        status: Of the search that chose this cut: ``optimal``, ``feasible``; None elsewhere.
        gap: How far above the least possible score it may be, as a share.
        note: What to know about this line, in a few words.
        notes: What explains its figures, a sentence each.
    """

    name: str
    costs: Mapping[str, float]
    loss: float
    kl: float
    agreement: float
    seconds: float
    tokens: int = 0
    kept_tokens: int | None = None
    status: str | None = None
    gap: float = 0.0
    note: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServingLine:
    """A serving demand of the last round, what was predicted of its child, and what was measured.

    Attributes:
        demand: What was asked.
        asked: Wanted speed-up; None if something else was asked for.
        predicted: Speed-up over the original parent, from the prices of its blocks.
        measured: The same, both models timed in turn; None where this machine was not asked.
        server_tokens_per_s: Of the child before healing, measured.
        parent_server_tokens_per_s: Of the original parent, measured.
    """

    demand: str
    asked: float | None
    predicted: float | None
    measured: float | None = None
    server_tokens_per_s: float | None = None
    parent_server_tokens_per_s: float | None = None

    def told(self) -> str:
        """In words: ``asked 1.3x, predicted 1.31x, measured 1.28x (speedup 1.3, ...)``."""
        numbers = {"asked": self.asked, "predicted": self.predicted, "measured": self.measured}
        words = ", ".join(f"{name} {n:.3g}x" for name, n in numbers.items() if n is not None)
        return f"{words} ({self.demand})" if words else self.demand


@dataclass(frozen=True)
class RunWarning:
    """A warning of a run: ``check`` or ``round 1 score``, and what was said."""

    place: str
    text: str


@dataclass(frozen=True, repr=False)
class Summary(Shown):
    """A finished run in figures.

    Attributes:
        lines: Parent first, last child last.
        child: Folder of the last healed child.
        run: Folder of the run.
        peaks: Largest resident memory of a process, bytes, by stage: ``check``, ``round 1 score``.
        serving: Demands of the last round.
        warnings: All that were given, those of stages that were done before included.
        text: What was found of each split of the text.
        quantized: The last child in fewer bits, where that was asked for.
    """

    lines: tuple[SummaryLine, ...]
    child: Path
    run: Path
    peaks: Mapping[str, int]
    serving: tuple[ServingLine, ...] = ()
    warnings: tuple[RunWarning, ...] = ()
    text: tuple[FoundText, ...] = ()
    quantized: tuple[Quantized, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Largest resident memory of all stages."""
        return max(self.peaks.values(), default=0)

    def brief(self) -> str:
        """What the child is, and where it lies."""
        last = self.lines[-1]
        params = format_count(last.costs["params"])
        return f"{self.child}: {params} parameters, KL {last.kl:.4f}, {len(self.lines)} models"

    def print(self, console: Console) -> None:
        """See `print_summary`."""
        print_summary(self, console)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        lines = [
            vars(line) | {"costs": dict(line.costs), "notes": list(line.notes)}
            for line in self.lines
        ]
        return {
            "child": str(self.child),
            "run": str(self.run),
            "peak_bytes": self.peak_bytes,
            "peak_bytes_by_stage": dict(self.peaks),
            "models": lines,
            "serving": [vars(line) for line in self.serving],
            "warnings": [vars(warning) for warning in self.warnings],
            "quantized": [one.to_json() for one in self.quantized],
            "text": [text.to_json() for text in self.text],
        }


COLUMNS = ("model", "params", "active", "BF16", "loss", "KL", "agree", "tokens", "time")
WIDE = 120
"""Columns of a terminal that has room for the notes on each line; else they stand below."""


def print_summary(summary: Summary, console: Console) -> None:
    """The table at the end of a run, what the child is of its parent, and where it lies."""
    has_room = console.width >= WIDE
    console.print(_table(summary, has_notes=has_room))
    console.print("loss; KL to the parent; agree: same greedy token. Nats per held-out token.")
    console.print("Of each healing the weights with the least KL are kept, the cut's included.")
    for line in summary.lines:
        for note in line.notes if has_room or not line.note else (line.note, *line.notes):
            console.print(f"{line.name}: {note}", soft_wrap=True)
    if summary.quantized:
        console.print(_quantized(summary.quantized))
        console.print("Quantised: weights, inputs and KV cache rounded as a GPU would.")
    parent, child = summary.lines[0].costs, summary.lines[-1].costs
    shares = {name: child[name] / parent[name] for name in SHARES if parent.get(name)}
    words = ", ".join(f"{SHARES[name]} {share:.1%}" for name, share in shares.items())
    console.print(f"child, of the parent: {words}", soft_wrap=True)
    for one in summary.serving:
        console.print(f"served: {one.told()}", soft_wrap=True)
    console.print(f"child: {summary.child}", soft_wrap=True)
    for small in summary.quantized:
        console.print(f"child in {small.precision}: {small.folder}", soft_wrap=True)
    console.print(f"report: {summary.run / 'report' / 'index.html'}", soft_wrap=True)
    if summary.peak_bytes:
        place = max(summary.peaks, key=summary.peaks.__getitem__)
        console.print(f"peak memory: {format_bytes(summary.peak_bytes)} ({place})")
    for warning in summary.warnings:
        console.print(f"warning, {warning.place}: {warning.text}", soft_wrap=True, markup=False)


def _table(summary: Summary, *, has_notes: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for column in (*COLUMNS, *(("",) if has_notes else ())):
        justify: JustifyMethod = "left" if column in ("model", "") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for line in summary.lines:
        table.add_row(
            line.name,
            format_count(line.costs["params"]),
            format_count(line.costs["active_params"]),
            format_bytes(line.costs["bytes_bf16"]),
            f"{line.loss:.4f}",
            f"{line.kl:.4f}",
            f"{line.agreement:.1%}",
            format_count(line.tokens) if line.tokens else "",
            f"{line.seconds:.0f} s" if line.seconds else "",
            *((line.note,) if has_notes else ()),
        )
    return table


def _quantized(several: tuple[Quantized, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for column in QUANTIZED_COLUMNS:
        justify: JustifyMethod = "left" if column == "quantised" else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for row in quantized_rows(several):
        table.add_row(*row)
    return table


SHARES = {
    "trunk_params": "trunk",
    "moe_params": "routed experts",
    "active_routed_params": "active routed capacity",
    "state_bytes": "Mamba state",
}
