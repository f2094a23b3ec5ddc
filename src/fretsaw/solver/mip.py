"""One variant per block, least summed score, under any number of budgets: a mixed-integer program.

    minimise   sum_b,v score[b,v] x[b,v]
    subject to sum_v x[b,v] = 1                          for each block b
               sum_b,v cost_k[b,v] x[b,v] <= limit_k     for each budget k
               the Mamba state is one value for the whole model
               at least one attention block stays

Source: Puzzle, arXiv:2411.19146, section 4; the last two constraints: every stock engine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple, get_args

import numpy as np

from fretsaw.core.shape import MODEL_SCOPE, Mixer, ModelShape
from fretsaw.core.tables import ScoreKey
from fretsaw.core.variant import Choice, Variant
from fretsaw.errors import InfeasibleError, RunError
from fretsaw.pricing.memory import Costs, costs_by_block, fixed_costs
from fretsaw.solver.budget import Budget, PricedCost, explain_infeasible
from fretsaw.solver.program import Answer, Floats, Limit, Program

RANDOM_GAP = 0.02
"""Random choices need not be the best under their random scores."""

TIE_COSTS = ("params", "active_params")
"""Of choices with equal scores the one with less of the budgets' costs and of these wins."""


@dataclass(frozen=True)
class Problem:
    """Variants with scores, and the budgets.

    Attributes:
        shape: The model that is cut.
        variants: Block -> its variants.
        scores: (block, variant key) -> score; smaller = better.
        budgets: Upper bounds on whole-model costs.
        priced: Costs beside those that follow from the tensor table.
    """

    shape: ModelShape
    variants: Mapping[int, Sequence[Variant]]
    scores: Mapping[ScoreKey, float]
    budgets: Sequence[Budget]
    priced: Sequence[PricedCost] = ()

    @cached_property
    def usable(self) -> list[Variant]:
        """Variants with a finite score, in block order.

        Raises:
            RunError: a block has none.
        """
        usable: list[Variant] = []
        for block in range(self.shape.num_blocks):
            found = [v for v in self.variants.get(block, ()) if math.isfinite(self._score(v))]
            if not found:
                raise RunError(
                    f"block {block} ({self.shape.blocks[block].mixer}) has no variant with a "
                    "finite score",
                    "look at its rows in 04-score/scores.jsonl; a NaN there is a damaged weight "
                    "or an overflow",
                )
            usable += found
        return usable

    @cached_property
    def dropped(self) -> list[Variant]:
        """Variants left out because their score is missing or not finite."""
        return [v for vs in self.variants.values() for v in vs if not math.isfinite(self._score(v))]

    def _score(self, variant: Variant) -> float:
        return self.scores.get((variant.block, variant.key), math.nan)

    @cached_property
    def score_vector(self) -> Floats:
        """Score of each usable variant."""
        return np.array([self._score(v) for v in self.usable])

    @cached_property
    def costs(self) -> list[Costs]:
        """Costs of each usable variant, exact."""
        blocks = [v.apply(self.shape.blocks[v.block]) for v in self.usable]
        keys = [(block.mixer, *sorted(block.values.items())) for block in blocks]
        distinct = dict(zip(keys, blocks, strict=True))
        costs = costs_by_block(self.shape.with_blocks(distinct.values()))
        by_key = dict(zip(distinct, costs, strict=True))
        return [
            by_key[key] | {p.name: p.of_variant[v.block, v.key] for p in self.priced}
            for key, v in zip(keys, self.usable, strict=True)
        ]

    @cached_property
    def fixed(self) -> Costs:
        """Costs of what is no block, the child's own head included."""
        fixed = fixed_costs(replace(self.shape, is_tied=False))
        return fixed | {p.name: p.fixed for p in self.priced}

    def limit(self, budget: Budget) -> Limit:
        """A budget as a bound on the summed costs of the blocks."""
        weights = np.array([costs[budget.cost] for costs in self.costs], dtype=np.int64)
        return Limit(weights, math.floor(budget.limit) - self.fixed[budget.cost])

    def choice(self, picked: Sequence[int], *, status: str, gap: float = 0.0) -> Choice:
        """The choice of these usable variants, its score and costs summed anew."""
        costs = {n: own + sum(self.costs[i][n] for i in picked) for n, own in self.fixed.items()}
        score = math.fsum(self.score_vector[i] for i in picked)
        return Choice(tuple(self.usable[i] for i in picked), score, costs, status, gap)

    def meets_budgets(self, choice: Choice) -> bool:
        """Whether the choice's costs are within every budget."""
        return all(choice.costs[b.cost] <= b.limit for b in self.budgets)


