"""Seconds of blocks as measured on this machine: a table that grows by a line per measurement.

The measuring itself runs the model (`fretsaw.runtime.timing`). Here are the rows, the points that
are worth measuring, and the seconds of what lies between them; nothing beyond them is answered.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fretsaw.core.shape import Block, ModelShape
from fretsaw.core.tables import append_line, read_lines
from fretsaw.errors import RunError
from fretsaw.pricing.kernels import Step

PROVIDER = "measured"
FIXED = "fixed"
"""What is no block: embedding, last norm, head, and what a forward pass does around its blocks."""

STEP_AXES = ("context", "tokens", "sequences")

Values = Mapping[str, int]
Point = Mapping[str, float]


@dataclass(frozen=True)
class Conditions:
    """What measured seconds hold for; times under other conditions are never mixed.

    Attributes:
        cpu: Model of the processor.
        threads: That compute.
        dtype: Of the weights.
        working_set_bytes: Weights that one pass of the whole model goes through, or the size from
            which on no cache holds any of them: what decides whether a block finds its own cached.
        torch: Version.
        transformers: Version.
    """

    cpu: str
    threads: int
    dtype: str
    working_set_bytes: int
    torch: str
    transformers: str


@dataclass(frozen=True)
class Part:
    """A block or what is no block, as far as its seconds depend on it.

    Attributes:
        kind: The mixer, or `FIXED`.
        values: Sizes and settings.
    """

    kind: str
    values: Values

    @classmethod
    def of_block(cls, block: Block) -> Part:
        """A residual block."""
        return cls(block.mixer, block.values)

    @classmethod
    def of_rest(cls, shape: ModelShape) -> Part:
        """What is no block of a model."""
        return cls(FIXED, {dim: shape.sizes[dim] for dim in ("hidden", "vocab")})

    def __str__(self) -> str:
        """As in a message: ``moe (expert=48, ffn=96, ...)``."""
        return f"{self.kind} ({', '.join(f'{k}={v}' for k, v in sorted(self.values.items()))})"


@dataclass(frozen=True)
class MeasuredRow:
    """One measurement.

    Attributes:
        part: What was measured.
        step: In which forward pass.
        conditions: On what.
        seconds: Median over the quieter rounds.
        spread_s: Distance between their quartiles.
    """

    part: Part
    step: Step
    conditions: Conditions
    seconds: float
    spread_s: float

    @cached_property
    def key(self) -> str:
        """Equal for measurements of the same thing."""
        return row_key(self.part, step=self.step, conditions=self.conditions)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back; with its provider, for readers."""
        return {**asdict(self), "provider": PROVIDER}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MeasuredRow:
        """Inverse of `to_json`.

        Raises:
            ValueError, KeyError, TypeError: the data is not that of a row.
        """
        seconds = float(data["seconds"])
        if not seconds > 0:
            raise ValueError(f"{seconds} seconds")
        return cls(
            part=Part(**data["part"]),
            step=Step(**data["step"]),
            conditions=Conditions(**data["conditions"]),
            seconds=seconds,
            spread_s=float(data["spread_s"]),
        )


