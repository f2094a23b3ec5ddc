"""Demands in serving terms: what they come to, and which models of a library meet them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from fretsaw.core.engines import engine_named
from fretsaw.core.hardware import ONE_GPU, Hardware, Layout, Node, Workload
from fretsaw.core.precision import preset
from fretsaw.core.shape import Block, ModelShape
from fretsaw.core.variant import Choice, Variant
from fretsaw.errors import InfeasibleError
from fretsaw.pricing.energy import Energy
from fretsaw.pricing.footprint import footprint, footprints, pages_of
from fretsaw.pricing.kernels import Step
from fretsaw.serving.alternatives import Alternative, Price, alternatives_of
from fretsaw.serving.capacity import Assumptions, capacity, usable_bytes
from fretsaw.serving.demand import Demand, Target, best_load, target_of
from fretsaw.serving.reach import reachable
from fretsaw.solver.alternatives import solve_any, under
from fretsaw.solver.library import Grid, build_library
from fretsaw.solver.mip import Problem
from tests.shapes import hybrid_shape

SHAPE = hybrid_shape("MEE*")
VARIANTS = build_library(
    SHAPE,
    SHAPE,
    grid=Grid({"ffn": [16, 32], "top_k": [2], "state": [16]}, ("moe",), {"ffn": 16, "state": 8}),
)
BY_BLOCK = {b: [v for v in VARIANTS if v.block == b] for b in range(SHAPE.num_blocks)}
WHOLE = {"ffn": 48, "top_k": 6, "state": 32}
GIB = 2**30
BF16 = preset("bf16")
WORKLOAD = Workload(1000, 100)


@dataclass(frozen=True)
class Linear:
    """A toy machine: a block takes its weights once a step, and its active sizes per sequence.

    Attributes:
        speed: Times all others.
        fixed_s: Of a step outside its blocks.
    """

    speed: float = 1.0
    fixed_s: float = 1e-3

    def block_seconds(self, block: Block, *, step: Step) -> float:
        values = block.values
        once = values.get("ffn", 0) * 2 + values.get("state", 0) + values.get("kv_head", 0)
        each = values.get("ffn", 0) * values.get("top_k", 0) + values.get("state", 0)
        work = once + each * step.sequences * step.tokens / 50 + step.context / 1e4
        return work * 1e-5 / self.speed

    def fixed_seconds(self, shape: ModelShape, *, step: Step) -> float:
        return self.fixed_s

    def step_seconds(self, shape: ModelShape, *, step: Step) -> float:
        blocks = sum(self.block_seconds(block, step=step) for block in shape.blocks)
        return blocks + self.fixed_s

    def provider(self, shape: ModelShape, *, step: Step) -> str:
        return "toy"


@dataclass(frozen=True)
class Hungry:
    """A toy supply: joules go with a block's width and with tokens."""

    def block(self, block: Block, *, step: Step) -> Energy:
        width = block.values.get("ffn", 0) + block.values.get("state", 0)
        return Energy(
            1e-4 * width * step.sequences * step.tokens, 1.0, is_measured=False, source="toy"
        )

    def fixed(self, shape: ModelShape, *, step: Step) -> Energy:
        return Energy(1e-3, 1.0, is_measured=False, source="toy")


def node(count: int = 1, *, memory: int = GIB) -> Node:
    return Node(Hardware("toy", memory, 1e12, {"bf16": 1e12}), count)


def demand(count: int = 1, *, layouts: Sequence[Layout] = (ONE_GPU,), **more: object) -> Demand:
    plain = Demand("the demand", node(count), tuple(layouts), BF16, 1100, workload=WORKLOAD)
    return replace(plain, **more)  # type: ignore[arg-type]


def token_s(shape: ModelShape, sequences: float, *, prices: Linear = Linear()) -> float:
    """Of one token, written out: a decode step halfway, and everybody's prompt."""
    decode = prices.step_seconds(shape, step=Step(sequences, 1, 1050.0))
    prefill = prices.step_seconds(shape, step=Step(1, 1000, 0.0))
    return decode + sequences * prefill / 100


def test_a_rate_at_a_speed_is_requests_in_flight_and_the_time_of_a_token() -> None:
    asked = demand(user_tokens_per_s=20.0, server_tokens_per_s=100.0)
    target = target_of(asked, SHAPE, prices_of=lambda _: Linear())
    assert (target.in_flight, target.token_s) == (5.0, 0.05)


