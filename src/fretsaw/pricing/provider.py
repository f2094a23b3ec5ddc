"""Who prices a model on a hardware: the tables and constants of an engine, in one place."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from fretsaw.core.hardware import Hardware, Layout
from fretsaw.core.precision import Precision
from fretsaw.pricing.energy import EnergyModel
from fretsaw.pricing.kernels import Timer
from fretsaw.pricing.lookup import TableTimer, load_tables
from fretsaw.pricing.roofline import Constants, RooflineTimer
from fretsaw.pricing.step import Pricer

LIKE = {"H200": "H100", "GB200": "B200"}
"""Hardware of the same architecture, whose constants hold until somebody has calibrated its own."""

TABLES = {"H100": "h100_sxm", "H200": "h200_sxm", "B200": "b200_sxm", "GB200": "gb200"}
"""Hardware -> folder of its measured kernels."""


BACKENDS = {"vllm": ("vllm",), "sglang": ("sglang",), "tensorrt-llm": ("trtllm",)}
"""Engine -> its own tables, where constants.toml names no others."""


@dataclass(frozen=True)
class EngineModel:
    """How an engine is priced on a hardware.

    Attributes:
        constants: Of the roofline and the step.
        tables: Measured tables in the order they are asked.
        without_experts: Tables whose experts are not believed.
        sources: Constant -> where its value comes from.
        is_calibrated: Whether a constant was fitted to published or measured points of it.
        like: Hardware whose constants stand in for its own.
    """

    constants: Constants
    tables: tuple[str, ...]
    without_experts: tuple[str, ...]
    sources: Mapping[str, str]
    is_calibrated: bool
    like: str = ""


def engine_model(hardware: Hardware, engine: str) -> EngineModel:
    """Constants and tables of an engine on a hardware; defaults where nothing else is known."""
    data = _constants()
    name = hardware.name if hardware.name in data else LIKE.get(hardware.name, "")
    chosen: Mapping[str, Any] = data.get(name, {}).get(engine, {})
    entries = {**data["default"], **{k: v for k, v in chosen.items() if isinstance(v, dict)}}
    values = {name: float(entry["value"]) for name, entry in entries.items()}
    has_tables = hardware.name in TABLES
    tables = tuple(chosen.get("tables", BACKENDS.get(engine, ())))
    return EngineModel(
        Constants(**values),
        tables if has_tables else (),
        tuple(chosen.get("without_experts", ())),
        {name: entry["source"] for name, entry in entries.items()},
        bool(chosen) and name == hardware.name,
        name if chosen and name != hardware.name else "",
    )


@cache
def _constants() -> dict[str, dict[str, Any]]:
    path = resources.files("fretsaw") / "data" / "constants.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def timer_of(hardware: Hardware, model: EngineModel) -> Timer:
    """Asks the engine's tables in their order, then the roofline."""
    timer: Timer = RooflineTimer(hardware, model.constants)
    for backend in reversed(model.tables):
        tables = load_tables(TABLES[hardware.name], backend=backend)
        if backend in model.without_experts:
            tables = replace(tables, experts={})
        timer = TableTimer(tables, fallback=timer)
    return timer


def pricers(hardware: Hardware, *, engine: str, precision: Precision) -> Callable[[Layout], Pricer]:
    """Gives the pricer of each layout, every one made once.

    Args:
        hardware: One accelerator.
        engine: Whose tables and constants.
        precision: Number formats.
    """
    return pricers_of(hardware, engine_model(hardware, engine), precision=precision)


def pricers_of(
    hardware: Hardware, model: EngineModel, *, precision: Precision
) -> Callable[[Layout], Pricer]:
    """The same for constants of one's own."""
    timer = timer_of(hardware, model)
    made: dict[Layout, Pricer] = {}

    def of(layout: Layout) -> Pricer:
        if layout not in made:
            c = model.constants
            made[layout] = Pricer(
                timer, layout, precision, c.host_s, c.shared_overlap, c.sequence_s
            )
        return made[layout]

    return of


def energy_models(
    hardware: Hardware, model: EngineModel, *, precision: Precision
) -> Callable[[Layout], EnergyModel]:
    """Gives the energy model of each layout."""
    timer = timer_of(hardware, model)
    return lambda layout: EnergyModel(timer, hardware, layout, precision, model.constants.host_s)
