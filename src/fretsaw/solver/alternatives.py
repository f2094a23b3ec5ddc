"""The best choices where each demand may be met in several ways: of each, one way is taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fretsaw.core.variant import Choice
from fretsaw.solver.budget import Budget, PricedCost
from fretsaw.solver.mip import Problem, best_choices, infeasible

Ways = tuple[int, ...]
"""Which way was taken for each demand."""


@dataclass(frozen=True)
class Terms:
    """One way to meet a demand: costs, and the bounds on them."""

    priced: Sequence[PricedCost]
    budgets: Sequence[Budget]


def under(problem: Problem, terms: Iterable[Terms]) -> Problem:
    """The problem with these costs and bounds beside its own."""
    terms = list(terms)
    priced = [cost for one in terms for cost in one.priced]
    budgets = [budget for one in terms for budget in one.budgets]
    return replace(problem, priced=[*problem.priced, *priced], budgets=[*problem.budgets, *budgets])


def solve_any(
    problem: Problem,
    demands: Sequence[Sequence[Terms]],
    *,
    n_best: int = 1,
    min_distance: int = 1,
    time_limit_s: float = 60.0,
) -> tuple[Ways, list[Choice]]:
    """The ways whose best choice has the least score, and the best choices under them.

    A choice is ``optimal`` only where no other ways could have a better one.

    Args:
        problem: Variants, scores, and the budgets that hold whatever way is taken.
        demands: The ways of each, at least one each; without demands `problem` is solved as it is.
        n_best: How many choices.
        min_distance: Least number of blocks in which two of them differ.
        time_limit_s: For each solve.

    Returns:
        The way of each demand, of equals the first; the choices, as `solve` gives them.

    Raises:
        InfeasibleError: no ways have a choice that meets all budgets; it speaks of the first.
        RunError: a block without a finite score, or a time-out without any answer.
    """
    firsts: dict[Ways, Choice] = {}
    for least, ways in _promising(problem, demands, time_limit_s=time_limit_s):
        if firsts and least >= min(choice.score for choice in firsts.values()):
            break
        found = best_choices(_taken(problem, demands, ways=ways), time_limit_s=time_limit_s)
        if found:
            firsts[ways] = found[0]
    if not firsts:
        raise infeasible(_taken(problem, demands, ways=(0,) * len(demands)))
    best = min(firsts, key=lambda ways: firsts[ways].score)
    choices = [firsts[best]]
    if n_best > 1:
        choices = best_choices(
            _taken(problem, demands, ways=best),
            n_best=n_best,
            min_distance=min_distance,
            time_limit_s=time_limit_s,
        )
    return best, [_bounded(choices[0], firsts.values()), *choices[1:]]


def _taken(problem: Problem, demands: Sequence[Sequence[Terms]], *, ways: Ways) -> Problem:
    return under(problem, (demands[d][way] for d, way in enumerate(ways)))


def _promising(
    problem: Problem, demands: Sequence[Sequence[Terms]], *, time_limit_s: float
) -> list[tuple[float, Ways]]:
    """Ways that may have a choice, each with a bound below its score; the lowest bounds first.

    Where there are several demands, each way is tried alone: beside others it is never better.
    """
    floor = _floor(problem)
    reach = [[floor] * len(ways) for ways in demands]
    if len(demands) > 1:
        reach = [
            [_reach(under(problem, [one]), time_limit_s=time_limit_s) for one in ways]
            for ways in demands
        ]
    bounded = (
        (max((reach[d][way] for d, way in enumerate(ways)), default=floor), ways)
        for ways in itertools.product(*(range(len(ways)) for ways in demands))
    )
    return sorted(one for one in bounded if one[0] < math.inf)


def _floor(problem: Problem) -> float:
    """Sum of the best score of each block: what no budget could better."""
    least: dict[int, float] = {}
    for variant, score in zip(problem.usable, problem.score_vector, strict=True):
        least[variant.block] = min(score, least.get(variant.block, math.inf))
    return math.fsum(least.values())


def _reach(problem: Problem, *, time_limit_s: float) -> float:
    """No choice has a score below this."""
    found = best_choices(problem, time_limit_s=time_limit_s)
    return min((_least(choice) for choice in found), default=math.inf)


def _least(choice: Choice) -> float:
    return choice.score - choice.gap * abs(choice.score)


def _bounded(best: Choice, firsts: Iterable[Choice]) -> Choice:
    """The choice with its gap to what ways that timed out might still have."""
    firsts = list(firsts)
    gap = (best.score - min(map(_least, firsts))) / abs(best.score) if best.score else best.gap
    if gap <= best.gap or all(other.status == "optimal" for other in firsts):
        return best
    return replace(best, status="feasible", gap=gap)
