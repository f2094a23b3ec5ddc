"""The search against every choice there is, on many small problems."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from fretsaw.core.shape import Mixer
from fretsaw.core.variant import Choice, Variant
from fretsaw.errors import InfeasibleError
from fretsaw.pricing.memory import add_costs, costs_by_block, fixed_costs, model_costs
from fretsaw.solver.budget import Budget
from fretsaw.solver.library import Grid, build_library
from fretsaw.solver.mip import Problem, solve
from tests.shapes import hybrid_shape

SEEDS = range(48)
BUDGETS = (
    "params",
    "moe_params",
    "active_routed_params",
    "active_experts",
    "bytes_nvfp4",
    "state_bytes",
    "kv_bytes_per_token",
)


def random_problem(seed: int) -> Problem:
    """A few blocks, a few variants, scores over many orders of magnitude, up to three budgets."""
    rng = random.Random(seed)
    shape = hybrid_shape("".join(rng.sample("MME*-", k=4)) + rng.choice(["*", "M*", ""]))
    wanted: dict[str, Sequence[int | str]] = {"ffn": [16], "top_k": [2], "state": [16, 24]}
    has = {block.mixer for block in shape.blocks}
    values = {d: v for d, v in wanted.items() if ("mamba" if d == "state" else "moe") in has}
    kinds: list[Mixer] = ["attention", "moe", "mamba", "mlp"]
    none = [m for m in kinds if m in has and rng.random() < 0.4]
    variants = build_library(shape, shape, grid=Grid(values, none, {"ffn": 16, "state": 8}))
    scores = {(v.block, v.key): 10 ** rng.uniform(-6, 1) - 0.5 for v in variants}
    if rng.random() < 0.3:
        scores = {key: float(rng.randint(0, 2)) for key in scores}  # many ties
    costs = model_costs(shape)
    names = [n for n in rng.sample(BUDGETS, k=rng.choice([0, 1, 2, 2, 3])) if costs[n]]
    limits = [Budget(n, math.floor(costs[n] * rng.uniform(0.4, 1.1))) for n in names]
    return Problem(shape, grouped(variants), scores, limits)


def grouped(variants: Sequence[Variant]) -> dict[int, list[Variant]]:
    blocks = sorted({v.block for v in variants})
    return {b: [v for v in variants if v.block == b] for b in blocks}


Picked = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class One:
    """One of all choices: its score, its costs, and block and key of its variants."""

    score: float
    costs: dict[str, int]
    picked: Picked


@functools.cache
def every_choice(seed: int) -> list[One]:
    """Every choice that keeps to the rules, budgets aside."""
    problem = random_problem(seed)
    blocks = {
        (v.block, v.key): v.apply(problem.shape.blocks[v.block])
        for v in itertools.chain.from_iterable(problem.variants.values())
    }
    costs = dict(
        zip(blocks, costs_by_block(problem.shape.with_blocks(blocks.values())), strict=True)
    )
    keys = [[(v.block, v.key) for v in problem.variants[b]] for b in sorted(problem.variants)]
    choices = []
    for picked in itertools.product(*keys):
        chosen = [blocks[key] for key in picked]
        states = {block.sizes["state"] for block in chosen if block.mixer == "mamba"}
        has_attention = any(block.mixer == "attention" for block in chosen)
        if len(states) > 1 or (problem.shape.indices("attention") and not has_attention):
            continue
        score = math.fsum(problem.scores[key] for key in picked)
        total = add_costs([fixed_costs(problem.shape), *(costs[key] for key in picked)])
        choices.append(One(score, total, picked))
    return choices


def fitting(seed: int) -> list[One]:
    budgets = random_problem(seed).budgets
    return [one for one in every_choice(seed) if all(one.costs[b.cost] <= b.limit for b in budgets)]


def picked_by(choice: Choice) -> Picked:
    return tuple((v.block, v.key) for v in choice.variants)


def tolerance(problem: Problem) -> float:
    """Scores nearer than this count as equal."""
    return 1e-7 * (max(problem.scores.values()) - min(problem.scores.values()))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_search_finds_the_best_of_all_choices(seed: int) -> None:
    problem, choices = random_problem(seed), fitting(seed)
    if not choices:
        with pytest.raises(InfeasibleError):
            solve(problem)
        return
    (found,) = solve(problem)
    assert (found.status, found.gap) == ("optimal", 0.0)
    least = min(one.score for one in choices)
    assert found.score - least <= tolerance(problem)
    assert picked_by(found) in {one.picked for one in choices}
    assert found.costs == model_costs(found.child_shape(problem.shape))


@pytest.mark.parametrize("seed", SEEDS)
def test_of_equal_scores_the_cheaper_wins(seed: int) -> None:
    problem, choices = random_problem(seed), fitting(seed)
    if not choices:
        return
    (found,) = solve(problem)
    assert not [
        one
        for one in choices
        if one.score == found.score
        and all(one.costs[b.cost] < found.costs[b.cost] for b in problem.budgets)
        and all(one.costs[name] < found.costs[name] for name in ("params", "active_params"))
    ]


@pytest.mark.parametrize("seed", SEEDS[::3])
@pytest.mark.parametrize("distance", [1, 2])
def test_n_best_follow_each_other_with_their_distance(seed: int, distance: int) -> None:
    problem, left = random_problem(seed), fitting(seed)
    if not left:
        return
    found = solve(problem, n_best=4, min_distance=distance)
    for choice in found:
        picked = picked_by(choice)
        assert picked in {one.picked for one in left}
        assert choice.score - min(one.score for one in left) <= tolerance(problem)
        left = [
            one
            for one in left
            if sum(a != b for a, b in zip(one.picked, picked, strict=True)) >= distance
        ]
    assert len(found) == 4 or not left


@pytest.mark.parametrize("seed", SEEDS)
def test_the_nearest_value_in_the_error_is_the_least_there_is(seed: int) -> None:
    problem, everything = random_problem(seed), every_choice(seed)
    if fitting(seed):
        return
    with pytest.raises(InfeasibleError) as caught:
        solve(problem)
    message, hint = caught.value.message, caught.value.hint
    least = {b: min(one.costs[b.cost] for one in everything) for b in problem.budgets}
    alone = {b: value for b, value in least.items() if value > b.limit}
    for budget, value in alone.items():
        assert f"`{budget}`: the smallest model in the library has {value:,}" in message
        assert f"{budget.cost} {value:,}" in hint
    if alone:
        return
    named = [b for b in problem.budgets if f"`{b}`" in message]
    assert not [one for one in everything if all(one.costs[b.cost] <= b.limit for b in named)]
    for budget in named:
        others = [b for b in problem.budgets if b is not budget]
        within = [o for o in everything if all(o.costs[b.cost] <= b.limit for b in others)]
        value = min((one.costs[budget.cost] for one in within), default=0)
        assert (f"raise {budget.cost} to {value:,}" in hint) == bool(within)


def test_the_random_problems_are_worth_solving() -> None:
    problems = [random_problem(seed) for seed in SEEDS]
    sizes = [len(fitting(seed)) for seed in SEEDS]
    assert sum(size == 0 for size in sizes) >= 3
    assert sum(size > 10 for size in sizes) >= 20
    pairs = list(zip(problems, sizes, strict=True))
    assert sum(len(p.budgets) >= 2 and size > 10 for p, size in pairs) >= 10
    assert sum(any(v.is_none for v in p.usable) for p in problems) >= 10
    assert sum(len(p.shape.indices("mamba")) >= 2 for p in problems) >= 10
