"""Who prices an engine on a hardware: sources, calibrated or not, and what stands in."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from importlib import resources

import pytest

from fretsaw.core.hardware import Layout, hardware_named, hardware_names
from fretsaw.core.precision import preset
from fretsaw.pricing.kernels import Kernel, gemm
from fretsaw.pricing.provider import energy_models, engine_model, pricers, timer_of
from fretsaw.pricing.roofline import Constants, RooflineTimer

ENGINES = ("vllm", "sglang", "tensorrt-llm", "transformers", "llama.cpp")
CONSTANTS = tomllib.loads(
    (resources.files("fretsaw") / "data" / "constants.toml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", hardware_names())
@pytest.mark.parametrize("engine", ENGINES)
def test_every_constant_has_a_value_and_a_source(name: str, engine: str) -> None:
    model = engine_model(hardware_named(name), engine)
    assert set(model.sources) == {one.name for one in fields(Constants)}
    assert all(len(source) > 10 for source in model.sources.values())
    assert all(value >= 0 for value in vars(model.constants).values())


def test_every_entry_of_the_file_is_used_and_sourced() -> None:
    known = {one.name for one in fields(Constants)}
    assert set(CONSTANTS["default"]) == known
    for name, engines in CONSTANTS.items():
        for entries in [engines] if name == "default" else engines.values():
            constants = {key: one for key, one in entries.items() if isinstance(one, dict)}
            assert set(constants) <= known
            assert all(set(one) == {"value", "source"} for one in constants.values())


def test_the_file_says_the_defaults_of_the_class() -> None:
    values = {name: entry["value"] for name, entry in CONSTANTS["default"].items()}
    assert Constants(**values) == Constants()


@pytest.mark.parametrize(
    ("name", "engine", "is_calibrated", "like"),
    [
        ("B200", "vllm", True, ""),
        ("H100", "vllm", True, ""),
        ("H200", "vllm", False, "H100"),
        ("GB200", "vllm", False, "B200"),
        ("B200", "sglang", False, ""),
        ("A100", "vllm", False, ""),
    ],
)
def test_what_was_calibrated_is_told_from_what_stands_in(
    name: str, engine: str, is_calibrated: bool, like: str
) -> None:
    model = engine_model(hardware_named(name), engine)
    assert (model.is_calibrated, model.like) == (is_calibrated, like)
    if like:
        assert model.constants == engine_model(hardware_named(like), engine).constants
    if not is_calibrated and not like:
        assert model.constants == Constants()


def test_hardware_without_tables_is_priced_by_the_roofline() -> None:
    hardware = hardware_named("A100")
    model = engine_model(hardware, "vllm")
    assert model.tables == ()
    assert timer_of(hardware, model) == RooflineTimer(hardware, Constants())


def test_tables_are_asked_in_their_order_and_the_roofline_last() -> None:
    hardware = hardware_named("H100")
    timer = timer_of(hardware, engine_model(hardware, "vllm"))
    asked = gemm(64, outputs=4096, inputs=4096, fmt="bf16", group="head")
    assert timer.time(asked).provider == "table"
    assert timer.time(Kernel("stream", "norm")).provider == "roofline"


def test_a_layout_has_one_pricer() -> None:
    of = pricers(hardware_named("A100"), engine="vllm", precision=preset("bf16"))
    assert of(Layout(2)) is of(Layout(2))
    assert of(Layout(2)).layout == Layout(2)
    assert of(Layout(2)).host_s == Constants().host_s


def test_energy_of_a_layout_is_priced_by_the_same_timer() -> None:
    hardware = hardware_named("A100")
    model = engine_model(hardware, "vllm")
    energy = energy_models(hardware, model, precision=preset("fp8"))(Layout(4))
    assert (energy.timer, energy.layout) == (timer_of(hardware, model), Layout(4))