def solve(
    problem: Problem, *, n_best: int = 1, min_distance: int = 1, time_limit_s: float = 60.0
) -> list[Choice]:
    """The best choice, and further ones that differ from all earlier in `min_distance` blocks.

    Of choices with equal scores the one with smaller costs comes first; the same problem always
    has the same answer. A choice is ``optimal`` only where that is proven; a time-out gives
    ``feasible`` with its gap, relative to the score.

    Args:
        problem: What to choose from.
        n_best: How many choices; fewer come back where there are no more, or none in time.
        min_distance: Least number of blocks in which two of them differ.
        time_limit_s: For each solve.

    Raises:
        InfeasibleError: no choice meets the budgets; it names them and the nearest values.
        RunError: a block without a finite score, or a time-out without any answer.
    """
    found = best_choices(
        problem, n_best=n_best, min_distance=min_distance, time_limit_s=time_limit_s
    )
    if not found:
        raise infeasible(problem)
    return found


def best_choices(
    problem: Problem, *, n_best: int = 1, min_distance: int = 1, time_limit_s: float = 60.0
) -> list[Choice]:
    """As `solve`, but empty where no choice meets the budgets.

    Raises:
        RunError: a block without a finite score, or a time-out without any answer.
    """
    program, limits = _program(problem), [problem.limit(b) for b in problem.budgets]
    found: list[Choice] = []
    for _ in range(n_best):
        answer = program.minimise(
            problem.score_vector,
            limits=limits,
            second=_relative_costs(problem),
            time_limit_s=time_limit_s,
        )
        if not answer.picked:
            break
        found.append(_choice(problem, answer))
        program.forbid(answer.picked, min_distance=min_distance)
    if not found and answer.status == "timeout":
        raise RunError(
            f"the search found no answer in {time_limit_s:g} s",
            "raise search.time_limit_s, or make the library smaller",
        )
    return found


def cheapest(problem: Problem, *, cost: str) -> Choice | None:
    """The choice with the least of a cost within the budgets; None if nothing meets them."""
    weights = np.array([costs[cost] for costs in problem.costs], dtype=float)
    limits = [problem.limit(b) for b in problem.budgets]
    answer = _program(problem).minimise(weights, limits=limits)
    return problem.choice(answer.picked, status=answer.status) if answer.picked else None


def random_choices(problem: Problem, *, count: int, seed: int) -> list[Choice]:
    """Different random choices that meet the budgets and nearly use them: random scores, solved.

    Each variant's random score falls with its size, so that the budget is filled. Fewer come back
    where there are no more.

    Args:
        problem: What to choose from; its scores are not looked at but to sum them up.
        count: How many.
        seed: Of the random scores.
    """
    rng = np.random.default_rng(seed)
    program, limits = _program(problem), [problem.limit(b) for b in problem.budgets]
    size = _relative_costs(problem)
    choices: list[Choice] = []
    while len(choices) < count:
        answer = program.minimise(
            -rng.exponential(size=len(size)) * size, limits=limits, relative_gap=RANDOM_GAP
        )
        if not answer.picked:
            break
        choices.append(problem.choice(answer.picked, status="given"))
        program.forbid(answer.picked, min_distance=1)
    return choices


