"""From a target and the prices of variants to budgets of the search: one alternative per layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fretsaw.core.hardware import Layout, parse_layout
from fretsaw.core.shape import Block, ModelShape
from fretsaw.core.tables import ScoreKey
from fretsaw.core.units import format_bytes, format_count, format_latency
from fretsaw.core.variant import Choice
from fretsaw.pricing.footprint import (
    Footprint,
    Pages,
    footprints,
    mtp_footprint,
    padding,
    pages_of,
)
from fretsaw.pricing.kernels import Step
from fretsaw.serving.capacity import usable_bytes
from fretsaw.serving.demand import (
    Demand,
    Energies,
    Load,
    Prices,
    PricesOf,
    RequestJoules,
    RequestTimes,
    Target,
    decode_and_prefill,
    sequences_on,
    token_joules,
    token_seconds,
    token_seconds_of,
)
from fretsaw.serving.prediction import Prediction
from fretsaw.solver.alternatives import Terms
from fretsaw.solver.budget import Budget, PricedCost
from fretsaw.solver.mip import Problem

TENSOR_TABLE = "tensor table"
"""Provider of what follows from sizes alone."""

Key = tuple[object, ...]
Forms = Mapping[ScoreKey, Block]
"""(block, variant key) -> the block in this form."""


def block_key(block: Block | None) -> Key:
    """Equal for blocks that take the same; of what is no block, empty."""
    return (block.mixer, *sorted(block.values.items())) if block else ()


@dataclass(frozen=True)
class Price:
    """What a form of a block takes under a layout, at the load of a target.

    Attributes:
        demand: Number of the demand in the recipe, from 0.
        layout: As users write it.
        block: The form; None stands for what is no block.
        times: Of its replica; None where only memory counts.
        joules: Of all its GPUs; None where no power is known.
        footprint: Memory of one GPU.
        provider: Who says what it takes.
    """

    demand: int
    layout: str
    block: Block | None
    times: RequestTimes | None
    joules: RequestJoules | None
    footprint: Footprint
    provider: str

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        times = self.times._asdict() if self.times else None
        joules = self.joules._asdict() if self.joules else None
        return {**asdict(self), "times": times, "joules": joules}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Price:
        """Inverse of `to_json`.

        Raises:
            ValueError, KeyError, TypeError: the data is not that of a price.
        """
        return cls(
            demand=int(data["demand"]),
            layout=str(data["layout"]),
            block=Block(**data["block"]) if data["block"] else None,
            times=RequestTimes(**data["times"]) if data["times"] else None,
            joules=RequestJoules(**data["joules"]) if data["joules"] else None,
            footprint=Footprint(**data["footprint"]),
            provider=str(data["provider"]),
        )


@dataclass(frozen=True)
class Alternative:
    """A target under one layout.

    Attributes:
        number: Of the demand in the recipe, from 0.
        target: What the demand comes to.
        layout: Of each replica.
        parent_token_s: Time of a token of the original parent at this load; None where only
            memory counts.
    """

    number: int
    target: Target
    layout: Layout
    parent_token_s: float | None = None

    @property
    def sequences(self) -> float:
        """Requests in flight on one replica."""
        return sequences_on(self.target.demand.node, self.target.in_flight, layout=self.layout)

    def __str__(self) -> str:
        """As in messages: ``8xB200 tp2, 104 of 8k/64k in flight``."""
        demand = self.target.demand
        requests = demand.workload or f"{format_count(demand.context)} tokens"
        return f"{demand.node} {self.layout}, {self.target.in_flight:.4g} of {requests} in flight"

    @property
    def token_cost(self) -> str:
        """Name of the cost that bounds the time of a token."""
        return f"token_ns ({self})"

    @property
    def memory_cost(self) -> str:
        """Name of the cost that bounds the memory of a GPU."""
        return f"gpu_bytes ({self})"

    @property
    def energy_cost(self) -> str:
        """Name of the cost that bounds the energy of a token."""
        return f"token_nj ({self})"

    @property
    def usable_bytes(self) -> int:
        """Memory of one GPU."""
        demand = self.target.demand
        return usable_bytes(demand.node, demand.assumptions)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back, beside the demand."""
        parent = self.target.parent
        return {
            "demand": self.target.demand.text,
            "layout": str(self.layout),
            "in_flight": self.target.in_flight,
            "token_limit_s": self.target.token_s,
            "parent_token_s": self.parent_token_s,
            "parent": {**asdict(parent), "layout": str(parent.layout)} if parent else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, number: int, demand: Demand) -> Alternative:
        """Inverse of `to_json`."""
        parent = data["parent"]
        load = Load(**{**parent, "layout": parse_layout(parent["layout"])}) if parent else None
        target = Target(demand, data["in_flight"], data["token_limit_s"], load)
        return cls(number, target, parse_layout(data["layout"]), data["parent_token_s"])

    def price(
        self,
        blocks: Iterable[Block],
        *,
        shape: ModelShape,
        prices: Prices,
        energies: Energies | None = None,
    ) -> Iterator[Price]:
        """Of what is no block, then of each different block.

        Args:
            blocks: Forms of blocks.
            shape: The model that they are part of.
            prices: Under this layout.
            energies: Under this layout, where power is known.
        """
        demand = self.target.demand
        distinct = list({block_key(b): b for b in blocks if b.mixer != "none"}.values())
        heads = shape.mtp if demand.assumptions.has_mtp else ()
        pages = self._pages((*distinct, *heads))
        held, rest = footprints(
            shape.with_blocks(distinct), demand.precision, layout=self.layout, pages=pages
        )
        if heads:
            rest += mtp_footprint(shape, demand.precision, layout=self.layout, pages=pages)
        rest += padding((*shape.blocks, *heads), pages=pages)
        parts = [(None, rest), *zip(distinct, held, strict=True)]
        for block, footprint in parts:
            times, provider = self._times(block, shape=shape, prices=prices)
            joules = self._joules(block, shape=shape, energies=energies)
            yield Price(self.number, str(self.layout), block, times, joules, footprint, provider)

    def _pages(self, forms: Sequence[Block]) -> Pages:
        """The pages that a request may fill worst: which ones, the Mamba state on offer decides."""
        demand = self.target.demand
        others = [form for form in forms if form.mixer != "mamba"]
        found = [
            pages_of(
                [*others, *state],
                demand.precision,
                layout=self.layout,
                rule=demand.assumptions.cache,
            )
            for state in [[form] for form in forms if form.mixer == "mamba"] or [[]]
        ]
        return max(found, key=lambda pages: -(-demand.context // pages.tokens) * pages.tokens)

    def _times(
        self, block: Block | None, *, shape: ModelShape, prices: Prices
    ) -> tuple[RequestTimes | None, str]:
        """Times of a block, or of what is no block, and who says so."""
        workload = self.target.demand.workload
        if workload is None:
            return None, TENSOR_TABLE

        def seconds(step: Step) -> float:
            if block is None:
                return prices.fixed_seconds(shape, step=step)
            return prices.block_seconds(block, step=step)

        part = shape.with_blocks([block] if block else ())
        step = Step(self.sequences, 1, workload.mean_context)
        return RequestTimes(*self._per_request(seconds)), prices.provider(part, step=step)

    def _joules(
        self, block: Block | None, *, shape: ModelShape, energies: Energies | None
    ) -> RequestJoules | None:
        if energies is None or self.target.demand.workload is None:
            return None

        def joules(step: Step) -> float:
            if block is None:
                return energies.fixed(shape, step=step).joules
            return energies.block(block, step=step).joules

        return RequestJoules(*self._per_request(joules))

    def _per_request(self, of: Callable[[Step], float]) -> tuple[float, float]:
        workload = self.target.demand.workload
        assert workload is not None
        return decode_and_prefill(
            of, workload=workload, layout=self.layout, sequences=self.sequences
        )

    def costs(self, prices: Iterable[Price], *, forms: Forms) -> list[PricedCost]:
        """Time of a token and memory of a GPU, as costs of every variant.

        Args:
            prices: Of every form, and of what is no block; those of other alternatives are passed
                over.
            forms: (block, variant key) -> its form.
        """
        own = (p for p in prices if (p.demand, p.layout) == (self.number, str(self.layout)))
        by_key = {block_key(price.block): price for price in own}
        none, no_time, no_joules = Block("none"), RequestTimes(0.0, 0.0), RequestJoules(0.0, 0.0)
        nothing = Price(self.number, "", none, no_time, no_joules, Footprint(), "")
        by_key[block_key(nothing.block)] = nothing
        of = {key: by_key[block_key(block)] for key, block in forms.items()}
        counted: dict[str, Callable[[Price], int]] = {self.memory_cost: self._bytes}
        if self.target.token_s is not None:
            counted[self.token_cost] = self._nanoseconds
        if self.target.demand.joules_per_token is not None:
            counted[self.energy_cost] = self._nanojoules
        return [
            PricedCost(name, count(by_key[()]), {key: count(price) for key, price in of.items()})
            for name, count in counted.items()
        ]

    def terms(self, prices: Iterable[Price], *, problem: Problem) -> Terms:
        """Costs and bounds for the variants of a problem."""
        forms = {(v.block, v.key): v.apply(problem.shape.blocks[v.block]) for v in problem.usable}
        return Terms(self.costs(prices, forms=forms), self.budgets())

    def budgets(self) -> list[Budget]:
        """Bounds on those costs, that of memory first."""
        usable, target = self.usable_bytes, self.target
        budgets = [Budget(self.memory_cost, usable, format_bytes(usable))]
        if target.token_s is not None:
            text = format_latency(target.token_s)
            if self.parent_token_s is not None:
                text += f"; the parent takes {format_latency(self.parent_token_s)}"
            budgets.append(Budget(self.token_cost, target.token_s * 1e9, text))
        joules = target.demand.joules_per_token
        if joules is not None:
            budgets.append(Budget(self.energy_cost, joules * 1e9, f"{joules:g} J"))
        return budgets

    def _bytes(self, price: Price) -> int:
        whole = math.ceil(self.sequences / self.layout.dp)
        each = price.footprint.sequence_bytes(self.target.demand.context)
        return price.footprint.weights_bytes + math.ceil(whole * each)

    def _nanoseconds(self, price: Price) -> int:
        workload = self.target.demand.workload
        assert workload is not None
        assert price.times is not None
        seconds = token_seconds(price.times, workload=workload, sequences=self.sequences)
        return math.ceil(seconds * 1e9)

    def _nanojoules(self, price: Price) -> int:
        workload = self.target.demand.workload
        assert workload is not None
        assert price.joules is not None
        joules = token_joules(price.joules, workload=workload, sequences=self.sequences)
        return math.ceil(joules * 1e9)

    def predict(self, choice: Choice) -> Prediction:
        """What a choice does under this layout, by the prices."""
        target, nanoseconds = self.target, choice.costs.get(self.token_cost)
        token_s = nanoseconds / 1e9 if nanoseconds else None
        rate = target.in_flight / token_s if token_s else None
        parent = target.parent.server_tokens_per_s if target.parent else None
        nanojoules = choice.costs.get(self.energy_cost)
        return Prediction(
            demand=target.demand.text,
            layout=str(self.layout),
            in_flight=target.in_flight,
            token_s=token_s,
            token_limit_s=target.token_s,
            server_tokens_per_s=rate,
            parent_server_tokens_per_s=parent,
            speedup=rate / parent if rate and parent else None,
            asked_speedup=target.demand.speedup,
            joules_per_token=nanojoules / 1e9 if nanojoules else None,
            gpu_bytes=int(choice.costs[self.memory_cost]),
            usable_bytes=self.usable_bytes,
        )


def alternatives_of(
    target: Target, *, number: int, parent: ModelShape, prices_of: PricesOf
) -> list[Alternative]:
    """A target under each layout of its demand.

    Args:
        target: What the demand comes to.
        number: Of the demand in the recipe.
        parent: The original parent, whose time is told beside the budget.
        prices_of: Of every layout.
    """
    demand = target.demand
    found = []
    for layout in demand.layouts:
        seconds = None
        if demand.workload is not None:
            seconds = token_seconds_of(
                parent,
                demand,
                in_flight=target.in_flight,
                layout=layout,
                prices=prices_of(layout),
            )
        found.append(Alternative(number, target, layout, seconds))
    return found
