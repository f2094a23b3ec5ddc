"""Outlooks: the operating point against brute force, what binds, what an axis is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fretsaw.core.hardware import Layout, parse_node, parse_workload
from fretsaw.core.precision import preset
from fretsaw.core.shape import ModelShape
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.provider import energy_models, engine_model, pricers_of
from fretsaw.serving.capacity import USUAL, Assumptions, capacity
from fretsaw.serving.frontier import layouts_of, point
from fretsaw.serving.planner import (
    Outlook,
    Setting,
    at_speed,
    best_at_speed,
    cut_axes,
    most_sequences,
    outlook,
)
from tests.shapes import hybrid_shape, published_shape

SUPER, PUZZLE = (published_shape(name) for name in ("super", "puzzle"))


def setting_of(
    shape: ModelShape,
    node: str = "8xB200",
    *,
    workload: str | None = "8k/64k",
    speed: float | None = 100.0,
    context: int = 72_000,
    layouts: list[Layout] | None = None,
    assumptions: Assumptions = USUAL,
    number_format: str = "nvfp4",
) -> Setting:
    machine, precision = parse_node(node), preset(number_format)
    model = engine_model(machine.hardware, "vllm")
    return Setting(
        machine,
        parse_workload(workload) if workload else None,
        context,
        speed,
        precision,
        assumptions,
        layouts or [one for one in layouts_of(shape, machine) if one.dp == 1],
        pricers_of(machine.hardware, model, precision=precision),
        energy_models(machine.hardware, model, precision=precision),
    )


def look(shape: ModelShape, node: str = "8xB200", **terms: object) -> tuple[Outlook, Setting]:
    setting = setting_of(shape, node, **terms)  # type: ignore[arg-type]
    return outlook(shape, setting), setting


@pytest.mark.parametrize("layout", [Layout(2, 1, 2), Layout(4), Layout(1, 4, 4)])
def test_the_most_requests_at_a_speed(layout: Layout) -> None:
    """One whole sequence more and users miss it, one fewer and they have more."""
    setting = setting_of(SUPER)
    found = at_speed(SUPER, setting, layout=layout)
    assert found is not None
    assert setting.workload is not None
    fewer, more = (
        point(
            SUPER,
            setting.node,
            workload=setting.workload,
            pricer=setting.pricer_of(layout),
            sequences=found.sequences + step,
        ).user_tokens_per_s
        for step in (-1, 1)
    )
    assert more < 100 < fewer
    assert found.user_tokens_per_s == pytest.approx(100, rel=1e-3)


def test_memory_bounds_slow_users() -> None:
    setting = setting_of(SUPER, speed=1.0)
    found = at_speed(SUPER, setting, layout=Layout(2))
    held = capacity(
        SUPER, setting.node, context=72_000, precision=setting.precision, layout=Layout(2)
    )
    assert found is not None
    assert found.sequences == held.sequences_per_group
    assert found.user_tokens_per_s > 1.0


@pytest.mark.parametrize(
    "terms",
    [
        {"speed": 1e5},
        {"speed": None},
        {"workload": None},
        {"node": "8xL40S", "number_format": "bf16"},
    ],
)
def test_a_speed_that_is_not_reached_or_not_asked_for(terms: dict[str, object]) -> None:
    setting = setting_of(SUPER, **terms)  # type: ignore[arg-type]
    assert at_speed(SUPER, setting, layout=Layout()) is None


def test_the_operating_point_is_the_best_layout_at_that_speed() -> None:
    found, setting = look(SUPER)
    points = [at_speed(SUPER, setting, layout=layout) for layout in setting.layouts]
    best = max(p.server_tokens_per_s for p in points if p)
    assert found.operating_point is not None
    assert found.operating_point == best_at_speed(SUPER, setting)
    assert found.operating_point.server_tokens_per_s == best
    assert found.operating_point.user_tokens_per_s == pytest.approx(100, rel=1e-3)
    # Interpolated between layouts as the paper does, it comes out near, not equal.
    assert found.server_tokens_per_s == pytest.approx(best, rel=0.15)


def test_users_too_fast_for_any_layout_get_the_fastest() -> None:
    found, _ = look(SUPER, speed=1e300)
    assert found.server_tokens_per_s is None
    assert found.operating_point == found.frontier[-1]


def test_without_a_speed_the_product_of_both_is_largest() -> None:
    found, _ = look(SUPER, speed=None)
    assert found.server_tokens_per_s is None
    assert found.operating_point is not None
    products = [p.user_tokens_per_s * p.server_tokens_per_s for p in found.frontier]
    at = found.operating_point
    assert at.user_tokens_per_s * at.server_tokens_per_s == max(products)


def test_a_context_alone_has_no_speeds() -> None:
    found, setting = look(PUZZLE, "H100", workload=None, context=10**6)
    assert found.frontier == ()
    assert (found.operating_point, found.account, found.joules_per_token) == (None, None, None)
    assert found.worth == {}
    assert (found.capacity, found.capacity_layout) == most_sequences(PUZZLE, setting)


def test_weights_that_do_not_fit_leave_no_frontier() -> None:
    found, _ = look(SUPER, "8xL40S", number_format="fp32")
    assert found.frontier == ()
    assert found.capacity.max_concurrency == 0
    assert not found.capacity.fits


def test_of_equal_layouts_the_smallest_replica_that_fits_is_named() -> None:
    # 241 GB in BF16: one H100 has not the memory, four of them have.
    _, layout = most_sequences(SUPER, setting_of(SUPER, "8xH100", number_format="bf16"))
    assert layout.gpus >= 4
    none = setting_of(SUPER, "8xH100", number_format="bf16", context=10**8)
    held, layout = most_sequences(SUPER, none)
    assert held.max_concurrency == 0
    assert held.fits
    assert layout.gpus == 4


def test_the_account_is_of_the_operating_point() -> None:
    found, _ = look(PUZZLE)
    assert found.operating_point is not None
    assert found.account is not None
    assert found.account.seconds == pytest.approx(found.operating_point.decode_s)


def test_energy_is_the_steps_and_the_prompts_share() -> None:
    found, setting = look(PUZZLE)
    at = found.operating_point
    assert at is not None
    model = setting.energy_of(at.layout)
    step = model.step(PUZZLE, step=Step(at.sequences, 1, 40_000)).joules / at.sequences
    prompt = model.step(PUZZLE, step=Step(1, 8000, 0)).joules / 64_000
    assert found.joules_per_token == pytest.approx(step + prompt)


def test_an_axis_is_worth_what_its_cut_gives() -> None:
    """Ten percent off the width, by hand."""
    found, setting = look(SUPER)
    at = found.operating_point
    assert at is not None
    share = 1 - 269 / 2688
    small = at_speed(cut_axes(SUPER, {"ffn": share}), setting, layout=at.layout)
    assert small is not None
    gain = small.server_tokens_per_s / at.server_tokens_per_s - 1
    assert found.worth["ffn"] == pytest.approx(gain / (269 / 2688))
    assert set(found.worth) == {"ffn", "top_k", "state", "kv_head"}
    assert all(value > -0.02 for value in found.worth.values())


def test_state_is_worth_more_where_more_sequences_run() -> None:
    few, many = (look(SUPER, speed=speed)[0].worth["state"] for speed in (150.0, 60.0))
    assert many > few > 0


@pytest.mark.parametrize(
    ("pattern", "axes"),
    [
        ("M*", {"state", "kv_head"}),
        ("-*", {"ffn", "kv_head"}),
        ("EM", {"ffn", "top_k", "state"}),
        ("*", {"kv_head"}),
    ],
)
def test_models_without_some_kind_of_block_have_an_outlook(pattern: str, axes: set[str]) -> None:
    shape = hybrid_shape(pattern)
    found, _ = look(shape, "1xH100", workload="100/100", context=200, number_format="bf16")
    assert set(found.worth) == axes
    assert found.server_tokens_per_s is not None
    assert found.account is not None
    assert found.account.seconds > 0


def test_an_axis_of_one_is_worth_nothing_and_left_out() -> None:
    shape = hybrid_shape("*E", num_key_value_heads=1, num_experts_per_tok=1)
    found, _ = look(shape, "1xH100", workload="100/100", context=200, number_format="bf16")
    assert set(found.worth) == {"ffn"}


def test_a_cut_is_rounded_and_leaves_at_least_one() -> None:
    shape = hybrid_shape("E*M-")
    small = cut_axes(shape, {"ffn": 0.51, "top_k": 0.01, "state": 0.5})
    assert [b.values.get("ffn") for b in small.blocks] == [24, None, None, 33]
    assert small.blocks[0].settings["top_k"] == 1
    assert small.blocks[2].sizes["state"] == 16
    assert small.blocks[1] == shape.blocks[1]
    assert cut_axes(shape, {}) == shape


def test_fewer_bytes_hold_more_and_serve_no_slower() -> None:
    """The same node with less head-room, and the child against its parent."""
    parent, setting = look(SUPER)
    child = outlook(PUZZLE, setting)
    assert child.capacity.max_concurrency > parent.capacity.max_concurrency
    assert child.server_tokens_per_s is not None
    assert parent.server_tokens_per_s is not None
    assert child.server_tokens_per_s > parent.server_tokens_per_s
    tight = replace(setting, assumptions=Assumptions(headroom_bytes=60 * 10**9))
    held = outlook(SUPER, tight).capacity.max_concurrency
    assert held < parent.capacity.max_concurrency