def uniform_choice(problem: Problem) -> Choice:
    """The largest choice within the budgets in which all blocks of a kind take the same variant.

    Largest: most routed parameters per token (top-k x width), then most parameters. It shows what a
    search is worth.

    Raises:
        InfeasibleError: none meets the budgets.
    """
    best = max(_uniform_picks(problem), key=itemgetter(0), default=None)
    if best is None:
        raise InfeasibleError(
            "no choice with equal blocks meets the budgets "
            + ", ".join(f"`{budget}`" for budget in problem.budgets),
            "add sizes to the library that all blocks have, or raise the budget",
        )
    return problem.choice(best[1], status="given")


def _uniform_picks(problem: Problem) -> Iterator[tuple[tuple[float, float], list[int]]]:
    """How large each choice with equal blocks is, and its items; those within the budgets alone."""
    kinds = [problem.shape.indices(mixer) for mixer in get_args(Mixer)]
    columns = [_equal_columns(problem, blocks) for blocks in kinds if blocks]
    fixed = problem.fixed
    for combination in itertools.product(*columns):
        items = [i for column in combination for i in column.items]

        def total(cost: str, combination: Sequence[_Column] = combination) -> float:
            return fixed[cost] + sum(column.costs[cost] for column in combination)

        if all(total(b.cost) <= b.limit for b in problem.budgets):
            by_block = sorted(items, key=lambda i: problem.usable[i].block)
            yield (total("active_routed_params"), total("params")), by_block


class _Column(NamedTuple):
    """The same variant in all blocks of a kind, and what they cost together."""

    items: Sequence[int]
    costs: Mapping[str, float]


def _equal_columns(problem: Problem, blocks: Sequence[int]) -> list[_Column]:
    items = {(v.block, v.key): i for i, v in enumerate(problem.usable)}
    names = {*(b.cost for b in problem.budgets), "active_routed_params", "params"}
    columns = []
    for variant in problem.usable:
        taken = [items.get((block, variant.key)) for block in blocks]
        found = [i for i in taken if i is not None]
        if variant.block == blocks[0] and not variant.is_none and len(found) == len(blocks):
            costs = {name: sum(problem.costs[i][name] for i in found) for name in names}
            columns.append(_Column(found, costs))
    return columns


def _program(problem: Problem) -> Program:
    blocks = [v.apply(problem.shape.blocks[v.block]) for v in problem.usable]
    shared = [[block.sizes.get(dim) for block in blocks] for dim in MODEL_SCOPE]
    program = Program(
        [v.block for v in problem.usable],
        shared=[values for values in shared if len({v for v in values if v is not None}) > 1],
    )
    if problem.shape.indices("attention"):
        program.keep_one(np.array([block.mixer == "attention" for block in blocks]))
    return program


def _relative_costs(problem: Problem) -> Floats:
    """The budgets' costs and two more of each usable variant, each over its largest, summed."""
    total = np.zeros(len(problem.usable))
    for name in dict.fromkeys((*(b.cost for b in problem.budgets), *TIE_COSTS)):
        values = np.array([costs[name] for costs in problem.costs], dtype=float)
        total += values / max(1.0, float(values.max()))
    return total


def _choice(problem: Problem, answer: Answer) -> Choice:
    choice = problem.choice(answer.picked, status=answer.status)
    if answer.status == "optimal":
        return choice
    gap = answer.gap / abs(choice.score) if choice.score else answer.gap
    return problem.choice(answer.picked, status=answer.status, gap=gap)


def infeasible(problem: Problem) -> InfeasibleError:
    """The error that names the budgets which no choice meets, and the nearest values."""

    def least(cost: str, others: Sequence[Budget]) -> int | None:
        choice = cheapest(replace(problem, budgets=others), cost=cost)
        return None if choice is None else int(choice.costs[cost])

    error = explain_infeasible(problem.budgets, least=least)
    if problem.dropped:
        error.hint += f"; {len(problem.dropped)} variants were left out: their score is not finite"
    return error
