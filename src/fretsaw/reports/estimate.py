"""What a run would do: stages, estimated minutes and disk, before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from fretsaw.core.units import format_bytes, format_count, format_seconds
from fretsaw.reports.shown import Shown
from fretsaw.train.found import FoundText


@dataclass(frozen=True)
class EstimateLine:
    """One stage of one round.

    Attributes:
        round: Number of the round, from 1.
        stage: Its word.
        what: What it goes through, in words.
        tokens: Token passes through the whole network that it amounts to.
        seconds: Estimated time.
        disk_bytes: What it leaves on the disk.
    """

    round: int
    stage: str
    what: str
    tokens: float
    seconds: float
    disk_bytes: int


@dataclass(frozen=True, repr=False)
class Estimate(Shown):
    """All stages that take time or disk, and the machine's speed that the estimate rests on.

    Attributes:
        lines: In order.
        flops_per_s: Measured matrix-multiply rate of this machine.
        peak_disk_bytes: With the checkpoints that training keeps while it runs.
        text: What was found of each split.
    """

    lines: tuple[EstimateLine, ...]
    flops_per_s: float
    peak_disk_bytes: int
    text: tuple[FoundText, ...] = ()

    def brief(self) -> str:
        """Time and disk."""
        total_s = sum(line.seconds for line in self.lines)
        disk = format_bytes(self.peak_disk_bytes)
        return f"{format_seconds(total_s)} in {len(self.lines)} stages, {disk} of disk at the peak"

    def print(self, console: Console) -> None:
        """See `print_estimate`."""
        print_estimate(self, console)


def print_estimate(estimate: Estimate, console: Console) -> None:
    """The estimate as a table."""
    table = Table()
    for heading in ("round", "stage", "what", "token passes", "time", "disk"):
        table.add_column(heading, justify="left" if heading in ("stage", "what") else "right")
    for line in estimate.lines:
        table.add_row(
            str(line.round),
            line.stage,
            line.what,
            format_count(line.tokens),
            format_seconds(line.seconds),
            format_bytes(line.disk_bytes) if line.disk_bytes else "",
        )
    total_s = sum(line.seconds for line in estimate.lines)
    left = sum(line.disk_bytes for line in estimate.lines)
    table.add_section()
    table.add_row("", "total", "", "", format_seconds(total_s), format_bytes(left))
    console.print(table)
    for text in estimate.text:
        console.print(f"text of {text}", markup=False, soft_wrap=True)
    console.print(
        f"estimated from {estimate.flops_per_s / 1e9:.0f} GFLOP/s, measured just now in a matrix "
        f"product; {format_bytes(estimate.peak_disk_bytes)} of disk at the peak; nothing was "
        "written"
    )