def test_the_parents_rate_is_found_where_its_users_are_just_served() -> None:
    asked = demand(user_tokens_per_s=100.0, speedup=1.5)
    load = best_load(SHAPE, asked, prices_of=lambda _: Linear())
    assert load is not None
    assert token_s(SHAPE, load.in_flight) == pytest.approx(0.01, rel=1e-6)
    assert load.server_tokens_per_s == pytest.approx(load.in_flight * 100, rel=1e-6)
    target = target_of(asked, SHAPE, prices_of=lambda _: Linear())
    assert target.in_flight == pytest.approx(1.5 * load.in_flight, rel=1e-6)
    assert target.token_s == 0.01


def test_memory_bounds_the_parents_requests() -> None:
    asked = demand(user_tokens_per_s=100.0, speedup=1.5)
    free = best_load(SHAPE, asked, prices_of=lambda _: Linear())
    weights = sum(footprints(SHAPE, BF16)[0], footprints(SHAPE, BF16)[1])
    memory = int((weights.weights_bytes + 3.5 * weights.sequence_bytes(1100)) / 0.9)
    tight = replace(asked, node=node(memory=memory))
    load = best_load(SHAPE, tight, prices_of=lambda _: Linear())
    assert free is not None
    assert load is not None
    assert load.in_flight == pytest.approx(3)
    assert free.in_flight > 3


def test_a_speedup_with_requests_in_flight_is_a_shorter_time() -> None:
    asked = demand(concurrency=4, speedup=2.0)
    target = target_of(asked, SHAPE, prices_of=lambda _: Linear())
    assert target.in_flight == 4
    assert target.token_s == pytest.approx(token_s(SHAPE, 4) / 2)


def test_the_parent_is_taken_at_its_best_layout() -> None:
    fast, slow = Layout(2), Layout(1)
    asked = demand(2, layouts=(slow, fast), concurrency=2, speedup=2.0)
    target = target_of(
        asked, SHAPE, prices_of=lambda layout: Linear(3.0 if layout == fast else 1.0)
    )
    assert target.parent is not None
    assert target.parent.layout == fast


def test_no_speedup_over_a_parent_that_cannot_serve() -> None:
    asked = demand(user_tokens_per_s=1e6, speedup=2.0)
    with pytest.raises(InfeasibleError, match="the parent cannot serve `the demand`") as caught:
        target_of(asked, SHAPE, prices_of=lambda _: Linear())
    assert "server_tokens_per_s instead" in caught.value.hint


def library() -> Problem:
    """Scores that grow with what is cut, more in later blocks."""
    lost = {
        (v.block, v.key): 3.5 * (1 + v.block)
        if v.is_none
        else sum((1 - n / WHOLE[d]) * (1 + v.block) for d, n in v.values.items())
        for v in VARIANTS
    }
    return Problem(SHAPE, BY_BLOCK, lost, ())


def every_choice() -> Iterator[tuple[ModelShape, list[Variant]]]:
    for picked in itertools.product(*(BY_BLOCK[b] for b in range(SHAPE.num_blocks))):
        yield Choice(picked, 0.0, {}).child_shape(SHAPE), list(picked)


def alternatives_for(asked: Demand, prices: Linear = Linear()) -> list[Alternative]:
    target = target_of(asked, SHAPE, prices_of=lambda _: prices)
    return alternatives_of(target, number=0, parent=SHAPE, prices_of=lambda _: prices)


def prices_for(alternatives: Sequence[Alternative], prices: Linear = Linear()) -> list[Price]:
    forms = [v.apply(SHAPE.blocks[v.block]) for v in VARIANTS]
    return [
        price
        for one in alternatives
        for price in one.price(forms, shape=SHAPE, prices=prices, energies=Hungry())
    ]


def token_j(shape: ModelShape, sequences: float) -> float:
    """Of one token, written out: its share of a decode step, and of its own prompt."""

    def joules(step: Step) -> float:
        return 1e-3 + sum(Hungry().block(block, step=step).joules for block in shape.blocks)

    return joules(Step(sequences, 1, 1050.0)) / sequences + joules(Step(1, 1000, 0.0)) / 100


