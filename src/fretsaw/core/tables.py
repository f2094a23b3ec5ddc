"""Score rows: one line of JSON per variant, appended as it is measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from fretsaw.core.variant import Variant
from fretsaw.errors import RecipeError, RunError, nearest

Line = TypeVar("Line")

ScoreKey = tuple[int, str]
"""(block, variant key)."""

METRICS = ("kl", "loss", "hidden")


@dataclass(frozen=True)
class ScoreRow:
    """What replacing one block by one variant did; None stands for "not measured" or not finite.

    Attributes:
        block: Index of the block.
        key: The variant's key within the block.
        variant: The variant.
        kl: KL(model || replaced) per token, nats.
        loss: Next-token loss of the replaced model, nats.
        hidden: Normalised squared error before the head.
        samples: The same per sequence.
    """

    block: int
    key: str
    variant: Variant
    kl: float | None
    loss: float | None
    hidden: float | None
    samples: tuple[float | None, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back; what is not finite becomes null."""
        return {
            **vars(self),
            "variant": self.variant.to_json(),
            **{metric: _finite(getattr(self, metric)) for metric in METRICS},
            "samples": [_finite(sample) for sample in self.samples],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ScoreRow:
        """Inverse of `to_json`.

        Raises:
            ValueError, KeyError, TypeError: the data is not that of a row.
        """
        variant = Variant.from_json(data["variant"])
        if (variant.block, variant.key) != (data["block"], data["key"]):
            raise ValueError("block and key do not fit the variant")
        numbers = {metric: _number(data[metric]) for metric in METRICS}
        samples = tuple(_number(sample) for sample in data["samples"])
        return cls(**{**data, **numbers, "variant": variant, "samples": samples})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def append_row(path: Path, row: ScoreRow) -> None:
    """Append a row; a torn last line that a killed run has left is cut off first."""
    append_line(path, row.to_json())


def append_line(path: Path, data: Mapping[str, Any]) -> None:
    """Append plain data as a line; a torn last line that a killed run has left is cut off first."""
    with path.open("ab+") as stream:
        _cut_torn_line(stream)
        stream.write(json.dumps(data, allow_nan=False).encode() + b"\n")


def _cut_torn_line(stream: BinaryIO) -> None:
    size = stream.seek(0, 2)
    if not size:
        return
    stream.seek(size - 1)
    if stream.read(1) == b"\n":
        return
    stream.seek(0)
    stream.truncate(stream.read().rfind(b"\n") + 1)


def read_rows(path: Path) -> list[ScoreRow]:
    """All complete score rows.

    Raises:
        RunError: a line other than a torn last one is damaged.
    """
    return read_lines(path, ScoreRow.from_json)


def read_lines(path: Path, parse: Callable[[Any], Line]) -> list[Line]:
    """All complete lines; a last one without its end, which a killed run leaves, is left out.

    Args:
        path: A file that `append_line` wrote.
        parse: Plain data -> row; what it refuses is a damaged line.

    Raises:
        RunError: another line is damaged.
    """
    *lines, _torn = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{path} line {number} is damaged: {error!r}", "remove that line and run again"
            ) from error
    return rows


def metric_values(rows: Sequence[ScoreRow], metric: str) -> dict[ScoreKey, float]:
    """Score of each variant by one metric: ``kl``, ``loss`` or ``hidden``; smaller = better.

    For ``hidden``, all variants of all blocks are ranked within each sample, 0 = least error, and
    the ranks are averaged over the samples.

    Args:
        rows: Of one table; of two rows of the same variant the later counts.
        metric: Which number to read.

    Returns:
        Score by block and variant key; NaN where it was not measured or not finite.

    Raises:
        RecipeError: unknown metric.
        RunError: rows were measured on different numbers of samples.

    Source: the rank average: gpt-oss-puzzle, arXiv:2602.11937.
    """
    if metric not in METRICS:
        guess = nearest(metric, METRICS)
        hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(METRICS)}"
        raise RecipeError(f"unknown metric {metric!r}", hint)
    latest = {(row.block, row.key): row for row in rows}
    if metric == "hidden":
        sampled = {key: row.samples for key, row in latest.items() if row.samples}
        return dict.fromkeys(latest, math.nan) | (_mean_ranks(sampled) if sampled else {})
    values = {key: getattr(row, metric) for key, row in latest.items()}
    return {key: math.nan if value is None else value for key, value in values.items()}


def _mean_ranks(samples: Mapping[ScoreKey, Sequence[float | None]]) -> dict[ScoreKey, float]:
    """Rank among all keys within each sample, averaged; NaN where a sample is not finite."""
    if len(lengths := sorted({len(values) for values in samples.values()})) > 1:
        raise RunError(
            f"the scores were measured on different numbers of samples: {lengths}",
            "remove the scores and run `fretsaw score` again",
        )
    errors = np.array([*samples.values()], dtype=float)
    is_finite = np.isfinite(errors).all(axis=-1)
    means = np.full(len(errors), math.nan)
    if is_finite.any():
        ranks = [_ranks(column) for column in errors[is_finite].T]
        means[is_finite] = np.mean(ranks, axis=0)
    return dict(zip(samples, means.tolist(), strict=True))


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rank of each value, 0 = smallest; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray(means[inverse], dtype=np.float64)
