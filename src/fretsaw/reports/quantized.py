"""What quantising gave: size, what it costs in loss, and which scales were not the weights' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fretsaw.core.units import format_bytes
from fretsaw.reports.shown import Shown

SHOWN = 8
"""Experts named in a line before the rest are counted."""


@dataclass(frozen=True)
class HeldOutFigures:
    """A quantised model beside one that is not, on held-out text.

    Attributes:
        kl: KL(other || quantised), nats per token.
        loss: Next-token loss of the quantised model, nats.
        other_loss: The same of the other.
        agreement: Share of tokens whose greedy prediction is the other's.
        tokens: Measured.
    """

    kl: float
    loss: float
    other_loss: float
    agreement: float
    tokens: int


@dataclass(frozen=True)
class ChosenFormat:
    """What ``auto`` took for the weights of a kind in a block.

    Attributes:
        block: Of the trunk.
        kind: Of the weights.
        number_format: Theirs.
        kl: Divergence of the model in which they alone are rounded, nats per token.
        num_bytes: That they take, scales included.
    """

    block: int
    kind: str
    number_format: str
    kl: float
    num_bytes: int


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
        from_source: Against what it was made from, with weights, inputs and KV cache rounded; None
            where nothing was measured.
        from_parent: The same against the original parent of the run.
        chosen: What ``auto`` took.
        seconds: It took; 0 where nobody looked.
    """

    folder: Path
    precision: str
    weights_bytes: int
    source_bytes: int
    num_quantized: int
    num_tokens: int
    borrowed: Mapping[int, tuple[int, ...]]
    from_source: HeldOutFigures | None = None
    from_parent: HeldOutFigures | None = None
    chosen: tuple[ChosenFormat, ...] = ()
    seconds: float = 0.0

    def brief(self) -> str:
        """Where it lies, its size, and what it costs."""
        size = f"{self.folder}: {self.precision}, {format_bytes(self.weights_bytes)}"
        return f"{size}, KL {self.from_source.kl:.4f}" if self.from_source else size

    def print(self, console: Console) -> None:
        """See `print_quantized`."""
        print_quantized(self, console)

    def to_json(self) -> dict[str, Any]:
        """Plain data, which `from_json` reads back."""
        borrowed = {str(block): list(experts) for block, experts in self.borrowed.items()}
        return {**asdict(self), "folder": str(self.folder), "borrowed": borrowed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quantized:
        """Inverse of `to_json`."""
        figures = {
            name: HeldOutFigures(**data[name]) if data[name] else None
            for name in ("from_source", "from_parent")
        }
        return cls(
            **{
                **data,
                **figures,
                "folder": Path(data["folder"]),
                "borrowed": {int(b): tuple(e) for b, e in data["borrowed"].items()},
                "chosen": tuple(ChosenFormat(**row) for row in data["chosen"]),
            }
        )


def print_quantized(found: Quantized, console: Console) -> None:
    """Print it: size, loss, what was chosen, and whose scales were borrowed."""

    def line(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    line(
        f"{found.folder}: {found.num_quantized:,} weights quantised ({found.precision}), "
        f"{format_bytes(found.weights_bytes)}, from {format_bytes(found.source_bytes)}"
    )
    if found.from_source is not None:
        line(told(found.from_source, than="what it was made from"))
        line("measured with weights, inputs and KV cache rounded as the file says")
    if found.from_parent is not None:
        line(told(found.from_parent, than="the parent"))
    if found.chosen:
        console.print(_table(found.chosen))
    for block, experts in found.borrowed.items():
        names = ", ".join(map(str, experts[:SHOWN])) + (" …" if len(experts) > SHOWN else "")
        line(
            f"block {block}: {len(experts)} experts had too few of the {found.num_tokens:,} tokens "
            f"for scales of their own: {names}"
        )


QUANTIZED_COLUMNS = (
    "quantised",
    "weights",
    "loss",
    "KL to parent",
    "agree",
    "KL to child",
    "agree",
    "time",
)


def quantized_rows(several: Iterable[Quantized]) -> list[tuple[str, ...]]:
    """Children in fewer bits, a row each, under `QUANTIZED_COLUMNS`."""
    rows = []
    for one in several:
        words = [one.folder.parent.name.rpartition("quantize-")[2], format_bytes(one.weights_bytes)]
        words.append(f"{one.from_source.loss:.4f}" if one.from_source else "")
        for figures in (one.from_parent, one.from_source):
            words += [f"{figures.kl:.4f}", f"{figures.agreement:.1%}"] if figures else ["", ""]
        rows.append((*words, f"{one.seconds:.0f} s" if one.seconds else ""))
    return rows


def told(figures: HeldOutFigures, *, than: str) -> str:
    """Held-out figures in a sentence."""
    return (
        f"loss {figures.loss:.4f}, {figures.loss - figures.other_loss:+.4f} against {than}; "
        f"KL {figures.kl:.4f}, same greedy token {figures.agreement:.1%}, "
        f"on {figures.tokens:,} held-out tokens"
    )


def _table(chosen: Sequence[ChosenFormat]) -> Table:
    """One row for each kind and format: in which blocks, what it takes and costs."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("weights", "format", "blocks", "bytes", "KL, each alone"):
        is_number = column in ("bytes", "KL, each alone")
        table.add_column(column, justify="right" if is_number else "left")
    ordered = sorted(chosen, key=lambda one: (one.kind, one.number_format, one.block))
    for (kind, number_format), group in groupby(
        ordered, key=lambda one: (one.kind, one.number_format)
    ):
        rows = list(group)
        table.add_row(
            kind,
            number_format,
            spans(row.block for row in rows),
            format_bytes(sum(row.num_bytes for row in rows)),
            f"{sum(row.kl for row in rows):.5f}",
        )
    return table


def spans(numbers: Iterable[int]) -> str:
    """Ascending numbers in few words: ``1, 3-5, 9``."""
    words: list[list[int]] = []
    for number in numbers:
        if words and number == words[-1][-1] + 1:
            words[-1] = [words[-1][0], number]
        else:
            words.append([number])
    return ", ".join("-".join(map(str, word)) for word in words)
