"""Frontiers against brute force and hand arithmetic; speed and size against each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from fretsaw.core.hardware import ONE_GPU, Layout, Node, Workload, parse_node, parse_workload
from fretsaw.core.precision import preset
from fretsaw.core.shape import ModelShape
from fretsaw.pricing.kernels import Kernel, Step, Timing
from fretsaw.pricing.provider import engine_model, pricers, pricers_of
from fretsaw.pricing.step import Pricer
from fretsaw.serving.capacity import Assumptions
from fretsaw.serving.frontier import (
    PREFILL_TOKENS,
    Point,
    layouts_of,
    pareto,
    point,
    prefill_seconds,
    prefill_steps,
    requests_per_minute,
    server_rate_at,
    sweep,
)
from fretsaw.serving.planner import cut_axes
from tests.shapes import hybrid_shape, published_shape

SUPER = published_shape("super")
NVFP4 = preset("nvfp4")
BATCHES = (1, 2, 3, 4, 8, 16, 31, 32, 64, 100, 128, 256, 300, 512)


class Clock:
    """A second for each kernel."""

    def time(self, kernel: Kernel) -> Timing:
        return Timing(1.0, "weights", "clock")


def of_speeds(user: float, server: float) -> Point:
    return Point(ONE_GPU, 1.0, 1.0, user, server, 0.0, 0.0)


def by_batch(shape: ModelShape, node: Node, *, workload: str, pricer: Pricer) -> list[Point]:
    return [
        point(
            shape,
            node,
            workload=parse_workload(workload),
            pricer=pricer,
            sequences=batch * pricer.layout.dp,
        )
        for batch in BATCHES
    ]


def swept(
    node: str, *, workload: str = "8k/1k", layouts: Sequence[Layout] | None = None
) -> list[Point]:
    machine = parse_node(node)
    return sweep(
        SUPER,
        machine,
        workload=parse_workload(workload),
        precision=NVFP4,
        pricer_of=pricers(machine.hardware, engine="vllm", precision=NVFP4),
        layouts=layouts,
    )


def test_the_frontier_is_what_no_other_point_beats() -> None:
    rng = random.Random(5)
    for _ in range(50):
        points = [of_speeds(rng.randint(1, 12), rng.randint(1, 12)) for _ in range(25)]
        speeds = {(p.user_tokens_per_s, p.server_tokens_per_s) for p in points}
        best = {
            a for a in speeds if not any(b != a and b[0] >= a[0] and b[1] >= a[1] for b in speeds)
        }
        found = [(p.user_tokens_per_s, p.server_tokens_per_s) for p in pareto(points)]
        assert found == sorted(best)


def test_a_rate_is_exact_at_points_and_linear_between() -> None:
    frontier = [of_speeds(50, 900), of_speeds(100, 600), of_speeds(200, 100)]
    for one in frontier:
        assert server_rate_at(frontier, one.user_tokens_per_s) == one.server_tokens_per_s
    assert server_rate_at(frontier, 75) == pytest.approx(750)
    assert server_rate_at(frontier, 120) == pytest.approx(500)


def test_a_rate_beyond_the_frontier() -> None:
    frontier = [of_speeds(50, 900), of_speeds(200, 100)]
    assert server_rate_at(frontier, 200.001) is None
    assert server_rate_at(frontier, 0.001) == 900
    assert server_rate_at([], 1) is None
    assert server_rate_at([of_speeds(50, 900)], 50) == 900


def test_a_request_by_hand() -> None:
    """Three kernels of an MLP block, its norm, two of the head, half a second of the host."""
    shape, node = hybrid_shape("-"), parse_node("8xH100")
    pricer = Pricer(Clock(), Layout(1, 1, 1), preset("bf16"), host_s=0.5)
    workload = Workload(PREFILL_TOKENS + 1, 100, acceptance_length=2.0)
    found = point(shape, node, workload=workload, pricer=pricer, sequences=3.0)
    assert found.decode_s == 4 + 2 + 0.5
    assert found.prefill_s == 2 * 6.5
    request_s = 100 / 2 * 6.5 + 3 * 13
    assert found.user_tokens_per_s == pytest.approx(100 / request_s)
    assert found.concurrency == 8 * 3
    assert found.server_tokens_per_s == pytest.approx(8 * 3 * 100 / request_s)


def test_groups_take_prompts_at_the_same_time() -> None:
    shape = hybrid_shape("-")
    one = prefill_seconds(shape, 100, pricer=Pricer(Clock(), Layout(), preset("bf16")))
    four = prefill_seconds(shape, 100, pricer=Pricer(Clock(), Layout(1, 4, 4), preset("bf16")))
    assert four == one / 4
    assert prefill_steps(100, groups=4) == [Step(4, 100, 0)]


@pytest.mark.parametrize("tokens", [1, PREFILL_TOKENS, PREFILL_TOKENS + 1, 990_000])
def test_prompts_go_through_in_chunks_without_a_gap(tokens: int) -> None:
    steps = prefill_steps(tokens)
    assert [s.context for s in steps] == list(range(0, tokens, PREFILL_TOKENS))
    assert sum(s.tokens for s in steps) == tokens
    assert max(s.tokens for s in steps) <= PREFILL_TOKENS


@pytest.mark.parametrize("node", ["8xB200", "8xH100", "4xL40S"])
def test_points_agree_with_themselves(node: str) -> None:
    found = swept(node, layouts=layouts_of(SUPER, parse_node(node)))
    assert found
    for one in found:
        assert one.user_tokens_per_s * one.concurrency == pytest.approx(one.server_tokens_per_s)
        replicas = parse_node(node).count // one.layout.gpus
        assert one.concurrency == replicas * one.sequences


def test_a_sweep_has_every_power_of_two_that_fits() -> None:
    found = [p.sequences for p in swept("H100", layouts=[ONE_GPU])]
    assert found == [1, 2, 4, 8, 16]
    # 18 of 9,000 tokens fit beside 73 GB of weights; with 40 GB more kept free none does.
    node = parse_node("H100")
    none = sweep(
        SUPER,
        node,
        workload=parse_workload("8k/1k"),
        precision=NVFP4,
        pricer_of=pricers(node.hardware, engine="vllm", precision=NVFP4),
        assumptions=Assumptions(headroom_bytes=40 * 10**9),
    )
    assert none == []


@pytest.mark.parametrize("workload", ["8k/64k", "50k/2k", "1/1"])
@pytest.mark.parametrize("name", ["B200", "H100", "A100"])
def test_a_larger_batch_never_makes_users_faster(name: str, workload: str) -> None:
    node = parse_node(f"8x{name}")
    model = replace(engine_model(node.hardware, "vllm"), tables=())
    of = pricers_of(node.hardware, model, precision=NVFP4)
    for layout in layouts_of(SUPER, node):
        points = by_batch(SUPER, node, workload=workload, pricer=of(layout))
        for fewer, more in pairwise(points):
            assert more.user_tokens_per_s < fewer.user_tokens_per_s
            assert more.decode_s >= fewer.decode_s


@pytest.mark.parametrize("name", ["B200", "H100", "H200"])
def test_measured_kernels_make_users_faster_by_noise_at_most(name: str) -> None:
    """From 2 sequences: vLLM's FP8 products on Blackwell take 2.4 times as long for 1 token."""
    node = parse_node(f"8x{name}")
    of = pricers(node.hardware, engine="vllm", precision=NVFP4)
    for layout in layouts_of(SUPER, node):
        points = by_batch(SUPER, node, workload="8k/64k", pricer=of(layout))[1:]
        for fewer, more in pairwise(points):
            assert more.user_tokens_per_s < 1.05 * fewer.user_tokens_per_s


