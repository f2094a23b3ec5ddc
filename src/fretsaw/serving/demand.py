"""A demand in serving terms, and what it comes to: requests in flight and the time of a token.

With B requests in flight on a replica, each token of a request of I input and O output tokens takes

    token_s = decode_s(B) / acceptance + B * prefill_s(I) / O

so "R server tokens/s at u tokens/s for each user" means: with R / u requests in flight on the node
a token takes at most 1 / u, and memory holds them. For one layout both are sums over blocks.

Source: the time of a request as in `fretsaw.serving.frontier`; the rest: Own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from fretsaw.core.hardware import Layout, Node, Workload
from fretsaw.core.precision import Precision
from fretsaw.core.shape import Block, ModelShape
from fretsaw.errors import InfeasibleError
from fretsaw.pricing.energy import Energy
from fretsaw.pricing.kernels import Step
from fretsaw.serving.capacity import USUAL, Assumptions, capacity
from fretsaw.serving.frontier import prefill_steps

HALVINGS = 30
"""Of the interval in which the most requests at a user speed lie: to a billionth of it."""


class Prices(Protocol):
    """Says what each block takes of a step, and what is no block."""

    def block_seconds(self, block: Block, *, step: Step) -> float:
        """Seconds of one residual block."""
        ...

    def fixed_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of what is no block."""
        ...

    def step_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of the whole model."""
        ...

    def provider(self, shape: ModelShape, *, step: Step) -> str:
        """Who says what the model's blocks take, or what is no block if it has none."""
        ...


class Energies(Protocol):
    """Says what each block, and what is no block, takes of a step in joules."""

    def block(self, block: Block, *, step: Step) -> Energy:
        """Energy of one residual block, on all GPUs of a replica."""
        ...

    def fixed(self, shape: ModelShape, *, step: Step) -> Energy:
        """Energy of what is no block."""
        ...


EnergiesOf = Callable[[Layout], Energies]
"""Gives the energies under a layout."""

PricesOf = Callable[[Layout], Prices]
"""Gives the prices under a layout."""


@dataclass(frozen=True)
class Demand:
    """What a child should do for its users.

    With a workload: a rate (`server_tokens_per_s`, or `speedup` times the parent's), either at a
    speed for each user (`user_tokens_per_s`) or with `concurrency` requests in flight.
    Without one: memory for `concurrency` requests of `context` tokens.

    Attributes:
        text: As messages name it.
        node: Hardware.
        layouts: Which compete.
        precision: Number formats.
        context: Tokens of each request at its end.
        assumptions: Of memory.
        workload: Requests; None where only memory counts.
        user_tokens_per_s: That each user sees at least.
        concurrency: Requests in flight on the node.
        speedup: Times the original parent's server tokens/s in the same terms.
        server_tokens_per_s: Of the whole node.
        joules_per_token: Of all GPUs, at most; None sets no bound.
    """

    text: str
    node: Node
    layouts: tuple[Layout, ...]
    precision: Precision
    context: int
    assumptions: Assumptions = USUAL
    workload: Workload | None = None
    user_tokens_per_s: float | None = None
    concurrency: float | None = None
    speedup: float | None = None
    server_tokens_per_s: float | None = None
    joules_per_token: float | None = None


@dataclass(frozen=True)
class Load:
    """A model under a layout with requests in flight.

    Attributes:
        layout: Of each replica.
        in_flight: On the node.
        token_s: From one token of a user to the next, prefills of others included; 0 where only
            memory counts.
    """

    layout: Layout
    in_flight: float
    token_s: float

    @property
    def server_tokens_per_s(self) -> float:
        """Of the node."""
        return self.in_flight / self.token_s


@dataclass(frozen=True)
class Target:
    """A demand in numbers.

    Attributes:
        demand: What was asked.
        in_flight: Requests on the node.
        token_s: The longest that a token may take; None where only memory counts.
        parent: The original parent at its best in the same terms; None where it cannot do it.
    """

    demand: Demand
    in_flight: float
    token_s: float | None
    parent: Load | None

    def sequences(self, layout: Layout) -> float:
        """Requests in flight on one replica."""
        return sequences_on(self.demand.node, self.in_flight, layout=layout)


def target_of(demand: Demand, parent: ModelShape, *, prices_of: PricesOf) -> Target:
    """What a demand comes to.

    Args:
        demand: What is asked.
        parent: The original parent, which a speed-up refers to.
        prices_of: Of every layout of the demand.

    Raises:
        InfeasibleError: a speed-up over a parent that cannot serve so at all.
    """
    in_flight, rate = demand.concurrency or 1.0, demand.server_tokens_per_s
    if demand.workload is None:
        return Target(demand, in_flight, None, None)
    load = best_load(parent, demand, prices_of=prices_of)
    if demand.speedup is not None:
        if load is None:
            raise InfeasibleError(
                f"the parent cannot serve `{demand.text}` at any rate, so nothing is a multiple "
                "of its rate",
                "ask for server_tokens_per_s instead of a speedup, or for slower users",
            )
        rate = demand.speedup * load.server_tokens_per_s
    assert rate is not None
    if demand.user_tokens_per_s is not None:
        in_flight = rate / demand.user_tokens_per_s
    return Target(demand, in_flight, in_flight / rate, load)


