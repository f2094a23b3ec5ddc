"""Results on stdout: a table for people, or one JSON document and nothing else."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Answer:
    """What a command says that has no table: its words, and the same as plain data."""

    text: str
    data: Any

    def to_json(self) -> Any:
        """Plain data."""
        return self.data


def show(result: Any, *, as_json: bool) -> None:
    """Print what a command gave."""
    if as_json:
        print(json.dumps(plain(result), indent=1, allow_nan=False))
    elif isinstance(result, Answer):
        print(result.text)
    elif isinstance(result, Path):
        print(result)
    else:
        result.print(stdout_console())
    sys.stdout.flush()


def plain(result: Any) -> Any:
    """A result as what JSON has: numbers that it has not are null."""
    if isinstance(result, Path):
        return {"folder": str(result)}
    return _finite(result.to_json() if hasattr(result, "to_json") else asdict(result))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def stdout_console() -> Console:
    """As wide as the terminal, or as `COLUMNS` says; into a file or a pipe, no line is wrapped."""
    from fretsaw.reports.shown import WholeNames, unbounded  # noqa: PLC0415

    console = WholeNames()
    is_bounded = console.is_terminal or "COLUMNS" in os.environ
    return console if is_bounded else unbounded(console)