@pytest.mark.parametrize(
    "asked",
    [
        demand(user_tokens_per_s=100.0, speedup=1.2),
        demand(user_tokens_per_s=100.0, speedup=1.5),
        demand(concurrency=4, speedup=1.4),
        demand(concurrency=2, server_tokens_per_s=600.0),
    ],
)
def test_the_search_meets_a_demand_as_the_whole_child_does(asked: Demand) -> None:
    """Sums over blocks against every child priced as a whole."""
    (one,) = alternatives_for(asked)
    problem = library()
    terms = one.terms(prices_for([one]), problem=problem)
    _, (choice,) = solve_any(problem, [[terms]])
    assert one.target.token_s is not None
    fitting = []
    for shape, picked in every_choice():
        if token_s(shape, one.target.in_flight) <= one.target.token_s:
            fitting.append(sum(problem.scores[v.block, v.key] for v in picked))
    assert choice.score == min(fitting)
    assert min(fitting) > 0
    child = choice.child_shape(SHAPE)
    assert choice.costs[one.token_cost] == pytest.approx(
        token_s(child, one.target.in_flight) * 1e9, abs=SHAPE.num_blocks + 1
    )
    prediction = one.predict(choice)
    assert prediction.token_s == pytest.approx(token_s(child, one.target.in_flight), abs=1e-8)
    if asked.speedup:
        assert prediction.speedup is not None
        assert prediction.speedup >= asked.speedup


def test_energy_is_a_budget_beside_speed() -> None:
    most = 0.7 * token_j(SHAPE, 4)
    asked = demand(concurrency=4, speedup=1.1, joules_per_token=most)
    (one,) = alternatives_for(asked)
    problem = library()
    _, (choice,) = solve_any(problem, [[one.terms(prices_for([one]), problem=problem)]])
    assert one.target.token_s is not None
    fitting = [
        sum(problem.scores[v.block, v.key] for v in picked)
        for shape, picked in every_choice()
        if token_s(shape, 4) <= one.target.token_s and token_j(shape, 4) <= most
    ]
    assert choice.score == min(fitting)
    prediction = one.predict(choice)
    assert prediction.joules_per_token == pytest.approx(
        token_j(choice.child_shape(SHAPE), 4), abs=1e-8
    )
    assert str(one.budgets()[2]).endswith(" J")


def test_energy_that_no_model_can_do_with_is_refused() -> None:
    found = alternatives_for(demand(concurrency=4, speedup=1.1, joules_per_token=1e-9))
    with pytest.raises(InfeasibleError, match="the leanest model in the library takes"):
        reachable(found, library(), prices=prices_for(found), prices_of=lambda _: Linear())


def test_memory_of_a_gpu_is_what_capacity_says() -> None:
    """The bound on a sum over blocks holds exactly where the whole child holds so many requests."""
    asked = Demand("the demand", node(memory=GIB), (ONE_GPU,), BF16, 4000, concurrency=300)
    (one,) = alternatives_for(asked)
    problem = library()
    terms = under(problem, [one.terms(prices_for([one]), problem=problem)])
    (cost,) = terms.priced
    for shape, picked in every_choice():
        total = cost.fixed + sum(cost.of_variant[v.block, v.key] for v in picked)
        memory = int(total / 0.9)
        for size, holds in ((memory + 2, True), (memory - 2, False)):
            held = capacity(shape, node(memory=size), context=4000, precision=BF16, layout=ONE_GPU)
            assert (held.max_concurrency >= 300) == holds
    assert terms.budgets[0].limit == usable_bytes(asked.node, asked.assumptions)


def test_several_layouts_are_several_ways_and_the_best_is_taken() -> None:
    layouts = (Layout(1), Layout(2))
    asked = demand(2, layouts=layouts, concurrency=4, server_tokens_per_s=900.0)
    target = target_of(asked, SHAPE, prices_of=lambda _: Linear())
    priced_by = {Layout(1): Linear(), Layout(2): Linear(2.0)}
    found = alternatives_of(target, number=0, parent=SHAPE, prices_of=priced_by.__getitem__)
    prices = [p for a in found for p in prices_for([a], priced_by[a.layout])]
    problem = library()
    ways, (choice,) = solve_any(problem, [[a.terms(prices, problem=problem) for a in found]])
    each = [solve_any(problem, [[a.terms(prices, problem=problem)]])[1][0].score for a in found]
    assert each[0] != each[1]
    assert choice.score == min(each)
    assert each[ways[0]] == choice.score


def test_layouts_that_no_model_of_the_library_can_use_are_left_out() -> None:
    layouts = (Layout(1), Layout(2))
    asked = demand(2, layouts=layouts, concurrency=4, server_tokens_per_s=900.0)
    priced_by = {Layout(1): Linear(0.01), Layout(2): Linear(2.0)}
    target = target_of(asked, SHAPE, prices_of=priced_by.__getitem__)
    found = alternatives_of(target, number=0, parent=SHAPE, prices_of=priced_by.__getitem__)
    prices = [p for a in found for p in prices_for([a], priced_by[a.layout])]
    kept = reachable(found, library(), prices=prices, prices_of=priced_by.__getitem__)
    assert [one.layout for one in kept] == [Layout(2)]


