"""A round before it runs: its variants, choices that stand in for the search's, and the machine.

What a search will choose is not known. The same program is solved with scores made up: they grow
with the square of what is cut, as damage does. Its choices have the right sizes, so that work and
memory can be told from them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.shape import Block, Mixer, ModelShape
from fretsaw.core.variant import Choice, Variant
from fretsaw.errors import InfeasibleError
from fretsaw.pricing.memory import model_costs
from fretsaw.recipe import Recipe, Round
from fretsaw.runtime.gauge import Gauge
from fretsaw.runtime.load import load_model
from fretsaw.solver.alternatives import solve_any
from fretsaw.solver.budget import resolve_budgets
from fretsaw.solver.mip import Problem, random_choices, uniform_choice
from fretsaw.stages.library import by_block, variants_of
from fretsaw.train.gauge import HeadGauge

OPENED_WEIGHTS = 2**25
"""A model of up to as many parameters is opened as a trial; of a larger one as many are read."""

SOLVE_S = 5.0
"""Most seconds spent on the program of a round."""

CUT = ("ffn", "top_k", "state")
"""What blocks of a kind differ in once they are cut."""

KINDS_OF_BLOCKS = 3
"""Blocks differ in how much their cuts would cost, by up to this factor."""


@dataclass(frozen=True)
class Machine:
    """What was measured of this machine for a recipe.

    Attributes:
        gauge: Of blocks.
        base_bytes: Resident before any weight.
        open_s: Seconds of opening the parent as a running model.
    """

    gauge: Gauge
    base_bytes: int
    open_s: float

    @cached_property
    def head(self) -> HeadGauge:
        """Of what lies beside the blocks."""
        return HeadGauge(self.gauge)


def measure_machine(parent: Checkpoint, recipe: Recipe, *, base_bytes: int) -> Machine:
    """Make one block of each kind of a parent, to be timed, and open the checkpoint."""
    compute = recipe.compute
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    gauge = Gauge(
        parent.shape, parent.config, dtype=getattr(torch, compute.dtype), device=compute.device
    )
    return Machine(gauge, base_bytes, _open_seconds(parent, recipe))


def _open_seconds(parent: Checkpoint, recipe: Recipe) -> float:
    """Seconds of opening the parent; of a large one by the pace of its first tensors."""
    whole, started = model_costs(parent.shape)["params"], time.perf_counter()
    if whole <= OPENED_WEIGHTS:
        compute = recipe.compute
        load_model(parent, dtype=getattr(torch, compute.dtype), device=compute.device)
        return time.perf_counter() - started
    read = 0
    for name in parent.stored:
        if read > OPENED_WEIGHTS:
            break
        read += parent.read(name).clone().numel()
    return (time.perf_counter() - started) * whole / read


@dataclass(frozen=True)
class Outline:
    """One round before it runs.

    Attributes:
        machine: What was measured.
        recipe: All settings.
        settings: Of the round.
        parent: The original parent.
        shape: The model that the round cuts.
        problem: The round's variants and budgets, with scores made up.
        choices: That stand in for those that the search will measure, its own first.
        solve_s: Seconds of finding them.
    """

    machine: Machine
    recipe: Recipe
    settings: Round
    parent: ModelShape
    shape: ModelShape
    problem: Problem
    choices: Sequence[Choice]
    solve_s: float

    @cached_property
    def child(self) -> ModelShape:
        """What the first choice leaves."""
        return self.choices[0].child_shape(self.shape)

    @cached_property
    def changing(self) -> dict[int, list[Variant]]:
        """Block -> the variants that change it."""
        grouped = by_block(self.problem.usable)
        return {i: [v for v in vs if self.changes(v)] for i, vs in grouped.items()}

    def changes(self, variant: Variant) -> bool:
        """Whether a variant is another form of its block."""
        block = self.shape.blocks[variant.block]
        return variant.apply(block) != block

    def taken(self, choices: Sequence[Choice]) -> dict[int, list[Variant]]:
        """Block -> the different variants of some choices that change it."""
        found: dict[int, dict[str, Variant]] = {}
        for variant in (v for choice in choices for v in choice.variants):
            if self.changes(variant):
                found.setdefault(variant.block, {})[variant.key] = variant
        return {block: list(variants.values()) for block, variants in found.items()}

    def each(self, blocks: Iterable[Block], of: Callable[[Block], float]) -> float:
        """A sum over some blocks, those of a kind taken at the mean of their sizes."""
        return sum(len(alike) * of(typical(alike)) for alike in by_mixer(blocks).values())

    @property
    def batch(self) -> int:
        """Sequences that are run at once."""
        return self.recipe.compute.batch_sequences

    @property
    def is_last(self) -> bool:
        """Whether it is the round that quantises its child."""
        return self.settings is self.recipe.rounds[-1]

    @property
    def held_out_length(self) -> int:
        """Tokens of a held-out sequence: those of the first round."""
        return self.recipe.rounds[0].distill.sequence_length


def by_mixer(blocks: Iterable[Block]) -> dict[Mixer, list[Block]]:
    """Blocks by what they do; those that are gone left out."""
    found: dict[Mixer, list[Block]] = {}
    for block in blocks:
        if block.mixer != "none":
            found.setdefault(block.mixer, []).append(block)
    return found


def typical(alike: Sequence[Block]) -> Block:
    """A block of a kind with the means of the sizes that are cut: its time is about their mean.

    Means are multiples of what all sizes are multiples of, as kernels want them.
    """
    means = {}
    for dim in CUT:
        if dim in alike[0].values:
            values = [block.values[dim] for block in alike]
            step = math.gcd(*values)
            means[dim] = step * max(1, round(sum(values) / len(values) / step))
    return alike[0].with_values(means)


def largest(alike: Sequence[Block]) -> Block:
    """A block of a kind with each size that is cut as large as it occurs."""
    most = {d: max(b.values[d] for b in alike) for d in CUT if d in alike[0].values}
    return alike[0].with_values(most)


def outline_rounds(parent: ModelShape, recipe: Recipe, *, machine: Machine) -> list[Outline]:
    """Every round, each around what stands in for the child before it."""
    rounds: list[Outline] = []
    shape = parent
    for settings in recipe.rounds:
        problem = _problem(shape, settings, parent=parent)
        started = time.perf_counter()
        choices = _choices(problem, settings)
        seconds = time.perf_counter() - started
        one = Outline(machine, recipe, settings, parent, shape, problem, choices, seconds)
        rounds.append(one)
        shape = one.child
    return rounds


def _problem(shape: ModelShape, settings: Round, *, parent: ModelShape) -> Problem:
    """The round's program; what serving demands ask for is left out."""
    variants = variants_of(shape, original=parent, settings=settings.library)
    scores = {
        (v.block, v.key): (1 + v.block % KINDS_OF_BLOCKS) * _cut(shape.blocks[v.block], v) ** 2
        for v in variants
    }
    budgets = resolve_budgets(settings.search.budget.costs, parent_costs=model_costs(parent))
    return Problem(shape, by_block(variants), scores=scores, budgets=budgets)


def _cut(block: Block, variant: Variant) -> float:
    """How much of a block's sizes a variant leaves out."""
    if variant.is_none:
        return 1.0
    small = variant.apply(block).values
    return sum(1 - small[d] / v for d, v in block.values.items() if v)


def _choices(problem: Problem, settings: Round) -> list[Choice]:
    """As many as the search would measure, of its kinds."""
    search = settings.search
    limit = min(SOLVE_S, search.time_limit_s)
    _, best = solve_any(
        problem,
        [],
        n_best=search.n_best if search.strategy == "best" else 1,
        min_distance=search.min_distance,
        time_limit_s=limit,
    )
    random = random_choices(problem, count=search.random_choices, seed=0)
    try:
        return [*best, *random, uniform_choice(problem)]
    except InfeasibleError:
        return [*best, *random]
