"""The search: its own rules, ties, time-outs, rounding, errors and baselines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import OptimizeResult, milp

from fretsaw.core.shape import Mixer, ModelShape
from fretsaw.core.variant import Choice, Variant
from fretsaw.errors import InfeasibleError, RecipeError, RunError
from fretsaw.pricing.memory import model_costs
from fretsaw.solver import program
from fretsaw.solver.budget import Budget, resolve_budgets
from fretsaw.solver.library import Grid, build_library
from fretsaw.solver.mip import Problem, random_choices, solve, uniform_choice
from fretsaw.solver.program import Limit, Program
from tests.shapes import hybrid_shape, published_shape

STEPS = {"ffn": 16, "state": 8}
FFN, TOP_K = (16, 32), (1, 2, 3, 4, 5)


def problem_of(
    shape: ModelShape,
    *,
    score: Callable[[Variant], float],
    budget: Mapping[str, str | int | float] | None = None,
    none: Sequence[Mixer] = (),
    **values: Sequence[int | str],
) -> Problem:
    variants = build_library(shape, shape, grid=Grid(values, none, STEPS))
    return Problem(
        shape,
        {b: [v for v in variants if v.block == b] for b in range(shape.num_blocks)},
        {(v.block, v.key): score(v) for v in variants},
        resolve_budgets(budget or {}, parent_costs=model_costs(shape)),
    )


def lost(variant: Variant) -> float:
    """A score that grows with what is cut, more in later blocks."""
    cut = {"ffn": 48, "top_k": 6, "state": 32}
    share = sum(1 - value / cut[dim] for dim, value in variant.values.items())
    return (1 + variant.block) * (10.0 if variant.is_none else share)


def values_of(choice: Choice, dim: str) -> list[int]:
    return [v.values[dim] for v in choice.variants if dim in v.values]


def test_without_a_budget_nothing_is_cut() -> None:
    problem = problem_of(hybrid_shape("MEE*"), score=lost, ffn=FFN, top_k=TOP_K, state=[16])
    (choice,) = solve(problem)
    assert choice.score == 0
    assert choice.costs == model_costs(problem.shape)
    assert choice.child_shape(problem.shape).blocks == problem.shape.blocks


def test_the_head_that_a_child_of_a_tied_parent_gets_is_paid_for() -> None:
    shape = hybrid_shape("ME*", tie_word_embeddings=True)
    (choice,) = solve(problem_of(shape, score=lost, ffn=FFN))
    assert choice.costs == model_costs(choice.child_shape(shape))
    assert choice.costs["params"] - model_costs(shape)["params"] == math.prod(
        shape.sizes[dim] for dim in ("vocab", "hidden")
    )


def test_the_least_important_blocks_give_way_first() -> None:
    budget = {"moe_params": "67%", "active_experts": "75%"}
    shape = hybrid_shape("EEE*")
    problem = problem_of(shape, score=lost, budget=budget, ffn=FFN, top_k=TOP_K)
    (choice,) = solve(problem)
    widths, experts = values_of(choice, "ffn"), values_of(choice, "top_k")
    assert sum(widths) == 96
    assert widths == sorted(widths)
    assert sum(experts) == 13
    assert experts == sorted(experts)


def test_all_mamba_blocks_keep_the_same_state() -> None:
    # Block by block the first two would keep 32 and the last would take 16.
    def score(variant: Variant) -> float:
        wanted = 32 if variant.block < 2 else 16
        return abs(variant.values.get("state", wanted) - wanted)

    (choice,) = solve(problem_of(hybrid_shape("MMM*"), score=score, state=[16, 24]))
    assert values_of(choice, "state") == [32, 32, 32]
    assert choice.score == 16


def test_a_mamba_block_may_go_while_the_others_stay() -> None:
    def score(variant: Variant) -> float:
        return float(variant.is_none != (variant.block == 1)) + lost(variant) / 1000

    (choice,) = solve(problem_of(hybrid_shape("MMM*"), score=score, none=["mamba"], state=[16]))
    assert [v.is_none for v in choice.variants] == [False, True, False, False]
    assert values_of(choice, "state") == [32, 32]


def test_one_attention_block_stays_whatever_the_scores_say() -> None:
    shape = hybrid_shape("*E*E*")
    problem = problem_of(shape, score=lambda v: -float(v.is_none), none=["attention", "moe"])
    (choice,) = solve(problem)
    kept = [b.mixer for b in choice.child_shape(shape).blocks]
    assert kept == ["attention"]


def test_a_model_without_attention_can_be_cut_too() -> None:
    problem = problem_of(hybrid_shape("ME"), score=lost, budget={"moe_params": "50%"}, ffn=FFN)
    assert values_of(solve(problem)[0], "ffn") == [16]


def test_of_equal_scores_the_cheaper_wins_the_same_each_time() -> None:
    shape = hybrid_shape("MEE*-")
    problem = problem_of(
        shape, score=lambda v: 1.0, none=["mlp"], ffn=FFN, top_k=TOP_K, state=[16, 24]
    )
    first, second = (solve(problem)[0] for _ in range(2))
    assert first == second
    assert [v.key for v in first.variants] == [
        "state=16",
        "ffn=16,top_k=1",
        "ffn=16,top_k=1",
        "same",
        "none",
    ]


def test_scores_that_differ_little_beside_a_large_one_still_decide() -> None:
    def score(variant: Variant) -> float:
        if variant.is_none:
            return 1e3
        return 1e-4 if variant.values.get("ffn") == 32 else 0.0

    shape = hybrid_shape("EE*")
    (choice,) = solve(problem_of(shape, score=score, none=["moe"], ffn=[32]))
    assert values_of(choice, "ffn") == [48, 48]


def test_a_budget_holds_to_the_last_parameter() -> None:
    shape = hybrid_shape("MEEE*E")
    for cost in ("params", "active_params", "bytes_nvfp4", "bytes_bf16"):
        fits = problem_of(shape, score=lost, ffn=FFN, top_k=TOP_K, budget={cost: "99%"})
        least = solve(fits)[0].costs[cost]
        exact = Problem(fits.shape, fits.variants, fits.scores, [Budget(cost, least)])
        assert solve(exact)[0].costs[cost] == least
        below = Problem(fits.shape, fits.variants, fits.scores, [Budget(cost, least - 1)])
        assert solve(below)[0].costs[cost] < least


def test_a_solver_that_breaks_a_budget_by_rounding_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget_row = 3 + 1  # after three blocks and the row that keeps an attention block

    def careless(*args: Any, constraints: Any, **kwargs: Any) -> OptimizeResult:
        constraints.ub = np.array(constraints.ub)
        constraints.ub[budget_row] *= 1.2
        return milp(*args, constraints=constraints, **kwargs)

    problem = problem_of(
        hybrid_shape("EE*"), score=lost, ffn=FFN, top_k=TOP_K, budget={"active_experts": 9}
    )
    right = solve(problem)[0]
    monkeypatch.setattr(program, "milp", careless)
    assert solve(problem)[0] == right


@pytest.mark.parametrize(("solver_status", "gap"), [(1, 0.25), (1, 0.0), (0, 0.25)])
def test_an_answer_that_is_not_proven_is_not_called_optimal(
    monkeypatch: pytest.MonkeyPatch, solver_status: int, gap: float
) -> None:
    def stopped(*args: Any, **kwargs: Any) -> OptimizeResult:
        result = milp(*args, **kwargs)
        result.status = solver_status
        result.mip_dual_bound = result.fun - gap * program.OBJECTIVE_SCALE
        return result

    problem = problem_of(hybrid_shape("EE*"), score=lost, ffn=FFN, budget={"moe_params": "67%"})
    monkeypatch.setattr(program, "milp", stopped)
    (choice,) = solve(problem)
    spread = lost(Variant(1, {"ffn": 16, "top_k": 6}))
    assert choice.status == "feasible"
    assert choice.gap == pytest.approx(gap * spread / choice.score)


def test_a_time_out_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    late = OptimizeResult(x=None, status=1, message="time")
    monkeypatch.setattr(program, "milp", lambda *a, **k: late)
    with pytest.raises(RunError, match="no answer in 3 s") as caught:
        solve(problem_of(hybrid_shape("E*"), score=lost, ffn=FFN), time_limit_s=3)
    assert "time_limit_s" in caught.value.hint


def test_a_solver_that_fails_is_not_taken_for_an_impossible_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = OptimizeResult(x=None, status=4, message="numerical trouble")
    monkeypatch.setattr(program, "milp", lambda *a, **k: failed)
    with pytest.raises(RunError, match="numerical trouble"):
        solve(problem_of(hybrid_shape("E*"), score=lost, ffn=FFN))


def test_a_block_without_a_finite_score_is_named() -> None:
    def score(variant: Variant) -> float:
        return math.nan if variant.block == 1 else 0.0

    with pytest.raises(RunError, match=r"block 1 \(moe\) has no variant with a finite score"):
        solve(problem_of(hybrid_shape("MEE*"), score=score, ffn=FFN))


def test_single_variants_without_a_finite_score_are_left_out_and_told() -> None:
    bad = {"ffn=16,top_k=6": math.inf, "ffn=32,top_k=6": math.nan}
    problem = problem_of(
        hybrid_shape("E*"), score=lambda v: bad.get(v.key, 1.0), ffn=FFN, none=["moe"]
    )
    del problem.scores[1, "same"]  # type: ignore[attr-defined]
    assert [v.key for v in problem.dropped] == ["ffn=32,top_k=6", "ffn=16,top_k=6", "same"]
    with pytest.raises(RunError, match="block 1"):
        solve(problem)


def test_the_error_tells_of_variants_left_out() -> None:
    problem = problem_of(
        hybrid_shape("E*"),
        score=lambda v: math.nan if v.values.get("ffn") == 16 else 0.0,
        ffn=FFN,
        budget={"moe_params": "34%"},
    )
    with pytest.raises(InfeasibleError) as caught:
        solve(problem)
    assert "1 variants were left out" in caught.value.hint


def test_an_impossible_budget_names_the_nearest_value() -> None:
    shape = published_shape("super")
    problem = problem_of(shape, score=lambda v: 0.0, budget={"params": "60B"}, ffn=[1280])
    with pytest.raises(InfeasibleError) as caught:
        solve(problem)
    value = 120_668_707_840 - 40 * (2688 - 1280) * 1_048_576
    assert caught.value.message == (
        "no choice meets the budget `params <= 60B`: "
        f"the smallest model in the library has {value:,} (61.6B)"
    )
    assert f"raise the budget to params {value:,}" in caught.value.hint


@pytest.mark.parametrize("limit", ["60", 60, "7"])
def test_u13_a_budget_of_a_few_was_probably_a_share(limit: str | int) -> None:
    problem = problem_of(
        published_shape("super"), score=lambda v: 0.0, budget={"moe_params": limit}, ffn=[1280]
    )
    with pytest.raises(InfeasibleError) as caught:
        solve(problem)
    assert caught.value.hint.startswith(f"did you mean moe_params: {limit}%? Else add smaller")


def test_u13_a_share_or_a_large_number_was_meant() -> None:
    for limit in ("7%", "6B"):
        problem = problem_of(
            published_shape("super"), score=lambda v: 0.0, budget={"moe_params": limit}, ffn=[1280]
        )
        with pytest.raises(InfeasibleError) as caught:
            solve(problem)
        assert caught.value.hint.startswith("add smaller")


def test_budgets_that_exclude_each_other_are_named_with_their_nearest_values() -> None:
    # The block can have few experts or thin ones, not both.
    variants = {
        0: [Variant(0, {"ffn": 48, "top_k": 1}), Variant(0, {"ffn": 16, "top_k": 6})],
        1: [Variant(1)],
    }
    shape = hybrid_shape("E*")
    scores = {(v.block, v.key): 0.0 for vs in variants.values() for v in vs}
    budgets = [
        Budget("active_experts", 3),
        Budget("kv_bytes_per_token", 1e9),
        Budget("moe_params", 8 * 2 * 16 * 32, "32 wide"),
    ]
    with pytest.raises(InfeasibleError) as caught:
        solve(Problem(shape, variants, scores, budgets))
    assert caught.value.message == (
        "no choice meets these budgets together: `active_experts <= 3`, `moe_params <= 32 wide`"
    )
    assert caught.value.hint.startswith(
        f"raise active_experts to 6 or raise moe_params to {8 * 2 * 16 * 48:,}"
    )


def test_choices_that_are_asked_for_in_vain_do_not_come() -> None:
    problem = problem_of(hybrid_shape("E*"), score=lost, ffn=FFN)
    found = solve(problem, n_best=10)
    assert [v.values["ffn"] for c in found for v in c.variants[:1]] == [48, 32, 16]
    assert len(solve(problem, n_best=10, min_distance=2)) == 1


def test_random_choices_differ_meet_the_budget_and_use_it() -> None:
    budget = {"moe_params": "60%", "active_experts": "50%"}
    problem = problem_of(
        hybrid_shape("E" * 20 + "*"), score=lost, budget=budget, ffn=FFN, top_k=TOP_K
    )
    choices = random_choices(problem, count=6, seed=1)
    assert len({tuple(v.key for v in c.variants) for c in choices}) == 6
    assert all(problem.meets_budgets(c) for c in choices)
    limits = {b.cost: b.limit for b in problem.budgets}
    use = [c.costs[name] / limit for c in choices for name, limit in limits.items()]
    assert np.mean(use) > 0.97
    assert [c.variants for c in random_choices(problem, count=6, seed=1)] == [
        c.variants for c in choices
    ]
    assert random_choices(problem, count=6, seed=2) != choices
    best = solve(problem)[0].score
    assert all(best <= c.score for c in choices)
    assert len({c.score for c in choices}) > 3


def test_random_choices_without_a_budget_differ_too() -> None:
    problem = problem_of(hybrid_shape("EE*"), score=lost, ffn=FFN, top_k=TOP_K)
    assert len({c.score for c in random_choices(problem, count=5, seed=0)}) > 1
    assert len(random_choices(problem_of(hybrid_shape("E*"), score=lost), count=5, seed=0)) == 1


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({}, (48, 6)),
        ({"moe_params": "75%"}, (32, 6)),
        ({"active_experts": "50%"}, (48, 3)),
        ({"moe_params": "67%", "active_experts": "50%"}, (32, 3)),
        ({"active_routed_params": "45%"}, (32, 4)),
    ],
)
def test_the_uniform_choice_is_the_largest_that_fits(
    budget: dict[str, str], expected: tuple[int, int]
) -> None:
    problem = problem_of(
        hybrid_shape("MEEM*E"), score=lost, budget=budget, ffn=FFN, top_k=TOP_K, state=[24, 16]
    )
    choice = uniform_choice(problem)
    assert set(values_of(choice, "ffn")) == {expected[0]}
    assert set(values_of(choice, "top_k")) == {expected[1]}
    assert set(values_of(choice, "state")) == {32}
    assert choice.score >= solve(problem)[0].score
    assert problem.meets_budgets(choice)


def test_the_uniform_choice_cuts_the_state_where_it_must() -> None:
    problem = problem_of(
        hybrid_shape("MME*"), score=lost, budget={"state_bytes": "80%"}, state=[24, 16]
    )
    assert values_of(uniform_choice(problem), "state") == [24, 24]


def test_a_uniform_choice_that_does_not_exist_is_an_error() -> None:
    problem = problem_of(hybrid_shape("E*"), score=lost, budget={"moe_params": "30%"}, ffn=FFN)
    with pytest.raises(InfeasibleError, match="equal blocks meets the budgets `moe_params <= 30%`"):
        uniform_choice(problem)


def test_blocks_that_differ_already_have_a_uniform_choice_of_what_all_can_be() -> None:
    shape = hybrid_shape("EE*")
    thin = shape.with_blocks([shape.blocks[0].with_values({"ffn": 32}), *shape.blocks[1:]])
    problem = problem_of(thin, score=lost, ffn=FFN)
    assert values_of(uniform_choice(problem), "ffn") == [32, 32]


@pytest.mark.parametrize(
    ("value", "limit"),
    [("75%", 75), ("57%", 57), ("33.3%", 33.3), ("12k", 12_000), (40, 40), ("1_000", 1000)],
)
def test_budgets_resolve_exactly(value: str | int, limit: float) -> None:
    (budget,) = resolve_budgets({"params": value}, parent_costs={"params": 100})
    assert budget.limit == limit


def test_every_whole_percentage_is_exact() -> None:
    for percent, parent in itertools.product(range(101), (100, 112_742_891_520, 7 * 10**11 + 100)):
        (budget,) = resolve_budgets({"params": f"{percent}%"}, parent_costs={"params": parent})
        assert math.floor(budget.limit) == percent * parent // 100


def test_byte_budgets_take_byte_units() -> None:
    (budget,) = resolve_budgets({"bytes_nvfp4": "44GiB"}, parent_costs={})
    assert budget.limit == 44 * 2**30


@pytest.mark.parametrize(
    ("budget", "message", "hint"),
    [
        ({"moe_param": "75%"}, "unknown cost 'moe_param'", "'moe_params'"),
        ({"latency": 3}, "unknown cost 'latency'", "known: params"),
        ({"params": 0.75}, "params is 0.75", '"75%"'),
        ({"params": "much"}, "'much'", "known units"),
        ({"params": "7x%"}, "'7x%'", "62%"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(
    budget: dict[str, str | int | float], message: str, hint: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        resolve_budgets(budget, parent_costs={"params": 100})
    assert message in caught.value.message
    assert hint in caught.value.hint


def least_of_table(scores: npt.NDArray[np.float64], *, weights: list[int], bound: int) -> float:
    """Least sum of one score per row, by the table of all partial sums of weights."""
    table = np.full(bound + 1, math.inf)
    table[0] = 0.0
    for row in scores:
        taken = np.full(bound + 1, math.inf)
        for score, weight in zip(row, weights, strict=True):
            taken[weight:] = np.minimum(taken[weight:], table[: bound + 1 - weight] + score)
        table = taken
    return float(table.min())


@pytest.mark.parametrize("seed", range(3))
def test_small_scores_beside_a_large_one_are_still_proven(seed: int) -> None:
    """Forty blocks, by dynamic programming; one score is ten million times the others."""
    rng = np.random.default_rng(seed)
    weights = [0, 1, 2, 3, 5, 8]
    scores = rng.lognormal(sigma=0.3, size=(40, 1)) * (1 - np.array(weights) / 8) ** 2
    scores *= 1 + 0.1 * rng.random(scores.shape)
    scores[7, 0] = 1e7
    least = least_of_table(scores, weights=weights, bound=137)
    solver = Program(np.repeat(np.arange(40), 6).tolist(), shared=[])
    answer = solver.minimise(scores.ravel(), limits=[Limit(np.tile(weights, 40), 137)])
    assert answer.status == "optimal"
    assert sum(scores.ravel()[list(answer.picked)]) == pytest.approx(least, rel=1e-6)


def test_large_odd_weights_hold_exactly() -> None:
    # Two items a group whose weights have no common divisor: rounding in doubles would not do.
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 10**9, size=24) * 2 + 1
    groups = [i // 2 for i in range(24)]
    solver = Program(groups, shared=[])
    scores = -weights.astype(float)
    best = -(10**30)
    for picked in itertools.product(*([2 * g, 2 * g + 1] for g in range(12))):
        total = int(weights[list(picked)].sum())
        best = max(best, total if total <= 11 * 10**9 else best)
    answer = solver.minimise(scores, limits=[Limit(weights, 11 * 10**9)])
    assert int(weights[list(answer.picked)].sum()) == best
    tight = solver.minimise(scores, limits=[Limit(weights, best - 1)])
    assert int(weights[list(tight.picked)].sum()) < best


def test_the_paper_problem_solves_in_seconds() -> None:
    shape = published_shape("super")
    rng = np.random.default_rng(0)
    weight = rng.lognormal(sigma=1.0, size=shape.num_blocks)

    def score(variant: Variant) -> float:
        ffn = variant.values.get("ffn", 2688) / 2688
        top_k = variant.values.get("top_k", 22) / 22
        return float(weight[variant.block] * ((1 - ffn) ** 2 + (1 - top_k) ** 2))

    widths, counts = range(1280, 2689, 256), range(4, 23, 2)
    problem = problem_of(
        shape,
        score=score,
        budget={"moe_params": "60%", "active_experts": "50%", "state_bytes": "75%"},
        ffn=widths,
        top_k=counts,
        state=["75%"],
    )
    (choice,) = solve(problem, time_limit_s=30)
    assert choice.status == "optimal"
    assert problem.meets_budgets(choice)
    assert choice.score < uniform_choice(problem).score
    assert choice.child_shape(shape).sizes["state"] == 96
