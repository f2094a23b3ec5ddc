"""A model on a hardware in serving terms: speed, concurrency, what binds, and what a cut gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fretsaw.core.hardware import Layout, Node, Workload
from fretsaw.core.precision import Precision
from fretsaw.core.shape import ModelShape
from fretsaw.pricing.energy import EnergyModel
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.step import Account
from fretsaw.serving.capacity import Assumptions, Capacity, capacity
from fretsaw.serving.frontier import (
    Point,
    PricerOf,
    pareto,
    point,
    prefill_steps,
    server_rate_at,
    sweep,
)

AXES = ("ffn", "top_k", "state", "kv_head")
"""Axes whose worth is told: expert width, experts per token, Mamba state, KV heads."""

SMALL_CUT = 0.1
"""A cut by which an axis' worth is told, per percent; at least one unit."""

NEAR = 1 + 1e-5
"""Sequences, or speeds, in this ratio count as equal."""

INSIDE = 0.02
"""Least share of an interval that a step of false position takes off."""


@dataclass(frozen=True)
class Setting:
    """Everything that an answer rests on, but for the model.

    Attributes:
        node: Hardware.
        workload: Requests; None where only a context is asked about.
        context: Tokens of each sequence for the most concurrent ones.
        user_tokens_per_s: Wanted speed; None leaves the whole frontier.
        precision: Number formats.
        assumptions: Of memory.
        layouts: Which layouts compete; empty = all that fit.
        pricer_of: Prices a layout.
        energy_of: Models the energy of a layout.
    """

    node: Node
    workload: Workload | None
    context: int
    user_tokens_per_s: float | None
    precision: Precision
    assumptions: Assumptions
    layouts: Sequence[Layout]
    pricer_of: PricerOf
    energy_of: Callable[[Layout], EnergyModel]


@dataclass(frozen=True)
class Outlook:
    """What a model does in a setting.

    Attributes:
        shape: The model.
        capacity: Of the layout that holds the most sequences of the setting's context.
        capacity_layout: That layout.
        frontier: Pareto points, slow users first; empty without a workload.
        server_tokens_per_s: At the wanted user speed; None where no layout reaches it.
        operating_point: Of the best layout at exactly that speed; the fastest if none reaches it.
        account: Where its decode step goes.
        worth: Axis -> percent of server tokens/s gained per percent cut.
        joules_per_token: Modelled, of an output token there, its share of the prompt included.
    """

    shape: ModelShape
    capacity: Capacity
    capacity_layout: Layout
    frontier: tuple[Point, ...]
    server_tokens_per_s: float | None
    operating_point: Point | None
    account: Account | None
    worth: Mapping[str, float]
    joules_per_token: float | None


def outlook(shape: ModelShape, setting: Setting) -> Outlook:
    """Capacity, frontier, what binds and what each axis is worth.

    Raises:
        RecipeError: a layout or a context that the model cannot have.
    """
    held, held_layout = most_sequences(shape, setting)
    frontier = _frontier(shape, setting)
    if setting.workload is None or not frontier:
        return Outlook(shape, held, held_layout, tuple(frontier), None, None, None, {}, None)
    speed = setting.user_tokens_per_s
    rate = None if speed is None else server_rate_at(frontier, speed)
    at = best_at_speed(shape, setting) or _without_speed(frontier, speed)
    step = Step(at.sequences, 1, setting.workload.mean_context)
    account = setting.pricer_of(at.layout).account(shape, step=step)
    worth = _worth(shape, setting, at=at)
    joules = _joules_per_token(shape, setting, workload=setting.workload, at=at)
    return Outlook(shape, held, held_layout, tuple(frontier), rate, at, account, worth, joules)


def _joules_per_token(
    shape: ModelShape, setting: Setting, *, workload: Workload, at: Point
) -> float:
    """A step's joules over its tokens, and a prompt's over the tokens of its answer."""
    model = setting.energy_of(at.layout)
    decode = model.step(shape, step=Step(at.sequences, 1, workload.mean_context)).joules
    prompts = prefill_steps(workload.input_tokens, groups=at.layout.dp)
    prefill = sum(model.step(shape, step=step).joules for step in prompts) / at.layout.dp
    tokens = at.sequences * workload.acceptance_length
    return decode / tokens + prefill / workload.output_tokens


