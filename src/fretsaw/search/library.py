"""From a grid of sizes to the variants of every block: a few integers each, no weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fretsaw.core.shape import Block, Mixer, ModelShape
from fretsaw.core.units import parse_fraction
from fretsaw.core.variant import Variant
from fretsaw.errors import RecipeError

DIMS: dict[Mixer, tuple[str, ...]] = {"moe": ("ffn", "top_k"), "mamba": ("state",)}
"""Mixer -> sizes and settings that the grid may vary."""


@dataclass(frozen=True)
class Grid:
    """What may vary.

    Attributes:
        values: Dimension -> sizes, numbers or fractions of the original parent such as "75%".
        none: Mixers whose blocks may be left out.
        granularity: Dimension -> sizes are multiples of this.
    """

    values: Mapping[str, Sequence[int | str]]
    none: Sequence[str]
    granularity: Mapping[str, int]


def build_library(shape: ModelShape, original: ModelShape, *, grid: Grid) -> list[Variant]:
    """All variants of all blocks, the block as it is among them.

    Args:
        shape: The model that is cut now.
        original: The original parent, which fractions refer to.
        grid: What may vary.

    Returns:
        Variants in block order; values above a block's present ones are left out.

    Raises:
        RecipeError: a value that no block could ever have.
    """
    sizes = {
        mixer: {d: _resolve(d, mixer, original, grid=grid) for d in dims if grid.values.get(d)}
        for mixer, dims in DIMS.items()
    }
    return [v for i, b in enumerate(shape.blocks) for v in _variants(i, b, sizes, grid.none)]


def _variants(
    index: int, block: Block, sizes: Mapping[Mixer, Mapping[str, set[int]]], none: Sequence[str]
) -> Iterator[Variant]:
    options: list[list[tuple[str, int]]] = []
    for dim in DIMS.get(block.mixer, ()):
        present = block.values[dim]
        allowed = {v for v in sizes[block.mixer].get(dim, ()) if v <= present} | {present}
        options.append([(dim, v) for v in sorted(allowed, reverse=True)])
    for combination in itertools.product(*options):
        yield Variant(index, dict(combination))
    if block.mixer in none:
        yield Variant(index, is_none=True)


def _resolve(dim: str, mixer: Mixer, original: ModelShape, *, grid: Grid) -> set[int]:
    """Sizes as numbers, checked against the original parent."""
    largest = max((original.blocks[i].values[dim] for i in original.indices(mixer)), default=None)
    if largest is None:
        raise RecipeError(
            f"library.{mixer}.{dim} is given, but the parent has no {mixer} blocks",
            f"remove library.{mixer}",
        )
    step = grid.granularity.get(dim, 1)
    return {_size(value, dim, largest, step=step) for value in grid.values[dim]}


def _size(value: int | str, dim: str, largest: int, *, step: int) -> int:
    if isinstance(value, str):
        exact = parse_fraction(value) * largest
        size = largest if exact >= largest else max(step, round(exact / step) * step)
    else:
        size = value
    if not 1 <= size <= largest:
        what = "experts per token" if dim == "top_k" else dim
        raise RecipeError(
            f"{dim} {size} is not allowed: the parent has {largest} {what}",
            f"give values from 1 to {largest}",
        )
    if size % step and size != largest:
        low = size // step * step
        raise RecipeError(
            f"{dim} {size} is not allowed: sizes are multiples of {step}",
            f"take {low or step} or {low + step}, or set library.granularity.{dim}",
        )
    return size
