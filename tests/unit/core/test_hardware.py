"""Hardware, workloads and layouts: every number has a source, every text a meaning or an error."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from fretsaw.core.hardware import (
    COMPUTED_IN,
    Hardware,
    Layout,
    Node,
    Workload,
    hardware_named,
    hardware_names,
    parse_layout,
    parse_node,
    parse_workload,
    read_hardware,
    with_memory,
)
from fretsaw.core.precision import FORMATS
from fretsaw.errors import RecipeError

DATA = resources.files("fretsaw") / "data"
GIVEN = {
    "memory_bytes": {"value": 8, "source": "here"},
    "memory_bytes_per_s": {"value": 2.0, "source": "there"},
    "flops_per_s": {"value": {"bf16": 1.0}, "source": "nowhere"},
}


def test_the_hardware_that_was_promised_is_there() -> None:
    assert set(hardware_names()) >= {"H100", "H200", "B200", "GB200", "A100", "L40S", "MI300X"}


@pytest.mark.parametrize("name", hardware_names())
def test_every_number_of_a_hardware_has_a_source(name: str) -> None:
    data = tomllib.loads((DATA / "hardware" / f"{name}.toml").read_text(encoding="utf-8"))
    assert len(data) >= 6
    for entry in data.values():
        assert set(entry) == {"value", "source"}
        assert len(entry["source"]) > 10
    hardware = hardware_named(name)
    assert set(hardware.sources) == set(data)
    assert 0 < hardware.idle_power_w < hardware.board_power_w


@pytest.mark.parametrize("name", hardware_names())
def test_numbers_are_in_bytes_and_per_second(name: str) -> None:
    """No accelerator here has less than 40 GB or more than 300, and so on: a unit gone wrong."""
    hardware = hardware_named(name)
    assert 40e9 < hardware.memory_bytes < 300e9
    assert 0.5e12 < hardware.memory_bytes_per_s < 10e12
    assert 10e9 < hardware.link_bytes_per_s < 1e12
    assert 1e14 < hardware.rate("bf16") < 1e16


def test_an_h100_has_the_memory_of_the_papers_arithmetic() -> None:
    assert hardware_named("H100").memory_bytes / 2**30 == pytest.approx(79.65, abs=0.005)


@pytest.mark.parametrize("name", hardware_names())
@pytest.mark.parametrize("number_format", FORMATS)
def test_every_format_is_computed_in_something(name: str, number_format: str) -> None:
    rate = hardware_named(name).rate(number_format)
    wider = [f for f in COMPUTED_IN[number_format] if f in hardware_named(name).flops_per_s]
    assert rate == hardware_named(name).flops_per_s[wider[0]]


def test_a_format_without_units_is_widened() -> None:
    assert hardware_named("H100").rate("nvfp4") == hardware_named("H100").rate("bf16")
    assert hardware_named("B200").rate("nvfp4") == 2 * hardware_named("B200").rate("fp8")


def test_a_rate_that_nothing_gives_is_refused() -> None:
    with pytest.raises(RecipeError, match="no rate for bf16") as caught:
        Hardware("odd", 1, 1.0, {"fp8": 1.0}).rate("bf16")
    assert "fp8" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [("8xB200", "B200", 8), ("H100", "H100", 1), (" 2 X h100 ", "H100", 2), ("4×l40s", "L40S", 4)],
)
def test_parse_node(text: str, name: str, count: int) -> None:
    node = parse_node(text)
    assert (node.hardware.name, node.count) == (name, count)
    assert parse_node(str(node)) == node


@pytest.mark.parametrize(
    "text", ["", "0xH100", "-1xH100", "8x", "8", "9" * 5000 + "xH100", "٣xH100"]
)
def test_what_is_no_node(text: str) -> None:
    with pytest.raises(RecipeError, match="is no hardware") as caught:
        parse_node(text)
    assert "8xB200" in caught.value.hint


@pytest.mark.parametrize(("name", "guess"), [("B20", "B200"), ("h10", "H100"), ("mi300", "MI300X")])
def test_unknown_hardware_gets_the_nearest_name(name: str, guess: str) -> None:
    with pytest.raises(RecipeError, match="unknown hardware") as caught:
        parse_node(name)
    assert f"did you mean {guess!r}?" in caught.value.hint
    assert all(known in caught.value.hint for known in hardware_names())


def test_this_machine_is_not_in_the_tables() -> None:
    with pytest.raises(RecipeError, match="no data sheet") as caught:
        parse_node("This-Machine")
    assert "recipe" in caught.value.hint


@pytest.mark.parametrize("memory_bytes", [0, -1])
def test_memory_is_above_0(memory_bytes: int) -> None:
    with pytest.raises(RecipeError, match=f"memory_bytes is {memory_bytes}"):
        with_memory(parse_node("H100"), memory_bytes=memory_bytes)


def test_memory_that_is_given_does_not_claim_a_data_sheet() -> None:
    node = with_memory(parse_node("8xH100"), memory_bytes=5)
    assert (node.hardware.memory_bytes, node.count) == (5, 8)
    assert node.hardware.sources["memory_bytes"].startswith("given")
    assert node.hardware.sources["board_power_w"] == hardware_named("H100").sources["board_power_w"]


def test_hardware_is_read_with_its_sources() -> None:
    hardware = read_hardware(GIVEN, name="own")
    assert (hardware.memory_bytes, hardware.rate("fp8")) == (8, 1.0)
    assert hardware.sources == {key: entry["source"] for key, entry in GIVEN.items()}
    assert str(Node(hardware, 3)) == "3xown"


@pytest.mark.parametrize(
    ("change", "said", "hint"),
    [
        ({"memory_byte": GIVEN["memory_bytes"]}, "unknown field 'memory_byte'", "'memory_bytes'"),
        ({"memory_bytes": {"value": 8}}, "memory_bytes has no value or no source", "both"),
        ({"memory_bytes": 8}, "memory_bytes has no value or no source", "both"),
        ({"memory_bytes": None}, "memory_bytes is missing", "source"),
        ({"memory_bytes": {"value": -8, "source": "here"}}, "memory_bytes is -8", "above 0"),
    ],
)
def test_hardware_that_cannot_be_read(change: dict, said: str, hint: str) -> None:
    data = {key: entry for key, entry in (GIVEN | change).items() if entry is not None}
    with pytest.raises(RecipeError) as caught:
        read_hardware(data, name="own")
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_a_workload_counts_in_thousands() -> None:
    workload = parse_workload("8k/64k")
    assert (workload.input_tokens, workload.output_tokens) == (8000, 64_000)
    assert (workload.mean_context, workload.peak_context) == (40_000, 72_000)
    assert str(workload) == "8k/64k"
    assert str(parse_workload("1234/1")) == "1234/1"


@pytest.mark.parametrize(
    "text", ["", "8k", "8k/", "8k/64k/1", "8k-64k", "0/5", "5/0", "a/b", "-1/5"]
)
def test_what_is_no_workload(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_workload(text)
    assert caught.value.hint


@pytest.mark.parametrize("length", [0.99, -1.0, float("nan"), float("inf"), 5.1])
def test_an_acceptance_length_is_from_1_to_the_answer(length: float) -> None:
    with pytest.raises(RecipeError, match="acceptance length"):
        Workload(10, 5, length)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("tp2", Layout(2)),
        ("TP2 ep2", Layout(2, 1, 2)),
        ("dp4, ep8 tp2", Layout(2, 4, 8)),
        ("dp2", Layout(1, 2)),
    ],
)
def test_parse_layout(text: str, layout: Layout) -> None:
    assert parse_layout(text) == layout
    assert parse_layout(str(layout)) == layout


def test_a_replica_has_the_gpus_of_its_groups() -> None:
    assert Layout(2, 4, 8).gpus == 8
    assert str(Layout(2, 4, 8)) == "tp2 dp4 ep8"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        "tp",
        "tp0",
        "tp2 tp4",
        "pp2",
        "tp2 ep4",
        "ep2",
        "tp-1",
        "all tp2",
        "tp" + "9" * 5000,
    ],
)
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_layout(text)
    assert caught.value.hint
