"""What a run would do: stages, time, memory and disk, before any weight is changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fretsaw.core.units import format_bytes, format_seconds
from fretsaw.reports.shown import Shown
from fretsaw.train.found import FoundText

HOW = (
    "times were measured just now on blocks with random weights of the model's sizes; nothing was "
    "written"
)


@dataclass(frozen=True)
class EstimateLine:
    """One stage of one round.

    Attributes:
        round: Number of the round, from 1.
        stage: Its word.
        state: ``to do``, ``done``, ``goes on``, or ``again``: what is there would be put aside.
        why: Of ``again``.
        what: What it goes through, in words.
        seconds: Estimated time; 0 if it is done.
        peak_bytes: Estimated memory at the peak.
        disk_bytes: What it leaves on the disk.
    """

    round: int
    stage: str
    state: str
    why: str
    what: str
    seconds: float
    peak_bytes: int
    disk_bytes: int


@dataclass(frozen=True, repr=False)
class Estimate(Shown):
    """All stages, and what the machine has.

    Attributes:
        lines: In order.
        check_s: Seconds that the check took just now; a run begins with the same.
        report_s: Seconds of tables and pages at the end.
        memory_bytes: Of the device.
        peak_disk_bytes: With the checkpoints that training keeps while it runs.
        text: What was found of each split.
        warnings: Of the check.
    """

    lines: tuple[EstimateLine, ...]
    check_s: float
    report_s: float
    memory_bytes: int
    peak_disk_bytes: int
    text: tuple[FoundText, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of all that is to do."""
        return self.check_s + sum(line.seconds for line in self.lines) + self.report_s

    @property
    def peak(self) -> EstimateLine:
        """The stage that needs the most memory of those that are to do, else of all."""
        to_do = [line for line in self.lines if line.state != "done"]
        return max(to_do or self.lines, key=lambda line: line.peak_bytes)

    @property
    def fits(self) -> bool:
        """Whether the device has memory for it."""
        return self.peak.peak_bytes <= self.memory_bytes

    def memory_words(self) -> str:
        """How much memory is needed and where, against what there is."""
        peak = self.peak
        return (
            f"{format_bytes(peak.peak_bytes)} of memory at the peak ({peak.stage} of round "
            f"{peak.round}), of {format_bytes(self.memory_bytes)}"
        )

    def brief(self) -> str:
        """Time, memory and disk."""
        disk = format_bytes(self.peak_disk_bytes)
        return f"{format_seconds(self.seconds)}, {self.memory_words()}, {disk} of disk"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {
            "seconds": self.seconds,
            "peak_bytes": self.peak.peak_bytes,
            "fits": self.fits,
        }

    def print(self, console: Console) -> None:
        """See `print_estimate`."""
        print_estimate(self, console)


def print_estimate(estimate: Estimate, console: Console) -> None:
    """The estimate as a table, what was found, and what does not fit."""
    console.print(_table(estimate))
    aside = [line for line in estimate.lines if line.state == "again"]
    lines = [f"again: round {line.round} {line.stage}: {line.why}" for line in aside]
    lines += [f"text of {text}" for text in estimate.text]
    disk = format_bytes(estimate.peak_disk_bytes)
    lines += [f"{estimate.memory_words()}; {disk} of disk at the peak", HOW]
    if not estimate.fits:
        lines.append(
            "warning: that is more memory than there is: lower compute.batch_sequences, "
            "distill.batch_size or distill.sequence_length, or take compute.dtype bfloat16"
        )
    for text in lines:
        console.print(text, markup=False, soft_wrap=True)


def _table(estimate: Estimate) -> Table:
    table = Table()
    for heading in ("round", "stage", "state", "what", "time", "memory", "disk"):
        is_text = heading in ("stage", "state", "what")
        table.add_column(heading, justify="left" if is_text else "right")
    table.add_row("", "check", "to do", "folders, text, budgets", format_seconds(estimate.check_s))
    for line in estimate.lines:
        table.add_row(
            str(line.round),
            line.stage,
            line.state,
            line.what,
            format_seconds(line.seconds) if line.seconds else "",
            format_bytes(line.peak_bytes),
            format_bytes(line.disk_bytes) if line.disk_bytes else "",
        )
    table.add_row("", "report", "to do", "figures and pages", format_seconds(estimate.report_s))
    left = sum(line.disk_bytes for line in estimate.lines)
    table.add_section()
    peak = format_bytes(estimate.peak.peak_bytes)
    table.add_row("", "total", "", "", format_seconds(estimate.seconds), peak, format_bytes(left))
    return table