def best_load(shape: ModelShape, demand: Demand, *, prices_of: PricesOf) -> Load | None:
    """The layout with the most server tokens/s in the demand's terms; None if none can do it."""
    loads = [load_of(shape, demand, layout=at, prices=prices_of(at)) for at in demand.layouts]
    return max(filter(None, loads), key=lambda load: load.server_tokens_per_s, default=None)


def load_of(shape: ModelShape, demand: Demand, *, layout: Layout, prices: Prices) -> Load | None:
    """The most requests at the user speed, or those that were asked for; None if there are none."""
    most = most_in_memory(shape, demand, layout=layout)
    token_s = partial(token_seconds_of, shape, demand, layout=layout, prices=prices)
    if demand.user_tokens_per_s is None:
        in_flight = demand.concurrency or 1.0
        is_held = in_flight <= most
        return Load(layout, in_flight, token_s(in_flight=in_flight)) if is_held else None
    longest = 1 / demand.user_tokens_per_s

    def is_met(in_flight: float) -> bool:
        return in_flight <= most and token_s(in_flight=in_flight) <= longest

    # Doubling first: no batch is priced that is more than twice too large.
    low = float(demand.node.count // layout.gpus * layout.dp)
    if not is_met(low):
        return None
    while is_met(2 * low):
        low *= 2
    high = 2 * low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return Load(layout, low, token_s(in_flight=low))


def most_in_memory(shape: ModelShape, demand: Demand, *, layout: Layout) -> int:
    """Requests of the demand's context that the node's memory holds."""
    return capacity(
        shape,
        demand.node,
        context=demand.context,
        precision=demand.precision,
        layout=layout,
        assumptions=demand.assumptions,
    ).max_concurrency


def token_seconds_of(
    shape: ModelShape, demand: Demand, *, in_flight: float, layout: Layout, prices: Prices
) -> float:
    """Time of one token of a whole model with that many requests in flight on the node."""
    assert demand.workload is not None
    sequences = sequences_on(demand.node, in_flight, layout=layout)
    times = decode_and_prefill(
        lambda step: prices.step_seconds(shape, step=step),
        workload=demand.workload,
        layout=layout,
        sequences=sequences,
    )
    return token_seconds(RequestTimes(*times), workload=demand.workload, sequences=sequences)


class RequestTimes(NamedTuple):
    """Seconds that a model, or a part of one, takes of its replica.

    Attributes:
        decode_s: Of one decode step.
        prefill_s: Of the prompt of one request.
    """

    decode_s: float
    prefill_s: float


class RequestJoules(NamedTuple):
    """Joules that a model, or a part of one, takes on all GPUs of its replica.

    Attributes:
        decode_j: Of one decode step.
        prefill_j: Of the prompt of one request.
    """

    decode_j: float
    prefill_j: float


def decode_and_prefill(
    of: Callable[[Step], float], *, workload: Workload, layout: Layout, sequences: float
) -> tuple[float, float]:
    """What a decode step halfway through the requests takes, and a prompt.

    Args:
        of: Seconds or joules of each step, of a whole model or of a part of it.
        workload: Requests.
        layout: Of the replica; each of its groups takes a prompt at the same time.
        sequences: In flight on it.
    """
    prompts = prefill_steps(workload.input_tokens, groups=layout.dp)
    return of(Step(sequences, 1, workload.mean_context)), sum(map(of, prompts)) / layout.dp


def token_seconds(times: RequestTimes, *, workload: Workload, sequences: float) -> float:
    """Share of a model, or of a part of one, in the time of one token: shares of parts add up."""
    share = sequences / workload.output_tokens
    return times.decode_s / workload.acceptance_length + times.prefill_s * share


def token_joules(joules: RequestJoules, *, workload: Workload, sequences: float) -> float:
    """Share of a model, or of a part of one, in the energy of one token.

    Args:
        joules: Of a decode step and of a prompt.
        workload: Requests.
        sequences: In flight on a replica: each of them gets its token from the same step.
    """
    decode_j = joules.decode_j / (workload.acceptance_length * sequences)
    return decode_j + joules.prefill_j / workload.output_tokens


def sequences_on(node: Node, in_flight: float, *, layout: Layout) -> float:
    """Requests on one replica; at least one for each of its groups, which step together."""
    return max(float(layout.dp), in_flight / (node.count // layout.gpus))
