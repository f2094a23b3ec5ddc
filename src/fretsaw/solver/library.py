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
    none: Sequence[Mixer]
    granularity: Mapping[str, int]


def build_library(shape: ModelShape, original: ModelShape, *, grid: Grid) -> list[Variant]:
    """All variants of all blocks, the block as it is among them.

    Args:
        shape: The model that is cut now.
        original: The original parent, which fractions refer to; where its blocks differ, to the
            largest of their kind.
        grid: What may vary.

    Returns:
        Variants in block order, large ones first; values above a block's present ones are left
        out, so a later round never asks for what an earlier one has cut.

    Raises:
        RecipeError: a value that no block could ever have.
    """
    sizes = {
        mixer: {
            d: _resolve(d, mixer, original=original, grid=grid) for d in dims if grid.values.get(d)
        }
        for mixer, dims in DIMS.items()
    }
    for mixer in grid.none:
        if not original.indices(mixer):
            raise RecipeError(
                f"library.none allows {mixer}, but the parent has no {mixer} blocks",
                f"remove {mixer} from library.none",
            )
    return [
        v for i, b in enumerate(shape.blocks) for v in _variants(i, b, sizes=sizes, none=grid.none)
    ]


def _variants(
    index: int,
    block: Block,
    *,
    sizes: Mapping[Mixer, Mapping[str, set[int]]],
    none: Sequence[Mixer],
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


def _resolve(dim: str, mixer: Mixer, *, original: ModelShape, grid: Grid) -> set[int]:
    """Sizes as numbers, checked against the original parent."""
    blocks = [original.blocks[i] for i in original.indices(mixer)]
    if not blocks:
        raise RecipeError(
            f"library.{mixer}.{dim} is given, but the parent has no {mixer} blocks",
            f"remove library.{mixer}.{dim}",
        )
    largest = max(block.values[dim] for block in blocks)
    step = grid.granularity.get(dim, 1)
    sizes = {
        size_of(value, largest=largest, step=step, dim=dim) if isinstance(value, str) else value
        for value in grid.values[dim]
    }
    for size in sizes:
        _check(size, dim, blocks=blocks, largest=largest, step=step)
    return sizes


def size_of(fraction: str, *, largest: int, step: int, dim: str = "size") -> int:
    """A fraction of a size, such as "75%", as the nearest multiple of `step`, and at least one.

    Raises:
        RecipeError: no percentage, or not above 0 % and at most 100 %.
    """
    share = parse_fraction(fraction)
    if not 0 < share <= 1:
        raise RecipeError(
            f"{dim} {fraction} is not allowed: a child's block is no larger than its parent's",
            'give percentages above "0%" and at most "100%"',
        )
    if share == 1:
        return largest
    return min(largest, max(step, round(share * largest / step) * step))


def _check(size: int, dim: str, *, blocks: Sequence[Block], largest: int, step: int) -> None:
    experts = max(block.sizes.get("expert", 0) for block in blocks)
    allowed = sorted({*range(step, largest, step), largest})
    if size in allowed:
        return
    if dim == "top_k" and size > experts:
        what = f"above the {experts} experts of the parent"
    elif size > largest:
        what = f"above the {largest} of the parent"
    else:
        what = f"no positive multiple of {step}"
    near = sorted(sorted(allowed, key=lambda other: abs(other - size))[:2])
    raise RecipeError(
        f"{dim} {size} is not allowed: {what}",
        f"nearest allowed: {' or '.join(map(str, near))}"
        + (f"; or set library.granularity.{dim}" if size % step else ""),
    )
