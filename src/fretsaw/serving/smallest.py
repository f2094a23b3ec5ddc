"""The smallest hardware that holds a model."""

from __future__ import annotations

from fretsaw.core.hardware import Node, hardware_named, hardware_names
from fretsaw.core.precision import Precision
from fretsaw.core.shape import ModelShape
from fretsaw.errors import RecipeError
from fretsaw.pricing.footprint import footprint
from fretsaw.serving.capacity import MEMORY_FRACTION

COUNTS = (1, 2, 4, 8)
"""Accelerators of a node."""

ROOM = 0.8
"""Share of the usable memory that weights may take: requests need some."""


def smallest_node(shape: ModelShape, *, precision: Precision) -> Node:
    """The node with the fewest accelerators, then the least memory, that holds a model's weights.

    Args:
        shape: The model.
        precision: Its number formats.

    Raises:
        RecipeError: none does.
    """
    needed = footprint(shape, precision).weights_bytes
    cards = sorted(map(hardware_named, hardware_names()), key=lambda h: (h.memory_bytes, h.name))
    for count in COUNTS:
        for card in cards:
            if needed <= ROOM * MEMORY_FRACTION * card.memory_bytes * count:
                return Node(card, count)
    raise RecipeError(
        f"no node of up to {COUNTS[-1]} accelerators holds {needed / 1e9:.0f} GB of weights",
        "ask `fretsaw plan` for a smaller format, such as --to nvfp4",
    )
