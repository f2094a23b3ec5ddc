"""How many sequences a GPU's memory holds beside the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fretsaw.core.hardware import ONE_GPU, Layout, Node
from fretsaw.core.precision import Precision
from fretsaw.core.shape import ModelShape
from fretsaw.cost.memory import Footprint, footprint, mtp_bytes
from fretsaw.errors import RecipeError

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
    """

    memory_fraction: float = MEMORY_FRACTION
    headroom_bytes: int = 0
    has_mtp: bool = False
    weights_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse shares that no GPU has."""
        if not 0 < self.memory_fraction <= 1:
            raise RecipeError(
                f"a memory fraction of {self.memory_fraction:g} is not above 0 and at most 1",
                "give a share such as 0.9",
            )
        if self.headroom_bytes < 0 or (self.weights_bytes is not None and self.weights_bytes <= 0):
            raise RecipeError(
                "head-room and weights are bytes of 0 and more, weights above 0",
                "give sizes such as 2GiB",
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

    Raises:
        RecipeError: a context below 1.
    """
    if context < 1:
        raise RecipeError(f"a context of {context} tokens is below 1", "give tokens, such as 128k")
    total = footprint(shape, precision, layout=layout)
    if assumptions.has_mtp:
        total += Footprint(math.ceil(mtp_bytes(shape) / layout.gpus))
    if assumptions.weights_bytes is not None:
        total = replace(total, weights_bytes=assumptions.weights_bytes)
    usable = usable_bytes(node, assumptions)
    free = usable - total.weights_bytes
    each = total.sequence_bytes(context)
    held = 0 if free <= 0 else math.floor(free / each) if each else 0
    groups = node.count // layout.gpus * layout.dp
    return Capacity(usable, total, context, held, held * groups)


def usable_bytes(node: Node, assumptions: Assumptions) -> int:
    """Memory of one GPU that weights and sequences may take."""
    allowed = node.hardware.memory_bytes * assumptions.memory_fraction
    return math.floor(allowed) - assumptions.headroom_bytes
