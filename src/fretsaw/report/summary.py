"""What was lost and what came back: parent, and each round before and after healing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


COLUMNS = (
    "",
    "params",
    "trunk",
    "active",
    "routed",
    "state",
    "BF16",
    "loss",
    "KL to parent",
    "agree",
    "tokens",
    "time",
)


def print_summary(summary: Summary, console: Console) -> None:
    """The table at the end of a run, and where the child lies."""
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    parent = summary.lines[0].costs
    for line in summary.lines:
        costs = line.costs
        table.add_row(
            line.name,
            format_count(costs["params"]),
            f"{costs['trunk_params'] / parent['trunk_params']:.1%}",
            f"{costs['active_params'] / parent['active_params']:.1%}",
            f"{costs['active_routed_params'] / parent['active_routed_params']:.1%}",
            f"{costs['state_bytes'] / parent['state_bytes']:.0%}" if parent["state_bytes"] else "-",
            format_bytes(costs["bytes_bf16"]),
            f"{line.loss:.4f}",
            f"{line.kl:.4f}",
            f"{line.agreement:.1%}",
            format_count(line.tokens) if line.tokens else "",
            format_seconds(line.seconds) if line.seconds else "",
        )
    console.print(table)
    console.print(
        "trunk, active, routed (activated routed parameters), state: of the parent; loss and KL "
        "in nats per held-out token",
        style="dim",
    )
    console.print(f"child: {summary.child}", soft_wrap=True)
    console.print(f"report: {summary.run / 'report' / 'index.html'}", soft_wrap=True)
    console.print(f"peak memory: {format_bytes(summary.peak_bytes)}")
