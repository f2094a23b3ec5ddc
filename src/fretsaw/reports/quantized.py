"""What quantising gave: size, and which scales were not the weights' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fretsaw.core.units import format_bytes
from fretsaw.reports.shown import Shown

SHOWN = 8
"""Experts named in a line before the rest are counted."""


@dataclass(frozen=True, repr=False)
class Quantized(Shown):
    """A checkpoint that was written.

    Attributes:
        folder: Where it lies.
        precision: Name of its precision.
        weights_bytes: Bytes of all tensors.
        source_bytes: The same of the checkpoint that it was made from.
        num_quantized: Weights that were quantised.
        num_tokens: Tokens of calibration text.
        borrowed: Block -> experts with too few tokens, whose scales are their neighbours'.
    """

    folder: Path
    precision: str
    weights_bytes: int
    source_bytes: int
    num_quantized: int
    num_tokens: int
    borrowed: Mapping[int, tuple[int, ...]]

    def brief(self) -> str:
        """Where it lies, and its size."""
        return f"{self.folder}: {self.precision}, {format_bytes(self.weights_bytes)}"

    def print(self, console: Console) -> None:
        """See `print_quantized`."""
        print_quantized(self, console)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        borrowed = {str(block): list(experts) for block, experts in self.borrowed.items()}
        return {**asdict(self), "folder": str(self.folder), "borrowed": borrowed}


def print_quantized(found: Quantized, console: Console) -> None:
    """Print it in a few lines."""
    console.print(
        f"{found.folder}: {found.num_quantized:,} weights quantised ({found.precision}), "
        f"{format_bytes(found.weights_bytes)}, from {format_bytes(found.source_bytes)}",
        soft_wrap=True,
        highlight=False,
    )
    for block, experts in found.borrowed.items():
        names = ", ".join(map(str, experts[:SHOWN])) + (" …" if len(experts) > SHOWN else "")
        console.print(
            f"block {block}: {len(experts)} experts had too few of the {found.num_tokens:,} tokens "
            f"for scales of their own: {names}",
            soft_wrap=True,
            highlight=False,
        )
