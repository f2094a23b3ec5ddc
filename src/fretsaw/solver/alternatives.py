"""The best choices over several problems with the same scores: layouts of which one is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fretsaw.core.variant import Choice
from fretsaw.errors import InfeasibleError
from fretsaw.solver.mip import Problem, solve


def solve_any(
    problems: Sequence[Problem],
    *,
    n_best: int = 1,
    min_distance: int = 1,
    time_limit_s: float = 60.0,
) -> tuple[int, list[Choice]]:
    """The problem whose best choice has the least score, and its best choices.

    A choice is ``optimal`` only where no other problem could have a better one.

    Args:
        problems: The same variants and scores under other budgets; at least one.
        n_best: How many choices.
        min_distance: Least number of blocks in which two of them differ.
        time_limit_s: For each solve.

    Returns:
        Index of the problem, of equals the first; its choices, as `solve` gives them.

    Raises:
        InfeasibleError: none has a choice that meets its budgets; it speaks of the first one.
        RunError: a block without a finite score, or a time-out without any answer.
    """
    firsts: dict[int, Choice] = {}
    errors: list[InfeasibleError] = []
    for index, problem in enumerate(problems):
        try:
            (firsts[index],) = solve(problem, time_limit_s=time_limit_s)
        except InfeasibleError as error:
            errors.append(error)
    if not firsts:
        raise errors[0]
    winner = min(firsts, key=lambda index: firsts[index].score)
    choices = [firsts[winner]]
    if n_best > 1:
        choices = solve(
            problems[winner], n_best=n_best, min_distance=min_distance, time_limit_s=time_limit_s
        )
    return winner, [_bounded(choices[0], firsts.values()), *choices[1:]]


def _bounded(best: Choice, firsts: Iterable[Choice]) -> Choice:
    """The choice with its gap to what a problem that timed out might still have."""
    reach = min(other.score - other.gap * abs(other.score) for other in firsts)
    gap = (best.score - reach) / abs(best.score) if best.score else best.gap
    if gap <= best.gap or all(other.status == "optimal" for other in firsts):
        return best
    return replace(best, status="feasible", gap=gap)
