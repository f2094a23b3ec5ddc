"""How many sequences a GPU's memory holds beside the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fretsaw.core.engines import BY_THE_BYTE, CacheRule
from fretsaw.core.hardware import ONE_GPU, Layout, Node
from fretsaw.core.precision import Precision
from fretsaw.core.shape import ModelShape
from fretsaw.core.units import format_bytes
from fretsaw.errors import RecipeError
from fretsaw.pricing.footprint import Footprint, footprint

MEMORY_FRACTION = 0.9
"""Share of a GPU that an engine may use; vLLM's and SGLang's usual setting."""


@dataclass(frozen=True)
class Assumptions:
    """What a capacity turns on beside the model; printed with every answer.

    Attributes:
        memory_fraction: Share of each GPU's memory that the engine may use.
        headroom_bytes: Of that share, kept for activations and the engine's own buffers.
        has_mtp: Whether the prediction head is loaded.
        weights_bytes: Weights of one GPU, instead of what the precision gives.
        cache: How the engine keeps what requests need.
    """

    memory_fraction: float = MEMORY_FRACTION
    headroom_bytes: int = 0
    has_mtp: bool = False
    weights_bytes: int | None = None
    cache: CacheRule = BY_THE_BYTE

    def __post_init__(self) -> None:
        """Refuse shares that no GPU has."""
        if not 0 < self.memory_fraction <= 1:
            raise RecipeError(
                f"a memory fraction of {self.memory_fraction:g} is not above 0 and at most 1",
                "give a share such as 0.9",
            )
        if self.headroom_bytes < 0:
            raise RecipeError(
                f"a head-room of {self.headroom_bytes} bytes is below 0", "give 0, or such as 2GiB"
            )
        if self.weights_bytes is not None and self.weights_bytes <= 0:
            raise RecipeError(
                f"weights of {self.weights_bytes} bytes are not above 0",
                "give a size such as 70GiB, or leave it to the number format",
            )


USUAL = Assumptions()


@dataclass(frozen=True)
class Capacity:
    """Memory of one GPU, in bytes, and the sequences that it holds.

    Attributes:
        usable_bytes: Memory times the fraction, less the head-room.
        footprint: What the model takes.
        context: Tokens of each sequence.
        sequences_per_group: Of the GPUs of one `dp` group together.
        max_concurrency: Of the whole node.
    """

    usable_bytes: int
    footprint: Footprint
    context: int
    sequences_per_group: int
    max_concurrency: int

    @property
    def fits(self) -> bool:
        """Whether the weights fit at all."""
        return self.footprint.weights_bytes <= self.usable_bytes


def capacity(
    shape: ModelShape,
    node: Node,
    *,
    context: int,
    precision: Precision,
    layout: Layout = ONE_GPU,
    assumptions: Assumptions = USUAL,
) -> Capacity:
    """The most sequences of a context that a node holds under a layout.

        floor((memory * fraction - headroom - weights) / (kv * context + state)) per group

    with KV cache and state in whole pages (`fretsaw.pricing.footprint`).

    Raises:
        RecipeError: a context below 1, no usable memory, or a model that keeps nothing of a
            sequence, so that memory is no bound.
    """
    if context < 1:
        raise RecipeError(f"a context of {context} tokens is below 1", "give tokens, such as 128k")
    total = footprint(
        shape, precision, layout=layout, rule=assumptions.cache, has_mtp=assumptions.has_mtp
    )
    if assumptions.weights_bytes is not None:
        total = replace(total, weights_bytes=assumptions.weights_bytes)
    usable = usable_bytes(node, assumptions)
    free = usable - total.weights_bytes
    each = total.sequence_bytes(context)
    if not each:
        raise RecipeError(
            "the model has neither attention nor Mamba: memory holds any number of its sequences",
            "plan a model with one of them",
        )
    held = max(0, math.floor(free / each))
    groups = node.count // layout.gpus * layout.dp
    return Capacity(usable, total, context, held, held * groups)


def usable_bytes(node: Node, assumptions: Assumptions) -> int:
    """Memory of one GPU that weights and sequences may take.

    Raises:
        RecipeError: there is none.
    """
    allowed = math.floor(node.hardware.memory_bytes * assumptions.memory_fraction)
    if allowed <= assumptions.headroom_bytes:
        raise RecipeError(
            f"of {format_bytes(allowed)} that may be used of one {node.hardware.name}, "
            f"{format_bytes(assumptions.headroom_bytes)} are kept free: nothing is left",
            "give more memory, a larger memory fraction, or less head-room",
        )
    return allowed - assumptions.headroom_bytes
