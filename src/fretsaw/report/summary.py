"""What was lost and what came back: parent, and each round before and after healing."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fretsaw.core.units import format_bytes, format_count, format_seconds


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
    """

    name: str
    costs: Mapping[str, float]
    loss: float
    kl: float
    agreement: float
    seconds: float
    tokens: int = 0


@dataclass(frozen=True)
class Summary:
    """A finished run in figures.

    Attributes:
        lines: Parent first, last child last.
        child: Folder of the last healed child.
        run: Folder of the run.
        peak_bytes: Largest resident memory of the process so far.
    """

    lines: tuple[SummaryLine, ...]
    child: Path
    run: Path
    peak_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        lines = [vars(line) | {"costs": dict(line.costs)} for line in self.lines]
        return {
            "child": str(self.child),
            "run": str(self.run),
            "peak_bytes": self.peak_bytes,
            "models": lines,
        }


COLUMNS = ("model", "params", "active", "BF16", "loss", "KL", "agree", "tokens", "time")


FOOTNOTE = (
    "trunk, active, routed (activated routed parameters), state: of the parent; loss and KL in "
    "nats per held-out token"
)


def summary_cells(summary: Summary) -> list[tuple[str, ...]]:
    """The table as text, a row per model, in the order of `COLUMNS`."""
    parent = summary.lines[0].costs

    def share(line: SummaryLine, cost: str) -> str:
        return f"{line.costs[cost] / parent[cost]:.1%}" if parent[cost] else "-"

    return [
        (
            line.name,
            format_count(line.costs["params"]),
            share(line, "trunk_params"),
            share(line, "active_params"),
            share(line, "active_routed_params"),
            share(line, "state_bytes"),
            format_bytes(line.costs["bytes_bf16"]),
            f"{line.loss:.4f}",
            f"{line.kl:.4f}",
            f"{line.agreement:.1%}",
            format_count(line.tokens) if line.tokens else "",
            format_seconds(line.seconds) if line.seconds else "",
        )
        for line in summary.lines
    ]


def summary_csv(summary: Summary) -> str:
    """All figures in full, a row per model, costs as columns of their own."""
    stream = io.StringIO()
    names = ("name", "loss", "kl", "agreement", "seconds", "tokens")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*names, *summary.lines[0].costs))
    for line in summary.lines:
        writer.writerow([*(getattr(line, name) for name in names), *line.costs.values()])
    return stream.getvalue()


def print_summary(summary: Summary, console: Console) -> None:
    """The table at the end of a run, and where the child lies."""
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for cells in summary_cells(summary):
        table.add_row(*cells)
    console.print(table)
    console.print(FOOTNOTE, style="dim")
    console.print(f"child: {summary.child}", soft_wrap=True)
    console.print(f"report: {summary.run / 'report' / 'index.html'}", soft_wrap=True)
    console.print(f"peak memory: {format_bytes(summary.peak_bytes)}")
