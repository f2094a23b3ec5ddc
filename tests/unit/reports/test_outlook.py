"""A serving plan as JSON, as tables and as a picture: what is promised, and every assumption."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from fretsaw.reports.outlook import ServingPlan, plan_svg, print_serving_plan
from fretsaw.stages.plan import PlanOptions, plan
from tests.shapes import CONFIGS
from tests.unit.reports.test_figures import assert_inside, texts, tips

SUPER, PUZZLE = (CONFIGS / f"{name}.json" for name in ("super", "puzzle"))


@pytest.fixture(scope="module")
def pair() -> ServingPlan:
    options = PlanOptions(
        "8xB200",
        workload="8k/64k",
        user_tokens_per_s=100.0,
        number_format="nvfp4",
        state_dtype="fp16",
        layout="tp2 ep2",
        verbosity=0.5,
        require="1.2x server tokens/s",
    )
    return plan(SUPER, PUZZLE, options=options)


@pytest.fixture(scope="module")
def memory() -> ServingPlan:
    options = PlanOptions(
        "H100", context="1M", number_format="nvfp4", memory_fraction=0.97, headroom="1GiB"
    )
    return plan(SUPER, PUZZLE, options=options)


def printed(found: ServingPlan) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_serving_plan(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def strictly(found: ServingPlan) -> dict[str, Any]:
    """Through text that any JSON reader takes."""
    data: dict[str, Any] = json.loads(json.dumps(found.to_json(), allow_nan=False))
    return data


def test_json_has_the_promised_names(pair: ServingPlan) -> None:
    data = strictly(pair)
    parent, child = data["models"]
    assert data["speedup"] == child["server_tokens_per_s"] / parent["server_tokens_per_s"]
    assert child["max_concurrency"] > parent["max_concurrency"] > 0
    assert parent["params"] == 120_668_707_840
    assert child["active_params"] == 9_337_097_216
    assert parent["kv_bytes_per_token"] == child["kv_bytes_per_token"] == 4096
    assert round(parent["weights_bytes"]["nvfp4"] / 1e9, 2) == 73.12
    assert round((child["weights_bytes"]["bf16"] + child["mtp_bytes"]) / 1e9, 2) == 156.59


def test_json_carries_every_assumption(pair: ServingPlan, memory: ServingPlan) -> None:
    assumed = strictly(pair)["assumptions"]
    said = {
        "hardware": "8xB200",
        "memory_fraction": 0.9,
        "headroom_bytes": 0,
        "mtp_loaded": False,
        "weights_format": "nvfp4",
        "kv_dtype": "fp8",
        "state_dtype": "fp16",
        "conv_state_dtype": "bf16",
        "input_tokens": 8000,
        "output_tokens": 64_000,
        "acceptance_length": 1.0,
        "user_tokens_per_s": 100.0,
        "layouts": ["tp2 ep2"],
        "engine": "vllm",
        "is_calibrated": True,
        "verbosity": 0.5,
    }
    assert said.items() <= assumed.items()
    assert all(one["source"] for one in assumed["constants"].values())
    assert assumed["constants"]["host_s"]["value"] > 0
    assert "memory_bytes" in assumed["hardware_sources"]
    other = strictly(memory)["assumptions"]
    assert (other["context_tokens"], other["headroom_bytes"]) == (10**6, 2**30)
    assert (other["input_tokens"], other["memory_gib_per_gpu"]) == (None, 79.65)


def test_the_parts_of_a_step_are_all_of_it(pair: ServingPlan) -> None:
    for one in strictly(pair)["models"]:
        for name in ("group", "bound", "provider"):
            parts = one[f"step_seconds_by_{name}"]
            assert sum(parts.values()) == pytest.approx(one["operating_point"]["decode_s"])


def test_a_childs_words_count(pair: ServingPlan) -> None:
    """Half the tokens for the same answer are twice the requests; the parent's stay."""
    for one, verbosity in zip(strictly(pair)["models"], (1.0, 0.5), strict=True):
        per_minute = 60 * one["server_tokens_per_s"] / (64_000 * verbosity)
        assert one["requests_per_minute"] == pytest.approx(per_minute)


def test_memory_of_a_gpu_explains_how_many_it_holds(memory: ServingPlan) -> None:
    for one in strictly(memory)["models"]:
        free = one["gpu_usable_bytes"] - one["gpu_weights_bytes"]
        assert one["max_concurrency"] == free // one["gpu_sequence_bytes"]
        assert one["server_tokens_per_s"] is None
        assert one["operating_point"] is None
        assert one["frontier"] == []
    assert memory.speedup is None


def test_the_requirement_is_answered_in_both_forms(pair: ServingPlan) -> None:
    answer = strictly(pair)["requirement"]
    assert answer["wanted"] == pytest.approx(1.2 * answer["parent"])
    text = printed(pair)
    assert f"= {answer['wanted']:,.0f} (now {answer['parent']:,.0f}" in text
    for cut in answer["uniform_cuts"]:
        axes = ", ".join(cut["axes"])
        line = next(
            one for one in text.splitlines() if f"{axes} to" in one or f"{axes} alone" in one
        )
        assert f"{cut['reached']:,.0f}" in line
        assert (f"{cut['share'] or 0:.0%}" in line) == (cut["share"] is not None)
    assert ("can meet it" in text) == answer["is_within_space"]


def test_tables_say_the_same_as_json(pair: ServingPlan) -> None:
    text, data = printed(pair), strictly(pair)
    for one in data["models"]:
        assert one["name"] in text
        assert f"{one['server_tokens_per_s']:,.0f}" in text
        assert f"{one['max_concurrency']} (tp2 ep2)" in text
        assert f"{one['operating_point']['decode_s'] * 1e3:.2f} ms" in text
    assert f"{data['speedup']:.2f}x" in text


def test_tables_print_what_capacity_turns_on(memory: ServingPlan) -> None:
    text = " ".join(printed(memory).split())
    for said in (
        "H100 with 79.65 GiB each, of which 97% may be used, 1 GiB kept free",
        "weights nvfp4, KV fp8, state fp32, conv state bf16; MTP not loaded",
        "requests of 1,000,000 tokens at once",
        "GB is 10^9 bytes, GiB 2^30",
        "162 MiB",
        "122 MiB",
    ):
        assert said in text
    assert "decode step" not in text


def test_users_whom_no_layout_serves_read_so() -> None:
    options = PlanOptions("H100", workload="8k/1k", user_tokens_per_s=1e4, number_format="nvfp4")
    found = plan(SUPER, PUZZLE, options=options)
    assert "no layout" in printed(found)
    data = strictly(found)
    assert [one["server_tokens_per_s"] for one in data["models"]] == [None, None]
    assert data["speedup"] is None
    assert data["models"][0]["frontier"]


def test_the_picture_has_both_models_and_every_shown_point(pair: ServingPlan) -> None:
    svg = plan_svg(pair)
    assert_inside(svg)
    assert {"super", "puzzle", "100 tokens/s"} <= set(texts(svg))
    shown = "".join(tips(svg))
    for one in pair.models:
        for point in one.outlook.frontier[:5]:
            assert (
                f"tp2 ep2, {point.concurrency:g} requests in flight: "
                f"{point.user_tokens_per_s:.0f} tokens/s each" in shown
            )
