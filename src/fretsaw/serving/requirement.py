"""What a requirement in serving terms takes: the mildest uniform cut, and whether a search can."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from fretsaw.core.shape import ModelShape
from fretsaw.errors import RecipeError
from fretsaw.serving.planner import AXES, Setting, best_at_speed, cut_axes, most_sequences

SMALLEST = {"ffn": 1280 / 2688, "top_k": 4 / 22, "state": 96 / 128}
"""Smallest share of each axis in the published search (arXiv:2607.04371, Fig. 2 and table 1)."""

Measure = Literal["server tokens/s", "concurrency"]
UNITS = {"": 1, "k": 10**3, "M": 10**6}
REQUIREMENT = re.compile(
    r"\s*([0-9][0-9,_]*\.?[0-9]*)\s*([kM]?)\s*([x×]?)\s*(server tokens/s|concurrency)\s*"
)


@dataclass(frozen=True)
class Requirement:
    """What a child should reach.

    Attributes:
        value: Wanted, or how many times the parent's.
        is_factor: Whether it is a multiple of the parent's.
        measure: Of what.
    """

    value: float
    is_factor: bool
    measure: Measure


@dataclass(frozen=True)
class UniformCut:
    """The mildest uniform cut of some axes that meets a requirement.

    Attributes:
        axes: What is cut, all to the same share.
        share: Kept; None where even the smallest does not suffice.
        reached: The measure there.
    """

    axes: tuple[str, ...]
    share: float | None
    reached: float


@dataclass(frozen=True)
class Verdict:
    """What it takes to meet a requirement.

    Attributes:
        wanted: In the measure's unit.
        parent: What the parent has.
        cuts: Per set of axes.
        smallest: What the smallest model of the published search space reaches.
    """

    wanted: float
    parent: float
    cuts: tuple[UniformCut, ...]
    smallest: float

    @property
    def is_within_space(self) -> bool:
        """Whether the search space can meet it."""
        return self.smallest >= self.wanted


def parse_requirement(text: str) -> Requirement:
    """A requirement such as "2x server tokens/s", "40k server tokens/s" or "8 concurrency".

    Raises:
        RecipeError: not a requirement.
    """
    match = REQUIREMENT.fullmatch(text)
    if match is None:
        raise RecipeError(
            f"{text!r} is no requirement",
            'write it like "2x server tokens/s", "40k server tokens/s" or "4x concurrency"',
        )
    value = float(match[1].replace(",", "").replace("_", "")) * UNITS[match[2]]
    if not 0 < value < math.inf:
        raise RecipeError(f"{text!r} asks for {value:g}", "give a number above 0")
    return Requirement(value, bool(match[3]), cast("Measure", match[4]))


def judge(shape: ModelShape, setting: Setting, *, requirement: Requirement) -> Verdict:
    """The uniform cuts that would meet a requirement, and whether the search space can.

    Args:
        shape: The parent.
        setting: Hardware, workload and speed.
        requirement: What is wanted.

    Raises:
        RecipeError: a multiple of what the parent has none of.
    """

    def reach(model: ModelShape) -> float:
        return _measure(model, setting, measure=requirement.measure)

    parent = reach(shape)
    if requirement.is_factor and not parent:
        raise RecipeError(
            f"the parent has no {requirement.measure} here, so nothing is a multiple of it",
            "ask for a number instead, for slower users, or for more or other hardware",
        )
    wanted = requirement.value * (parent if requirement.is_factor else 1)
    ways = [*((axis,) for axis in AXES), ("ffn", "top_k"), ("ffn", "top_k", "state")]
    present = {a for block in shape.blocks for a in block.values}
    cuts = [
        _mildest(shape, axes, reach=reach, wanted=wanted) for axes in ways if present >= {*axes}
    ]
    return Verdict(wanted, parent, tuple(cuts), reach(cut_axes(shape, SMALLEST)))


def _mildest(
    shape: ModelShape, axes: tuple[str, ...], *, reach: Callable[[ModelShape], float], wanted: float
) -> UniformCut:
    """By halving over whole percents: a smaller model is never slower."""
    low, high = 1, 100
    least = reach(cut_axes(shape, dict.fromkeys(axes, low / 100)))
    if least < wanted:
        return UniformCut(axes, None, least)
    reached = least
    while low < high:
        middle = (low + high + 1) // 2
        value = reach(cut_axes(shape, dict.fromkeys(axes, middle / 100)))
        if value >= wanted:
            low, reached = middle, value
        else:
            high = middle - 1
    return UniformCut(axes, low / 100, reached)


def _measure(shape: ModelShape, setting: Setting, *, measure: Measure) -> float:
    if measure == "concurrency":
        return most_sequences(shape, setting)[0].max_concurrency
    best = best_at_speed(shape, setting)
    return best.server_tokens_per_s if best else 0.0
