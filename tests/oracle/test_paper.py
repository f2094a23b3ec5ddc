"""Predicted speed-ups of Puzzle-75B over Super-120B against all eight that were published."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import pytest

from fretsaw.core.hardware import Layout, parse_node, parse_workload
from fretsaw.core.precision import preset
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.provider import pricers
from fretsaw.serving.frontier import Point, pareto, prefill_seconds, server_rate_at, sweep
from tests.shapes import published_shape

SUPER, PUZZLE = "super", "puzzle"
LAYOUTS = [Layout(tp, 1, ep) for tp in (1, 2, 4, 8) for ep in sorted({1, tp})]
PRECISIONS = {"8xB200": preset("nvfp4").with_caches(state="fp16"), "8xH100": preset("fp8")}
PUBLISHED = {
    ("8xB200", "50k/2k"): {100: (5128, 8210), 125: (3784, 6412), 150: (2532, 4523)},
    ("8xB200", "8k/64k"): {100: (20939, 42601), 125: (13074, 27918), 150: (8522, 18047)},
    ("8xH100", "50k/2k"): {100: (838, 1599)},
    ("8xH100", "8k/64k"): {100: (3163, 5753)},
}
"""Node and workload -> user tokens/s -> server tokens/s of parent and child.

Source: arXiv:2607.04371, table 7 and appendix C.
"""


@cache
def frontier(name: str, node: str, workload: str) -> list[Point]:
    machine, precision = parse_node(node), PRECISIONS[node]
    return pareto(
        sweep(
            published_shape(name),
            machine,
            workload=parse_workload(workload),
            precision=precision,
            pricer_of=pricers(machine.hardware, engine="vllm", precision=precision),
            layouts=LAYOUTS,
        )
    )


def speedup(node: str, workload: str, speed: float) -> float:
    parent, child = (server_rate_at(frontier(n, node, workload), speed) for n in (SUPER, PUZZLE))
    assert parent is not None
    assert child is not None
    return child / parent


def test_ratios_are_predicted() -> None:
    """No constant was fitted to the child: aimed at 12 % on geometric mean, none above 25 %."""
    errors = [
        abs(speedup(node, workload, speed) / (child / parent) - 1)
        for (node, workload), points in PUBLISHED.items()
        for speed, (parent, child) in points.items()
    ]
    assert len(errors) == 8
    assert max(errors) <= 0.25
    assert math.exp(sum(map(math.log, errors)) / len(errors)) <= 0.12


def test_the_gain_is_smaller_for_prompts_and_grows_with_the_users_speed() -> None:
    gains = {
        workload: [speedup("8xB200", workload, speed) for speed in (100, 125, 150)]
        for workload in ("50k/2k", "8k/64k")
    }
    for prefill_heavy, decode_heavy in zip(gains["50k/2k"], gains["8k/64k"], strict=True):
        assert prefill_heavy < decode_heavy
    for gain in gains.values():
        assert all(slow < fast for slow, fast in pairwise(gain))


@pytest.mark.parametrize(
    ("name", "sequences", "step_s"), [(SUPER, 1, 10.7e-3), (PUZZLE, 8, 20.1e-3)]
)
def test_steps_at_a_million_tokens_on_one_h100(name: str, sequences: int, step_s: float) -> None:
    pricer = pricers(parse_node("H100").hardware, engine="vllm", precision=preset("nvfp4"))(
        Layout()
    )
    found = pricer.step_seconds(published_shape(name), step=Step(sequences, 1, 1e6))
    assert found == pytest.approx(step_s, rel=0.25)


def test_the_child_takes_a_long_prompt_a_fifth_faster() -> None:
    pricer = pricers(parse_node("H100").hardware, engine="vllm", precision=preset("nvfp4"))(
        Layout()
    )
    parent, child = (
        prefill_seconds(published_shape(name), 990_000, pricer=pricer) for name in (SUPER, PUZZLE)
    )
    assert parent / child == pytest.approx(1.2, rel=0.15)
