"""Priced costs as budgets, and the best choice over several problems."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from fretsaw.core.variant import Choice, Variant
from fretsaw.errors import InfeasibleError
from fretsaw.solver import alternatives
from fretsaw.solver.alternatives import Terms, solve_any, under
from fretsaw.solver.budget import Budget, PricedCost
from fretsaw.solver.library import Grid, build_library
from fretsaw.solver.mip import Problem, best_choices, cheapest, solve
from tests.shapes import hybrid_shape

SHAPE = hybrid_shape("MEE*M")
GRID = Grid({"ffn": [16, 32], "top_k": [2], "state": [16, 24]}, ("moe",), {"ffn": 16, "state": 8})
VARIANTS = build_library(SHAPE, SHAPE, grid=GRID)
BY_BLOCK = {b: [v for v in VARIANTS if v.block == b] for b in range(SHAPE.num_blocks)}


def priced(name: str, *, seed: int, fixed: int = 1000) -> PricedCost:
    rng = random.Random(seed)
    return PricedCost(name, fixed, {(v.block, v.key): rng.randint(0, 10**7) for v in VARIANTS})


def problem_with(*budgets: Budget, costs: Sequence[PricedCost], seed: int = 0) -> Problem:
    rng = random.Random(seed)
    scores = {(v.block, v.key): rng.random() for v in VARIANTS}
    return Problem(SHAPE, BY_BLOCK, scores, budgets, costs)


def every_choice(problem: Problem) -> list[tuple[float, dict[str, int]]]:
    """Score and priced costs of every choice with one state."""
    found = []
    for picked in itertools.product(*(BY_BLOCK[b] for b in range(SHAPE.num_blocks))):
        if len({v.values["state"] for v in picked if "state" in v.values}) > 1:
            continue
        costs = {
            p.name: p.fixed + sum(p.of_variant[v.block, v.key] for v in picked)
            for p in problem.priced
        }
        found.append((sum(problem.scores[v.block, v.key] for v in picked), costs))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_priced_costs_are_budgets_like_all_others(seed: int) -> None:
    time, memory = priced("token_ns (x)", seed=seed), priced("gpu_bytes (x)", seed=seed + 50)
    limits = Budget("token_ns (x)", 2.7e7), Budget("gpu_bytes (x)", 2.8e7)
    problem = problem_with(*limits, costs=[time, memory], seed=seed)
    (choice,) = solve(problem)
    fitting = [
        score
        for score, costs in every_choice(problem)
        if all(costs[budget.cost] <= budget.limit for budget in limits)
    ]
    assert choice.score == pytest.approx(min(fitting), abs=1e-12)
    assert problem.meets_budgets(choice)
    picked = [(v.block, v.key) for v in choice.variants]
    assert choice.costs["token_ns (x)"] == 1000 + sum(time.of_variant[key] for key in picked)


def test_the_least_of_a_cost_is_found_within_the_other_budgets() -> None:
    time, memory = priced("token_ns (x)", seed=5), priced("gpu_bytes (x)", seed=6)
    problem = problem_with(Budget("gpu_bytes (x)", 2.0e7), costs=[time, memory])
    fitting = [
        costs["token_ns (x)"]
        for _, costs in every_choice(problem)
        if costs["gpu_bytes (x)"] <= 2.0e7
    ]
    choice = cheapest(problem, cost="token_ns (x)")
    assert choice is not None
    assert choice.costs["token_ns (x)"] == min(fitting)
    assert min(fitting) > min(costs["token_ns (x)"] for _, costs in every_choice(problem))


def test_nothing_is_cheapest_where_nothing_fits() -> None:
    problem = problem_with(Budget("token_ns (x)", 10), costs=[priced("token_ns (x)", seed=3)])
    assert cheapest(problem, cost="token_ns (x)") is None


def test_a_time_that_cannot_be_met_is_named_in_full_and_rounded() -> None:
    cost = PricedCost(
        "token_ns (8xB200 tp2)", 1_000_000, {(v.block, v.key): 200_000 for v in VARIANTS}
    )
    problem = problem_with(Budget(cost.name, 1.5e6, "1.5 ms; the parent takes 3 ms"), costs=[cost])
    with pytest.raises(InfeasibleError) as caught:
        solve(problem)
    assert caught.value.message == (
        "no choice meets the budget `token_ns (8xB200 tp2) <= 1.5 ms; the parent takes 3 ms`: "
        "the smallest model in the library has 2,000,000 (2 ms)"
    )


def terms(name: str, limit: float, *, seed: int = 1) -> Terms:
    return Terms([priced(name, seed=seed)], [Budget(name, limit)])


def test_without_demands_the_problem_is_solved_as_it_is() -> None:
    problem = problem_with(costs=[])
    assert solve_any(problem, [], n_best=2) == ((), solve(problem, n_best=2))


def test_the_way_with_the_best_choice_is_taken() -> None:
    ways = [terms("token_ns (x)", limit) for limit in (10, 1.1e7, 2.5e7)]
    problem = problem_with(costs=[])
    taken, choices = solve_any(problem, [ways], n_best=3)
    loose = under(problem, [ways[2]])
    assert taken == (2,)
    assert choices == solve(loose, n_best=3)
    assert choices[0].score < solve(under(problem, [ways[1]]))[0].score


def test_of_equal_ways_the_first_is_taken() -> None:
    ways = [terms("token_ns (x)", 3e7)] * 2
    assert solve_any(problem_with(costs=[]), [ways])[0] == (0,)


@pytest.mark.parametrize("seed", range(4))
def test_several_demands_are_met_together_by_the_best_of_all_ways(seed: int) -> None:
    rng = random.Random(seed)
    demands = [
        [
            terms(f"token_ns ({d}, {w})", rng.uniform(1.8e7, 3.0e7), seed=10 * seed + 3 * d + w)
            for w in range(3)
        ]
        for d in range(2)
    ]
    problem = problem_with(costs=[], seed=seed)
    scores = {
        ways: [c.score for c in best_choices(under(problem, [demands[0][i], demands[1][j]]))]
        for ways in itertools.product(range(3), range(3))
        for i, j in [ways]
    }
    feasible = {ways: found[0] for ways, found in scores.items() if found}
    taken, (choice,) = solve_any(problem, demands)
    assert choice.score == min(feasible.values())
    assert feasible[taken[0], taken[1]] == choice.score


def test_demands_that_cannot_be_met_say_what_the_first_way_lacks() -> None:
    ways = [terms("token_ns (x)", 10), terms("token_ns (y)", 10)]
    with pytest.raises(InfeasibleError, match=r"token_ns \(x\)"):
        solve_any(problem_with(costs=[]), [ways])


def test_demands_that_exclude_each_other_are_named() -> None:
    # Each can be met alone; no choice is below the middle of both.
    time = priced("token_ns (x)", seed=1)
    most = {key: 10**7 - cost for key, cost in time.of_variant.items()}
    least = PricedCost("token_ns (y)", 1000, most)
    demands = [
        [Terms([time], [Budget("token_ns (x)", 2.0e7)])],
        [Terms([least], [Budget("token_ns (y)", 2.0e7)])],
    ]
    with pytest.raises(InfeasibleError, match="no choice meets these budgets together"):
        solve_any(problem_with(costs=[]), demands)


def test_what_a_timed_out_way_might_still_have_is_in_the_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = tuple(Variant(b) for b in range(2))
    answers = iter([Choice(none, 20.0, {}, "feasible", 0.5), Choice(none, 15.0, {}, "optimal")])
    monkeypatch.setattr(alternatives, "best_choices", lambda problem, **_: [next(answers)])
    ways = [terms("token_ns (x)", 1e7)] * 2
    taken, (choice,) = solve_any(problem_with(costs=[]), [ways])
    assert (taken, choice.status, choice.score) == ((1,), "feasible", 15.0)
    assert choice.gap == pytest.approx(1 / 3)
