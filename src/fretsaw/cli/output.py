"""Results on stdout: a table for people, or one JSON document and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

PRINTERS = {
    "Description": "fretsaw.reports.description:print_description",
    "Estimate": "fretsaw.reports.estimate:print_estimate",
    "Quantized": "fretsaw.reports.quantized:print_quantized",
    "Served": "fretsaw.reports.served:print_served",
    "ServingPlan": "fretsaw.reports.outlook:print_serving_plan",
    "Summary": "fretsaw.reports.summary:print_summary",
    "Verification": "fretsaw.reports.verification:print_verification",
}
"""Result type -> function that prints it."""


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
        print(json.dumps(plain(result), indent=1))
    elif isinstance(result, Answer):
        print(result.text)
    elif isinstance(result, Path):
        print(result)
    else:
        module, _, name = PRINTERS[type(result).__name__].partition(":")
        getattr(import_module(module), name)(result, Console())


def plain(result: Any) -> Any:
    """A result as plain data."""
    if isinstance(result, Path):
        return {"folder": str(result)}
    return result.to_json() if hasattr(result, "to_json") else asdict(result)
