"""User speed against server rate over all layouts and batches, predicted the paper's way.

With B requests in flight on a replica, a request of I input and O output tokens takes

    T = O / acceptance * decode_step(B) + B * prefill(I)

because the prefills of all B requests come between the steps of each; a user sees O / T tokens/s,
the server gives B times that from every replica. Over tensor x expert x data parallelism and batch
the Pareto frontier is kept, and read by linear interpolation at exactly the wanted user speed.

Source: Puzzle 75B, arXiv:2607.04371, section 3.3; the time of a request: Own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fretsaw.core.hardware import Layout, Node, Workload
from fretsaw.core.precision import Precision
from fretsaw.core.shape import ModelShape
from fretsaw.errors import RecipeError
from fretsaw.pricing.blocks import check_layout
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.step import Pricer
from fretsaw.serving.capacity import USUAL, Assumptions, capacity

PREFILL_TOKENS = 8192
"""Tokens of a prompt that go through the model at once: vLLM's `max_num_batched_tokens` on GPUs."""

PricerOf = Callable[[Layout], Pricer]
"""Gives the pricer of a layout."""


@dataclass(frozen=True)
class Point:
    """A node under one layout and load.

    Attributes:
        layout: Of each replica.
        sequences: In flight on one replica.
        concurrency: In flight on the node.
        user_tokens_per_s: That each user sees.
        server_tokens_per_s: That the node gives.
        decode_s: One decode step.
        prefill_s: The prompt of one request.
    """

    layout: Layout
    sequences: float
    concurrency: float
    user_tokens_per_s: float
    server_tokens_per_s: float
    decode_s: float
    prefill_s: float


def point(
    shape: ModelShape, node: Node, *, workload: Workload, pricer: Pricer, sequences: float
) -> Point:
    """Speeds with that many sequences in flight on each replica."""
    layout = pricer.layout
    decode = Step(sequences, 1, workload.mean_context)
    decode_s = pricer.step_seconds(shape, step=decode)
    prefill_s = prefill_seconds(shape, workload.input_tokens, pricer=pricer)
    steps = workload.output_tokens / workload.acceptance_length
    request_s = steps * decode_s + sequences * prefill_s
    user = workload.output_tokens / request_s
    replicas = node.count // layout.gpus
    concurrency = sequences * replicas
    return Point(layout, sequences, concurrency, user, user * concurrency, decode_s, prefill_s)


def prefill_seconds(shape: ModelShape, tokens: int, *, pricer: Pricer) -> float:
    """Seconds that one prompt takes of its replica; each `dp` group takes one at the same time."""
    groups = pricer.layout.dp
    steps = prefill_steps(tokens, groups=groups)
    return sum(pricer.step_seconds(shape, step=step) for step in steps) / groups


def prefill_steps(tokens: int, *, groups: int = 1) -> list[Step]:
    """The chunks in which prompts go through a replica, one prompt for each of its groups."""
    return [
        Step(groups, min(PREFILL_TOKENS, tokens - start), start)
        for start in range(0, tokens, PREFILL_TOKENS)
    ]


def layouts_of(shape: ModelShape, node: Node) -> list[Layout]:
    """Every layout that a node and the model's heads, groups and experts allow.

    Tensor parallelism 1, 2, 4, ...; experts split with it or spread over whole GPUs, within a
    replica or over several data-parallel groups.
    """
    powers = [1 << i for i in range(node.count.bit_length()) if node.count % (1 << i) == 0]
    found = []
    for tp, dp in itertools.product(powers, powers):
        for ep in {1, tp * dp}:
            if dp > 1 and ep == 1:
                continue
            layout = Layout(tp, dp, ep)
            try:
                check_layout(shape, layout, gpus=node.count)
            except RecipeError:
                continue
            found.append(layout)
    return sorted(found, key=lambda one: (one.gpus, one.dp, one.ep))


def replica_layouts(shape: ModelShape, node: Node) -> list[Layout]:
    """Those of equal replicas that share nothing, as most deployments and the paper's sweep."""
    return [layout for layout in layouts_of(shape, node) if layout.dp == 1]


def sweep(
    shape: ModelShape,
    node: Node,
    *,
    workload: Workload,
    precision: Precision,
    pricer_of: PricerOf,
    layouts: Sequence[Layout] | None = None,
    assumptions: Assumptions = USUAL,
) -> list[Point]:
    """Points of every layout at batches 1, 2, 4, 8, ... up to the largest that fits."""
    points = []
    for layout in layouts or layouts_of(shape, node):
        held = capacity(
            shape,
            node,
            context=workload.peak_context,
            precision=precision,
            layout=layout,
            assumptions=assumptions,
        )
        pricer = pricer_of(layout)
        points += [
            point(shape, node, workload=workload, pricer=pricer, sequences=batch * layout.dp)
            for batch in _batches(held.sequences_per_group)
        ]
    return points


def _batches(most: int) -> list[int]:
    """Powers of two up to the most, as the paper sweeps."""
    return [1 << i for i in range(most.bit_length()) if 1 << i <= most]


def pareto(points: Sequence[Point]) -> list[Point]:
    """Points that no other beats in both speeds, slow users first."""
    best: list[Point] = []
    for one in sorted(points, key=lambda p: (-p.user_tokens_per_s, -p.server_tokens_per_s)):
        if not best or one.server_tokens_per_s > best[-1].server_tokens_per_s:
            best.append(one)
    return best[::-1]


def server_rate_at(frontier: Sequence[Point], user_tokens_per_s: float) -> float | None:
    """Server tokens/s at exactly a user speed, linear between neighbours of the frontier.

    Returns:
        Of a speed below the slowest point that point's rate; None above the fastest: no layout
        serves a user so fast.
    """
    if not frontier or user_tokens_per_s > frontier[-1].user_tokens_per_s:
        return None
    if user_tokens_per_s <= frontier[0].user_tokens_per_s:
        return frontier[0].server_tokens_per_s
    for slow, fast in itertools.pairwise(frontier):
        if slow.user_tokens_per_s <= user_tokens_per_s <= fast.user_tokens_per_s:
            share = (user_tokens_per_s - slow.user_tokens_per_s) / (
                fast.user_tokens_per_s - slow.user_tokens_per_s
            )
            return slow.server_tokens_per_s + share * (
                fast.server_tokens_per_s - slow.server_tokens_per_s
            )
    return None


def requests_per_minute(
    server_tokens_per_s: float, workload: Workload, *, verbosity: float = 1.0
) -> float:
    """Requests a minute, when the model says the same in `verbosity` times the tokens."""
    return 60.0 * server_tokens_per_s / (workload.output_tokens * verbosity)
