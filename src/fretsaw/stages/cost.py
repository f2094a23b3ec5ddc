"""What every form of a block costs: parameters and bytes, and what serving demands turn on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.hardware import Hardware
from fretsaw.core.tables import read_lines
from fretsaw.pricing.measure import points_to_measure
from fretsaw.pricing.memory import costs_by_block
from fretsaw.recipe.sections import Serve
from fretsaw.runtime.machine import measure_machine
from fretsaw.runtime.timing import Effort, Subject
from fretsaw.serving.alternatives import TENSOR_TABLE, Alternative, Price, block_key
from fretsaw.serving.demand import Demand
from fretsaw.solver.mip import Problem
from fretsaw.stages.demand import Parent, Priced, demand_here, demand_on_gpus, price_demand
from fretsaw.stages.describe import read_shape
from fretsaw.stages.library import read_library
from fretsaw.stages.machine import MachinePrices, learn_margins, step_text
from fretsaw.stages.models import open_model
from fretsaw.stages.run import RunRound, Stage

COSTS = "costs.jsonl"
PRICES = "prices.jsonl"
DEMANDS = "demands.json"
HARDWARE = "this-machine.json"
MARGINS = "margins-{}.json"
"""Of each demand on this machine, by its number."""

CORNERS = 2
"""Values of each size that are measured: what lies between is a line in bytes and FLOPs."""

EFFORT = Effort(seconds=1.5)

MEASURED = "measured.jsonl"
"""Of the whole run: what one round has measured, later ones need not."""


def _body(round_: RunRound, folder: Path) -> None:
    library = library_of(round_)
    _write_lines(folder / COSTS, _cost_rows(library))
    priced = [
        _priced(round_, serve, library=library, number=number, folder=folder)
        for number, serve in enumerate(round_.settings.search.budget.serve)
    ]
    if not priced:
        return
    _write_lines(folder / PRICES, (price.to_json() for one in priced for price in one.prices))
    write_json(folder / DEMANDS, [[a.to_json() for a in one.alternatives] for one in priced])


def library_of(round_: RunRound) -> Problem:
    """The variants of a round without scores: all 0."""
    variants = read_library(round_.result("03-library"))
    scores = {(v.block, v.key): 0.0 for vs in variants.values() for v in vs}
    return Problem(read_shape(round_.result("00-describe")), variants, scores, ())


def _cost_rows(library: Problem) -> Iterable[dict[str, Any]]:
    """A row for each different form of a block."""
    forms = (v.apply(library.shape.blocks[v.block]) for v in library.usable)
    distinct = {block_key(form): form for form in forms}.values()
    costs = costs_by_block(library.shape.with_blocks(distinct))
    for form, its in zip(distinct, costs, strict=True):
        yield {"block": asdict(form), "costs": its, "provider": TENSOR_TABLE}


def _write_lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _priced(
    round_: RunRound, serve: Serve, *, library: Problem, number: int, folder: Path
) -> Priced:
    parent = parent_of(round_)
    if serve.is_here:
        return _priced_here(round_, serve, library=library, number=number, folder=folder)
    known = demand_on_gpus(serve, parent, number_format=round_.settings.library.precision)
    for note in known.notes:
        round_.run.reporter.warn(f"search.budget.serve ({serve}): {note}")
    return price_demand(
        known.demand,
        library,
        number=number,
        parent=parent.shape,
        prices_of=known.prices_of,
        energies_of=known.energies_of,
    )


def _priced_here(
    round_: RunRound, serve: Serve, *, library: Problem, number: int, folder: Path
) -> Priced:
    """By measurement, corrected by what the whole parent was measured to take."""
    parent, compute, say = parent_of(round_), round_.run.recipe.compute, round_.run.reporter.say
    model = open_model(round_.run.parent, compute).model
    hardware = measure_machine().hardware
    write_json(folder / HARDWARE, asdict(hardware))
    demand = demand_here(serve, parent, hardware=hardware, dtype=compute.dtype)
    own = (block for block, _ in parent.shape.distinct)
    forms = (v.apply(library.shape.blocks[v.block]) for v in library.usable)
    prices = MachinePrices(
        Subject(parent.shape, parent.config, getattr(torch, compute.dtype)),
        round_.run.folder / MEASURED,
        blocks=points_to_measure([*own, *forms], nodes=CORNERS),
        precision=demand.precision,
        effort=EFFORT,
        on_step=lambda step: say(f"  measuring {step_text(step)}"),
    )
    if demand.workload is not None:
        margins = learn_margins(prices, model, demand=demand)
        write_json(folder / MARGINS.format(number), margins.to_json())
        for line in margins.told():
            say(f"  {line}")
        prices = prices.corrected(margins)
    priced = price_demand(
        demand, library, number=number, parent=parent.shape, prices_of=lambda _: prices
    )
    for line in prices.told():
        say(f"  {line}")
    return priced


def parent_of(round_: RunRound) -> Parent:
    """The original parent, which demands refer to."""
    parent = Checkpoint(round_.run.parent)
    return Parent(parent.shape, parent.config)


COST = Stage(
    "05-cost",
    needs=("00-describe", "03-library"),
    settings=("search.budget", "library", "compute"),
    body=_body,
)


def read_priced(round_: RunRound) -> list[Priced]:
    """What a finished `cost` wrote of each demand of its round."""
    folder = round_.result(COST.name)
    if not round_.settings.search.budget.serve:
        return []
    prices = read_lines(folder / PRICES, Price.from_json)
    data = json.loads((folder / DEMANDS).read_text(encoding="utf-8"))
    priced = []
    for number, serve in enumerate(round_.settings.search.budget.serve):
        demand = _demand(round_, serve, folder=folder)
        alternatives = [
            Alternative.from_json(one, number=number, demand=demand) for one in data[number]
        ]
        priced.append(Priced(alternatives, [p for p in prices if p.demand == number]))
    return priced


def _demand(round_: RunRound, serve: Serve, *, folder: Path) -> Demand:
    parent = parent_of(round_)
    if not serve.is_here:
        return demand_on_gpus(serve, parent, number_format=round_.settings.library.precision).demand
    hardware = Hardware(**json.loads((folder / HARDWARE).read_text(encoding="utf-8")))
    return demand_here(serve, parent, hardware=hardware, dtype=round_.run.recipe.compute.dtype)
