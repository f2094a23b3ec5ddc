"""Results as people meet them: a table in a terminal and in a notebook, a line in a debugger."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from typing import Any

from rich.console import Console
from rich.table import Table

UNBOUNDED = 10_000
"""Characters of a line that nobody reads in a terminal: enough for any table of ours."""

PRE = '<pre style="white-space:pre;overflow-x:auto;line-height:1.2">{code}</pre>'


class Shown(ABC):
    """A result that can be printed, and shows itself in a notebook."""

    @abstractmethod
    def brief(self) -> str:
        """What it found, in one line."""

    @abstractmethod
    def print(self, console: Console) -> None:
        """All of it, as tables."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.brief()}>"

    def __str__(self) -> str:
        stream = io.StringIO()
        self.print(unbounded(WholeNames(file=stream, force_terminal=False, no_color=True)))
        return stream.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        """The tables for a notebook."""
        console = WholeNames(file=io.StringIO(), record=True, force_jupyter=False, highlight=False)
        self.print(unbounded(console))
        return console.export_html(inline_styles=True, code_format=PRE)


class WholeNames(Console):
    """A console that breaks long words of a table over lines, and never cuts them."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print as `Console.print` does."""
        for table in objects:
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
        super().print(*objects, **settings)


def unbounded(console: Console) -> Console:
    """The console, with lines as long as they come."""
    console.size = (UNBOUNDED, console.height)
    return console
