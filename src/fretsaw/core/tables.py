"""Score rows: one line of JSON per variant, appended as it is measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fretsaw.core.variant import Variant
from fretsaw.errors import RunError

ScoreKey = tuple[int, str]
"""(block, variant key)."""


@dataclass(frozen=True)
class ScoreRow:
    """What replacing one block by one variant did.

    Attributes:
        block: Index of the block.
        key: The variant's key within the block.
        variant: The variant.
        kl: KL(model || replaced) per token, nats.
        loss: Next-token loss of the replaced model, nats.
        hidden: Normalised squared error before the head.
        samples: The same per sequence.
        seconds: Time it took.
    """

    block: int
    key: str
    variant: Variant
    kl: float
    loss: float
    hidden: float
    samples: tuple[float, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {**vars(self), "variant": self.variant.to_json(), "samples": list(self.samples)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ScoreRow:
        """Inverse of `to_json`."""
        fields = {**data, "variant": Variant.from_json(data["variant"])}
        return cls(**{**fields, "samples": tuple(data["samples"])})


def append_row(path: Path, row: ScoreRow) -> None:
    """Append a row; a torn last line that a killed run has left is cut off first."""
    with path.open("ab+") as stream:
        _cut_torn_line(stream)
        stream.write(json.dumps(row.to_json()).encode() + b"\n")
        stream.flush()


def _cut_torn_line(stream: Any) -> None:
    size = stream.seek(0, 2)
    if not size:
        return
    stream.seek(size - 1)
    if stream.read(1) == b"\n":
        return
    stream.seek(0)
    stream.truncate(stream.read().rfind(b"\n") + 1)


def read_rows(path: Path) -> list[ScoreRow]:
    """All complete rows; a torn last line is left out.

    Raises:
        RunError: another line is damaged.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    *lines, _torn = text.split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(ScoreRow.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path} line {number} is damaged: {error!r}", "remove that line and run again"
            ) from error
    return rows


def metric_values(rows: Sequence[ScoreRow], metric: str) -> dict[ScoreKey, float]:
    """Score of each variant by one metric: ``kl``, ``loss`` or ``hidden``.

    For ``hidden``, all variants of all blocks are ranked within each sample, and the ranks are
    averaged over the samples.

    Source of the rank average: gpt-oss-puzzle, arXiv:2602.11937.
    """
    if metric != "hidden":
        return {(row.block, row.key): getattr(row, metric) for row in rows}
    columns = zip(*(row.samples for row in rows), strict=True)
    ranks = [_ranks(column) for column in columns]
    means = (sum(rank[i] for rank in ranks) / len(ranks) for i in range(len(rows)))
    return {(row.block, row.key): mean for row, mean in zip(rows, means, strict=True)}


def _ranks(values: Iterable[float]) -> list[float]:
    """Rank of each value, 0 = smallest; equal values share their mean rank."""
    listed = list(values)
    order = sorted(range(len(listed)), key=listed.__getitem__)
    ranks = [0.0] * len(listed)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and listed[order[stop]] == listed[order[start]]:
            stop += 1
        for i in order[start:stop]:
            ranks[i] = (start + stop - 1) / 2
        start = stop
    return ranks
