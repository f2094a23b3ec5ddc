"""Progress and words on stderr: bars with an ETA in a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LOG_EVERY_S = 10.0


class Advance(Protocol):
    """Says that `done` of the total are done, with a few words on how it goes."""

    def __call__(self, done: int, text: str = "") -> None:
        """Report progress."""


@dataclass(frozen=True)
class Reporter:
    """Where a run's words go; `is_quiet` keeps warnings only."""

    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    is_quiet: bool = False
    collections: list[list[str]] = field(default_factory=list, repr=False, compare=False)
    """Lists that warnings are added to at present: see `collect`."""

    def say(self, text: str) -> None:
        """A plain line."""
        if not self.is_quiet:
            self._print(text, "dim")

    def warn(self, text: str) -> None:
        """A line that should not be missed: printed, and kept by whoever collects."""
        for collection in self.collections:
            collection.append(text)
        self._print(f"warning: {text}", "yellow")

    @contextmanager
    def collect(self) -> Iterator[list[str]]:
        """The warnings given while the context is open, in order."""
        collection: list[str] = []
        self.collections.append(collection)
        try:
            yield collection
        finally:
            self.collections[:] = [c for c in self.collections if c is not collection]

    def stage(self, number: int, word: str) -> None:
        """The heading of a stage."""
        if not self.is_quiet:
            self._print(f"round {number} {word}", "bold")

    def _print(self, text: str, style: str) -> None:
        """One line whole, however narrow a terminal is guessed: logs are searched."""
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Advance]:
        """A bar in a terminal, a line every ten seconds elsewhere."""
        if self.is_quiet:
            yield _ignore
        elif self.console.is_terminal:
            columns = (
                TextColumn("  {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
            )
            with Progress(*columns, console=self.console, transient=True) as bar:
                task = bar.add_task(label, total=total, text="")
                yield lambda done, text="": bar.update(task, completed=done, text=text)
        else:
            yield _LogLines(self.console, label, total).advance


def _ignore(done: int, text: str = "") -> None:
    pass


@dataclass
class _LogLines:
    console: Console
    label: str
    total: int
    started: float = field(default_factory=time.monotonic)
    last: float = field(default_factory=time.monotonic)

    def advance(self, done: int, text: str = "") -> None:
        now = time.monotonic()
        if now - self.last < LOG_EVERY_S or not done:
            return
        self.last = now
        left = (now - self.started) * (self.total - done) / done
        line = f"  {self.label} {done}/{self.total}, about {left:.0f} s left {text}"
        self.console.print(line.rstrip(), markup=False, soft_wrap=True)