def test_what_no_model_can_do_is_refused_with_what_the_library_reaches() -> None:
    asked = demand(concurrency=4, speedup=10.0)
    found = alternatives_for(asked)
    with pytest.raises(InfeasibleError) as caught:
        reachable(found, library(), prices=prices_for(found), prices_of=lambda _: Linear())
    fastest = min(token_s(shape, 4) for shape, _ in every_choice())
    reached = token_s(SHAPE, 4) / fastest
    assert "no choice meets `the demand`: the fastest model in the library" in caught.value.message
    assert f"{reached:.3g}x the parent's" in caught.value.message
    assert "add smaller sizes" in caught.value.hint


def test_memory_that_no_model_can_do_with_is_refused_too() -> None:
    asked = Demand("the demand", node(memory=2**20), (ONE_GPU,), BF16, 4000, concurrency=300)
    found = alternatives_for(asked)
    with pytest.raises(InfeasibleError, match=r"toy holds \d+ of the smallest model"):
        reachable(found, library(), prices=prices_for(found), prices_of=lambda _: Linear())


def test_a_budget_names_load_layout_and_the_parents_time() -> None:
    asked = demand(concurrency=4, speedup=2.0)
    (one,) = alternatives_for(asked)
    memory, time = one.budgets()
    assert memory.cost == "gpu_bytes (toy tp1, 4 of 1k/100 in flight)"
    assert str(time).startswith("token_ns (toy tp1, 4 of 1k/100 in flight) <= ")
    assert "the parent takes" in str(time)


def test_prices_and_alternatives_survive_json() -> None:
    asked = demand(user_tokens_per_s=100.0, speedup=1.5)
    found = alternatives_for(asked)
    prices = prices_for(found)
    assert [Price.from_json(json.loads(json.dumps(p.to_json()))) for p in prices] == prices
    text = json.dumps([one.to_json() for one in found])
    read = [Alternative.from_json(one, number=0, demand=asked) for one in json.loads(text)]
    assert read == found
    assert {p.provider for p in prices} == {"toy"}


def test_at_least_one_request_is_on_each_group_of_a_replica() -> None:
    layout = Layout(1, 4, 4)
    asked = demand(4, layouts=(layout,), concurrency=2, server_tokens_per_s=10.0)
    assert Alternative(0, Target(asked, 2.0, None, None), layout).sequences == 4.0


@pytest.mark.parametrize("context", [100, 1100, 8321])
def test_f3_the_search_counts_a_request_in_the_same_pages_as_the_planner(context: int) -> None:
    cache = engine_named("vllm").cache
    asked = demand(context=context, concurrency=3.0, workload=None)
    asked = replace(asked, assumptions=Assumptions(cache=cache))
    target = target_of(asked, SHAPE, prices_of=lambda _: Linear())
    [one] = alternatives_of(target, number=0, parent=SHAPE, prices_of=lambda _: Linear())
    prices = list(one.price(SHAPE.blocks, shape=SHAPE, prices=Linear()))
    forms = {(i, "whole"): block for i, block in enumerate(SHAPE.blocks)}
    [memory] = one.costs(prices, forms=forms)
    whole = footprint(SHAPE, BF16, rule=cache)
    expected = whole.weights_bytes + 3 * whole.sequence_bytes(context)
    assert memory.fixed + sum(memory.of_variant.values()) == expected
    assert expected > whole.weights_bytes + 3 * footprint(SHAPE, BF16).sequence_bytes(context)


def test_f3_the_search_expects_the_worst_page_that_a_state_on_offer_makes() -> None:
    asked = replace(
        demand(context=1100, concurrency=1.0, workload=None),
        assumptions=Assumptions(cache=engine_named("vllm").cache),
    )
    target = target_of(asked, SHAPE, prices_of=lambda _: Linear())
    [one] = alternatives_of(target, number=0, parent=SHAPE, prices_of=lambda _: Linear())
    mamba = SHAPE.blocks[0]
    smaller = mamba.with_values({"state": mamba.sizes["state"] // 2})
    prices = list(one.price([*SHAPE.blocks, smaller], shape=SHAPE, prices=Linear()))
    attention = next(p for p in prices if p.block and p.block.mixer == "attention")
    for state in (mamba, smaller):
        child = SHAPE.with_blocks([state, *SHAPE.blocks[1:]])
        exact = pages_of(child.blocks, BF16, rule=asked.assumptions.cache)
        pages = -(-1100 // exact.tokens)
        assert attention.footprint.sequence_bytes(1100) >= pages * exact.page_bytes
