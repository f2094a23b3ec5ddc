"""Interpolation between the cells of a measured table, never beyond them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """Seconds, and whether every cell behind them was measured."""

    seconds: float
    is_measured: bool


@dataclass(frozen=True)
class Grid:
    """Seconds over named axes.

    Attributes:
        axes: Name -> nodes, growing; in the order of the array.
        seconds: (nodes of each axis); NaN where nothing is known.
        modelled: Cells that a stated model filled in, of the same shape.
        log_axes: Axes along which seconds follow a power law between two nodes; affine elsewhere.
        floored_axes: Axes that count below their first node as at it: a launch has a floor.
    """

    axes: Mapping[str, Sequence[float]]
    seconds: Seconds
    modelled: NDArray[np.bool_]
    log_axes: Collection[str] = ()
    floored_axes: Collection[str] = ()

    @cached_property
    def floor(self) -> float:
        """The least of its seconds."""
        return float(np.nanmin(self.seconds))

    @cached_property
    def _cells(self) -> list[float]:
        return self.seconds.ravel().tolist()

    @cached_property
    def _flags(self) -> list[bool]:
        return self.modelled.ravel().tolist()

    @cached_property
    def _plan(self) -> list[tuple[tuple[float, ...], int, bool, bool]]:
        """Of each axis: nodes, cells from one node to the next, is_log, is_floored."""
        strides = [math.prod(self.seconds.shape[at + 1 :]) for at in range(self.seconds.ndim)]
        return [
            (tuple(nodes), stride, key in self.log_axes, key in self.floored_axes)
            for (key, nodes), stride in zip(self.axes.items(), strides, strict=True)
        ]

    def at(self, *point: float) -> Answer | None:
        """Seconds at a point, one coordinate per axis; None outside the measured hull."""
        cells, steps = [0], []
        for x, (nodes, stride, is_log, is_floored) in zip(point, self._plan, strict=True):
            place = _place(x, nodes, is_log=is_log, is_floored=is_floored)
            if place is None:
                return None
            at, share = place
            cells = [cell + at * stride for cell in cells]
            if share:
                cells = [corner for cell in cells for corner in (cell, cell + stride)]
                steps.append((share, is_log))
        seconds = [self._cells[cell] for cell in cells]
        for share, is_log in reversed(steps):
            pairs = zip(seconds[::2], seconds[1::2], strict=True)
            if is_log:
                seconds = [low * (high / low) ** share for low, high in pairs]
            else:
                seconds = [low + (high - low) * share for low, high in pairs]
        if math.isnan(seconds[0]):
            return None
        return Answer(seconds[0], not any(self._flags[cell] for cell in cells))


def _place(
    x: float, nodes: tuple[float, ...], *, is_log: bool, is_floored: bool
) -> tuple[int, float] | None:
    """The node at or below, and the share of the way to the next."""
    if x < nodes[0]:
        return (0, 0.0) if is_floored else None
    at = bisect_right(nodes, x) - 1
    if nodes[at] == x:
        return at, 0.0
    if at == len(nodes) - 1:
        return None
    low, high = nodes[at], nodes[at + 1]
    share = math.log(x / low) / math.log(high / low) if is_log else (x - low) / (high - low)
    return at, share