def row_key(part: Part, *, step: Step, conditions: Conditions) -> str:
    """Hash of all that a measurement depends on."""
    numbers = {axis: float(getattr(step, axis)) for axis in STEP_AXES}
    content = [asdict(part), numbers, asdict(conditions)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class MeasuredTable:
    """All measurements under one set of conditions; of the same thing, the steadiest counts.

    Attributes:
        rows: In the order they were made.
        conditions: Of every row.
    """

    rows: Sequence[MeasuredRow]
    conditions: Conditions

    @classmethod
    def read(cls, path: Path, conditions: Conditions) -> MeasuredTable:
        """The rows of a file that were measured under these conditions; none without a file.

        Raises:
            RunError: a line other than a torn last one is damaged.
        """
        rows = read_lines(path, MeasuredRow.from_json) if path.exists() else []
        return cls([row for row in rows if row.conditions == conditions], conditions)

    def times_measured(self, part: Part, *, step: Step) -> int:
        """How many measurements of this very thing there are."""
        key = row_key(part, step=step, conditions=self.conditions)
        return sum(row.key == key for row in self.rows)

    def block_seconds(self, block: Block, *, step: Step) -> float:
        """Seconds of one residual block; nothing for a block that is gone.

        Raises:
            RunError: the block or the step lies outside what was measured.
        """
        return 0.0 if block.mixer == "none" else self.part_seconds(Part.of_block(block), step=step)

    def fixed_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of what is no block.

        Raises:
            RunError: the model or the step lies outside what was measured.
        """
        return self.part_seconds(Part.of_rest(shape), step=step)

    def step_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of one forward pass of the whole model.

        Raises:
            RunError: a block or the step lies outside what was measured.
        """
        blocks = (self.block_seconds(block, step=step) for block in shape.blocks)
        return sum(blocks, self.fixed_seconds(shape, step=step))

    def part_seconds(self, part: Part, *, step: Step) -> float:
        """Seconds of a part, linear between the measured points on every axis.

        Raises:
            RunError: outside what was measured.
        """
        cells = self._cells.get(_family(part, step), {})
        seconds = interpolate(cells, _point(part, step))
        if seconds is None:
            raise RunError(
                f"no measured time for {part} with {step.sequences:g} sequences of {step.tokens} "
                f"tokens at context {step.context:g}: {_hull(cells)}",
                "measure it, or ask for a point between measured ones",
            )
        return seconds

    @cached_property
    def _cells(self) -> dict[object, dict[tuple[float, ...], float]]:
        """Kind and axes -> coordinates -> seconds of the row with the least spread."""
        found: dict[object, dict[tuple[float, ...], float]] = defaultdict(dict)
        for row in sorted(self.rows, key=lambda row: row.spread_s):
            point = tuple(_point(row.part, row.step).values())
            found[_family(row.part, row.step)].setdefault(point, row.seconds)
        return found


def append_measurement(path: Path, row: MeasuredRow) -> None:
    """Append a row; a torn last line that a killed run has left is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, row.to_json())


def _family(part: Part, step: Step) -> tuple[object, ...]:
    """What is never interpolated: the kind, which axes it has, and prefill or decode."""
    return (part.kind, *sorted(part.values), step.is_prefill)


def _point(part: Part, step: Step) -> Point:
    values = dict(sorted(part.values.items()))
    return {**values, **{axis: float(getattr(step, axis)) for axis in STEP_AXES}}


def _hull(cells: Mapping[tuple[float, ...], float]) -> str:
    """What was measured, in words."""
    if not cells:
        return "nothing of its kind was measured"
    *_, context, tokens, sequences = (sorted(set(axis)) for axis in zip(*cells, strict=True))
    told = (("contexts", context), ("tokens", tokens), ("sequences", sequences))
    axes = "; ".join(f"{name} {', '.join(f'{n:g}' for n in nodes)}" for name, nodes in told)
    return f"of its kind, {len(cells)} points were measured ({axes})"


def interpolate(cells: Mapping[tuple[float, ...], float], point: Point) -> float | None:
    """Multilinear interpolation between scattered measurements; None outside of them.

    On each axis in turn the nearest nodes below and above are taken from which the remaining axes
    can be answered, so that grids of several runs may share a table.

    Args:
        cells: Coordinates -> seconds; all of one length.
        point: Coordinates by name, in the same order.
    """
    if not point:
        return cells.get(())
    (_, x), *rest = point.items()
    nodes: dict[float, dict[tuple[float, ...], float]] = defaultdict(dict)
    for (node, *others), seconds in cells.items():
        nodes[node][tuple(others)] = seconds
    below = _first_answer(
        nodes, sorted((n for n in nodes if n <= x), reverse=True), rest=dict(rest)
    )
    above = _first_answer(nodes, sorted(n for n in nodes if n >= x), rest=dict(rest))
    if below is None or above is None:
        return None
    (low, low_s), (high, high_s) = below, above
    return low_s if low == high else low_s + (high_s - low_s) * (x - low) / (high - low)


def _first_answer(
    nodes: Mapping[float, Mapping[tuple[float, ...], float]], order: Sequence[float], *, rest: Point
) -> tuple[float, float] | None:
    """First node in this order from which the remaining axes can be answered, and the answer."""
    for node in order:
        seconds = interpolate(nodes[node], rest)
        if seconds is not None:
            return node, seconds
    return None


def points_to_measure(blocks: Iterable[Block], *, nodes: int = 3) -> list[Block]:
    """Few blocks between which the seconds of all of these lie.

    Per kind of block, the corners and middles of the box of its sizes and settings; all the
    distinct blocks themselves where they are no more than that.

    Args:
        blocks: Of a model or of a library; blocks that are gone are left out.
        nodes: Values measured per axis at most: the extremes, and those nearest to equal parts.
    """
    kinds: dict[object, dict[object, Block]] = defaultdict(dict)
    for block in blocks:
        if block.mixer != "none":
            axes = (block.mixer, *sorted(block.values))
            kinds[axes][tuple(sorted(block.values.items()))] = block
    return [point for distinct in kinds.values() for point in _box([*distinct.values()], nodes)]


def _box(blocks: Sequence[Block], nodes: int) -> list[Block]:
    axes = {dim: _spread({b.values[dim] for b in blocks}, nodes) for dim in blocks[0].values}
    corners = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    if len(blocks) <= len(corners):
        return list(blocks)
    return [blocks[0].with_values(corner) for corner in corners if _is_possible(corner)]


def _is_possible(values: Values) -> bool:
    return values.get("top_k", 0) <= values.get("expert", 0) or "expert" not in values


def _spread(values: Iterable[int], nodes: int) -> list[int]:
    """The extremes, and of the others those nearest to equal parts between them."""
    known = sorted(values)
    low, high = known[0], known[-1]
    aims = [low + (high - low) * i / (nodes - 1) for i in range(nodes)]
    return sorted({min(known, key=lambda value: abs(value - aim)) for aim in aims})
