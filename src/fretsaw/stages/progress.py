"""Progress and words on stderr: bars with an ETA in a terminal, lines in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from fretsaw.core.units import format_seconds

LOG_EVERY_S = 10.0
WINDOW_S = 60.0
"""The pace is that of the last minute: what came before, such as a start, says nothing of it."""

FEWEST_SEEN = 3
"""Two steps in between: the first may have waited for something that comes only once."""


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
        """A bar in a terminal, a line every ten seconds elsewhere; how long it will still take."""
        if self.is_quiet:
            yield _ignore
        elif self.console.is_terminal:
            columns = (
                TextColumn("  {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[text]}"),
            )
            with Progress(*columns, console=self.console, transient=True) as bar:
                task, pace = bar.add_task(label, total=total, text=""), Pace(total)

                def advance(done: int, text: str = "") -> None:
                    pace.note(done)
                    bar.update(task, completed=done, text=f"{pace.told()} {text}".strip())

                yield advance
        else:
            yield _LogLines(self.console, label, total).advance

    @contextmanager
    def in_turn(self) -> Iterator[Callable[[str, int], Advance]]:
        """Several progresses, one after the other: each begins when it is first advanced."""
        with ExitStack() as stack:

            def begin(label: str, total: int) -> Advance:
                opened: list[Advance] = []

                def advance(done: int, text: str = "") -> None:
                    if not opened:
                        stack.close()
                        opened.append(stack.enter_context(self.progress(label, total)))
                    opened[0](done, text)

                return advance

            yield begin


def _ignore(done: int, text: str = "") -> None:
    pass


@dataclass
class Pace:
    """How fast something goes at present, and so how long it will still take.

    Attributes:
        total: How much there is to do.
        clock: Gives seconds.
        seen: When how much was done, of the last `WINDOW_S` and the moment before.
    """

    total: int
    clock: Callable[[], float] = time.monotonic
    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, done: int) -> None:
        """So much is done now."""
        now = self.clock()
        self.seen.append((now, done))
        while len(self.seen) > FEWEST_SEEN and self.seen[1][0] < now - WINDOW_S:
            self.seen.popleft()

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest takes at the present pace; None if too little was seen."""
        if not self.seen:
            return None
        (then, before), (now, done) = self.seen[0], self.seen[-1]
        if len(self.seen) < FEWEST_SEEN or now <= then or done <= before:
            return None
        return (now - then) * (self.total - done) / (done - before)

    def told(self) -> str:
        """``about 3 min 05 s left``; empty while nobody can know."""
        left_s = self.left_s
        return "" if left_s is None else f"about {format_seconds(left_s)} left"


@dataclass
class _LogLines:
    console: Console
    label: str
    total: int
    pace: Pace = field(init=False)
    last: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.pace = Pace(self.total)

    def advance(self, done: int, text: str = "") -> None:
        self.pace.note(done)
        now = time.monotonic()
        if now - self.last < LOG_EVERY_S:
            return
        self.last = now
        words = (f"{self.label} {done:,}/{self.total:,}", self.pace.told(), text)
        line = ", ".join(word for word in words if word)
        self.console.print(f"  {line}", markup=False, soft_wrap=True)