def _frontier(shape: ModelShape, setting: Setting) -> list[Point]:
    if setting.workload is None:
        return []
    return pareto(
        sweep(
            shape,
            setting.node,
            workload=setting.workload,
            precision=setting.precision,
            pricer_of=setting.pricer_of,
            layouts=setting.layouts,
            assumptions=setting.assumptions,
        )
    )


def most_sequences(shape: ModelShape, setting: Setting) -> tuple[Capacity, Layout]:
    """Of all layouts the one that holds the most; of equals the one with fewest GPUs a replica."""
    found = [(_capacity(shape, setting, layout=layout), layout) for layout in setting.layouts]
    return max(found, key=lambda one: (one[0].max_concurrency, one[0].fits, -one[1].gpus))


def _capacity(shape: ModelShape, setting: Setting, *, layout: Layout) -> Capacity:
    return capacity(
        shape,
        setting.node,
        context=setting.context,
        precision=setting.precision,
        layout=layout,
        assumptions=setting.assumptions,
    )


def _without_speed(frontier: Sequence[Point], speed: float | None) -> Point:
    """Where the product of both speeds is largest; the fastest of those that miss a speed."""
    if speed is None:
        return max(frontier, key=lambda p: p.server_tokens_per_s * p.user_tokens_per_s)
    return frontier[-1]


def best_at_speed(shape: ModelShape, setting: Setting) -> Point | None:
    """Of all layouts the most server tokens/s at which users have their speed; None if none has."""
    points = [at_speed(shape, setting, layout=layout) for layout in setting.layouts]
    return max(filter(None, points), key=lambda p: p.server_tokens_per_s, default=None)


def at_speed(shape: ModelShape, setting: Setting, *, layout: Layout) -> Point | None:
    """The most sequences of a layout at which users have their speed; None if it has no such.

    Without a wanted speed there is none either. Memory is looked at, whole sequences are not
    asked for: the answer lies between two batches.
    """
    workload, speed = setting.workload, setting.user_tokens_per_s
    if workload is None or speed is None:
        return None
    pricer = setting.pricer_of(layout)
    held = capacity(
        shape,
        setting.node,
        context=workload.peak_context,
        precision=setting.precision,
        layout=layout,
        assumptions=setting.assumptions,
    )

    def at(sequences: float) -> Point:
        return point(shape, setting.node, workload=workload, pricer=pricer, sequences=sequences)

    low, high = at(1.0), at(max(1.0, float(held.sequences_per_group * layout.dp)))
    if not held.sequences_per_group or low.user_tokens_per_s < speed:
        return None
    if high.user_tokens_per_s >= speed:
        return high
    while high.sequences > NEAR * low.sequences and low.user_tokens_per_s > NEAR * speed:
        # The time of a token is nearly a line in the sequences: false position, kept inside.
        slow, fast = 1 / high.user_tokens_per_s, 1 / low.user_tokens_per_s
        share = min(max((1 / speed - fast) / (slow - fast), INSIDE), 1 - INSIDE)
        middle = at(low.sequences + share * (high.sequences - low.sequences))
        if middle.user_tokens_per_s >= speed:
            low = middle
        else:
            high = middle
    return low


def _worth(shape: ModelShape, setting: Setting, *, at: Point) -> dict[str, float]:
    """Percent of server tokens/s per percent cut of each axis, at the same speed and layout."""
    found = {}
    for axis in AXES:
        size = max((b.values[axis] for b in shape.blocks if axis in b.values), default=1)
        if size == 1:
            continue
        share = 1 - max(1, round(size * SMALL_CUT)) / size
        small = cut_axes(shape, {axis: share})
        faster = at_speed(small, setting, layout=at.layout)
        if faster is None:
            faster = _with_load(small, setting, at=at)
        found[axis] = (faster.server_tokens_per_s / at.server_tokens_per_s - 1) / (1 - share)
    return found


def _with_load(shape: ModelShape, setting: Setting, *, at: Point) -> Point:
    """The point of a model under the same layout and load as another's."""
    if setting.workload is None:
        return at
    pricer = setting.pricer_of(at.layout)
    workload = setting.workload
    return point(shape, setting.node, workload=workload, pricer=pricer, sequences=at.sequences)


def cut_axes(shape: ModelShape, shares: Mapping[str, float]) -> ModelShape:
    """Every block with some axes cut to a share of their size, rounded, at least 1."""
    blocks = []
    for block in shape.blocks:
        axes = shares.keys() & block.values.keys()
        blocks.append(
            block.with_values({a: max(1, round(block.values[a] * shares[a])) for a in axes})
        )
    return shape.with_blocks(blocks)