CUTS = ({"ffn": 0.9}, {"ffn": 0.48}, {"top_k": 0.18}, {"state": 0.75}, {"kv_head": 0.5})


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("name", "slower"), [("B200", 1.01), ("H200", 1.01), ("A100", 1.0)])
def test_a_smaller_model_is_never_slower(name: str, slower: float, cut: dict[str, float]) -> None:
    """By the roofline not at all, by measured kernels within their noise."""
    node, small = parse_node(f"8x{name}"), cut_axes(SUPER, cut)
    of = pricers(node.hardware, engine="vllm", precision=NVFP4)
    for layout in (Layout(), Layout(2, 1, 2), Layout(4), Layout(2, 2, 4)):
        for whole, less in zip(
            by_batch(SUPER, node, workload="50k/2k", pricer=of(layout)),
            by_batch(small, node, workload="50k/2k", pricer=of(layout)),
            strict=True,
        ):
            assert less.decode_s <= slower * whole.decode_s
            assert less.prefill_s <= slower * whole.prefill_s


@pytest.mark.parametrize(
    ("shape", "node", "tps", "largest"),
    [
        (SUPER, "8xB200", {1, 2, 4, 8}, 8),
        (SUPER, "3xH100", {1}, 1),
        (SUPER, "7xH100", {1}, 1),
        (SUPER, "6xH100", {1, 2}, 2),
        (hybrid_shape("ME*"), "8xH100", {1, 2}, 8),
        (hybrid_shape("-*"), "8xH100", {1, 2, 4}, 8),
    ],
)
def test_layouts_that_a_node_and_a_model_allow(
    shape: ModelShape, node: str, tps: set[int], largest: int
) -> None:
    found = layouts_of(shape, parse_node(node))
    assert {layout.tp for layout in found} == tps
    assert max(layout.gpus for layout in found) == largest
    assert len(set(found)) == len(found)
    assert all(layout.ep > 1 for layout in found if layout.dp > 1)


def test_requests_of_a_minute() -> None:
    workload = parse_workload("8k/64k")
    assert requests_per_minute(64_000, workload) == 60
    # Table 4 of the paper: 2.03 times the tokens at 1.06 to 1.00 are 2.16 times the requests.
    child, parent = requests_per_minute(42_601, workload), 20_939
    ratio = child / requests_per_minute(parent, workload, verbosity=1.06)
    assert ratio == pytest.approx(2.16, abs=0.005)
