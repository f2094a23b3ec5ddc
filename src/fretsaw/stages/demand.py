"""The serving terms of a recipe as demands on a model: hardware, layouts, formats, prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fretsaw.core.deployment import deploy
from fretsaw.core.engines import BY_THE_BYTE, CacheRule, engine_named
from fretsaw.core.hardware import (
    ONE_GPU,
    Hardware,
    Layout,
    Node,
    Workload,
    parse_layout,
    parse_node,
    parse_workload,
)
from fretsaw.core.precision import Precision, preset
from fretsaw.core.shape import ModelShape
from fretsaw.errors import RecipeError
from fretsaw.families import family_named
from fretsaw.families.base import ContextLimit
from fretsaw.pricing.blocks import check_layout
from fretsaw.pricing.energy import EnergyModel
from fretsaw.pricing.provider import pricers
from fretsaw.recipe.sections import Serve
from fretsaw.serving.alternatives import Alternative, Price, alternatives_of
from fretsaw.serving.capacity import Assumptions
from fretsaw.serving.demand import Demand, EnergiesOf, PricesOf, target_of
from fretsaw.serving.frontier import replica_layouts
from fretsaw.serving.reach import reachable
from fretsaw.solver.alternatives import Terms
from fretsaw.solver.mip import Problem

DEFAULT_ENGINE = "vllm"
FORMAT_OF = {"float32": "fp32", "bfloat16": "bf16"}
"""Working dtype -> number format of a deployment on this machine."""


@dataclass(frozen=True)
class Parent:
    """The original parent: what demands refer to, and must fit.

    Attributes:
        shape: Its shape.
        config: Its config.
    """

    shape: ModelShape
    config: Mapping[str, Any]


class OnGpus(NamedTuple):
    """A demand on known hardware, and who prices each of its layouts.

    Attributes:
        demand: What is asked.
        prices_of: Seconds.
        energies_of: Joules; None where the hardware's power is not known.
        notes: Formats that do not run in units of their own there.
    """

    demand: Demand
    prices_of: PricesOf
    energies_of: EnergiesOf | None
    notes: tuple[str, ...] = ()


def demand_on_gpus(serve: Serve, parent: Parent, *, number_format: str) -> OnGpus:
    """A demand on known hardware, and who prices each of its layouts.

    Args:
        serve: As the recipe has it.
        parent: Whose layouts and longest context count.
        number_format: Unless the demand gives its own.

    Raises:
        RecipeError: a layout that the model or the node cannot have, too long a context, or energy
            where no power is known.
    """
    node = parse_node(serve.hardware)
    if serve.layout is None:
        layouts = replica_layouts(parent.shape, node)
    else:
        layouts = [parse_layout(serve.layout)]
        check_layout(parent.shape, layouts[0], gpus=node.count)
    engine = serve.engine or DEFAULT_ENGINE
    asked = preset(serve.format or number_format)
    try:
        deployment = deploy(
            asked, parent.shape, engine=engine_named(engine), hardware=node.hardware
        )
    except RecipeError as error:
        raise RecipeError(f"search.budget.serve ({serve}): {error.message}", error.hint) from error
    precision = deployment.precision
    demand = _demand(
        serve,
        parent,
        node=node,
        layouts=layouts,
        precision=precision,
        cache=engine_named(engine).cache,
    )
    prices_of = pricers(node.hardware, engine=engine, precision=precision)

    def energies_of(layout: Layout) -> EnergyModel:
        pricer = prices_of(layout)
        return EnergyModel(pricer.timer, node.hardware, layout, precision, pricer.host_s)

    has_power = node.hardware.board_power_w > node.hardware.idle_power_w > 0
    if serve.joules_per_token and not has_power:
        raise RecipeError(
            f"search.budget.serve ({serve}): the power of {node.hardware.name} is not known",
            "remove joules_per_token",
        )
    return OnGpus(demand, prices_of, energies_of if has_power else None, deployment.notes)


def demand_here(serve: Serve, parent: Parent, *, hardware: Hardware, dtype: str) -> Demand:
    """A demand on this machine.

    Args:
        serve: As the recipe has it.
        parent: Whose longest context counts.
        hardware: This machine.
        dtype: Working dtype of the run.

    Raises:
        RecipeError: too long a context, or a dtype without a number format.
    """
    if dtype not in FORMAT_OF:
        raise RecipeError(
            f"compute.dtype {dtype} cannot be priced on this machine",
            f"take {' or '.join(FORMAT_OF)}",
        )
    precision = preset(FORMAT_OF[dtype])
    return _demand(serve, parent, node=Node(hardware), layouts=[ONE_GPU], precision=precision)


def _demand(
    serve: Serve,
    parent: Parent,
    *,
    node: Node,
    layouts: Sequence[Layout],
    precision: Precision,
    cache: CacheRule = BY_THE_BYTE,
) -> Demand:
    workload = None
    if serve.workload is not None:
        asked = parse_workload(serve.workload)
        workload = Workload(asked.input_tokens, asked.output_tokens, serve.acceptance_length)
    return Demand(
        text=str(serve),
        node=node,
        layouts=tuple(layouts),
        precision=precision,
        context=check_context(serve, parent),
        assumptions=Assumptions(serve.memory_fraction, cache=cache),
        workload=workload,
        user_tokens_per_s=serve.user_tokens_per_s,
        concurrency=serve.concurrency,
        speedup=serve.speedup,
        server_tokens_per_s=serve.server_tokens_per_s,
        joules_per_token=serve.joules_per_token,
    )


def check_context(serve: Serve, parent: Parent) -> int:
    """Tokens of a request at its end.

    Raises:
        RecipeError: more than the model has positions for.
    """
    if serve.workload is not None:
        context = parse_workload(serve.workload).peak_context
    else:
        context = serve.context or 0
    limit = ContextLimit(*family_named(parent.shape.family).context_limits(parent.config))
    if context > limit.served:
        raise RecipeError(
            f"search.budget.serve ({serve}): a context of {context:,} tokens is longer than the "
            f"model's {limit.served:,}",
            limit.hint,
        )
    return context


@dataclass(frozen=True)
class Priced:
    """A demand in numbers: the layouts that can meet it, and what every form of a block takes."""

    alternatives: Sequence[Alternative]
    prices: Sequence[Price]

    def terms(self, problem: Problem) -> list[Terms]:
        """One way to meet it per layout, for the variants of a problem."""
        return [one.terms(self.prices, problem=problem) for one in self.alternatives]


def price_demand(
    demand: Demand,
    library: Problem,
    *,
    number: int,
    parent: ModelShape,
    prices_of: PricesOf,
    energies_of: EnergiesOf | None = None,
) -> Priced:
    """Price every form of every block of a library under each layout of a demand.

    Args:
        demand: What is asked.
        library: The model that is cut, and its variants.
        number: Of the demand in the recipe, from 0.
        parent: The original parent.
        prices_of: Of the parent and of every form.
        energies_of: Of every form, where power is known.

    Raises:
        InfeasibleError: no model of the library can meet it.
    """
    target = target_of(demand, parent, prices_of=prices_of)
    alternatives = alternatives_of(target, number=number, parent=parent, prices_of=prices_of)
    forms = [v.apply(library.shape.blocks[v.block]) for v in library.usable]
    prices = [
        price
        for one in alternatives
        for price in one.price(
            forms,
            shape=library.shape,
            prices=prices_of(one.layout),
            energies=energies_of(one.layout) if energies_of else None,
        )
    ]
    kept = reachable(alternatives, library, prices=prices, prices_of=prices_of)
    return Priced(kept, prices)
