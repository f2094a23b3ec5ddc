"""Tensors with named axes: the one description from which counts, checks and slices follow.

An axis is a sum of products of named dimensions in storage order, as in
``"group*state + group*state + mamba_head, hidden"``. The same name on several axes *is* the
coupling: cutting ``state`` cuts every row that carries it.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass

Term = tuple[str, ...]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Axis:
    """One storage axis: terms that follow each other, each a product of named dimensions."""

    terms: tuple[Term, ...]

    def size(self, sizes: Sizes) -> int:
        """Length of the axis when the dimensions have these sizes."""
        return sum(term_size(term, sizes) for term in self.terms)


@dataclass(frozen=True)
class TensorAxes:
    """Name pattern and axes of a weight; a dimension in braces in the name is an axis too."""

    name: str
    axes: tuple[Axis, ...]
    dtype: str | None = None

    @property
    def name_dims(self) -> tuple[str, ...]:
        """Dimensions that are spelled in the name, as ``expert`` in ``experts.{expert}.up``."""
        return tuple(field for _, field, _, _ in string.Formatter().parse(self.name) if field)

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Storage shape of one tensor of this pattern."""
        return tuple(axis.size(sizes) for axis in self.axes)

    def copies(self, sizes: Sizes) -> int:
        """How many tensors the name pattern stands for."""
        return math.prod(sizes[dim] for dim in self.name_dims)

    def numel(self, sizes: Sizes) -> int:
        """Elements in all tensors of this pattern."""
        return self.copies(sizes) * math.prod(self.shape(sizes))

    def has(self, dim: str) -> bool:
        """Whether the dimension appears in the name or on an axis."""
        return dim in self.name_dims or any(dim in t for axis in self.axes for t in axis.terms)


def term_size(term: Term, sizes: Sizes) -> int:
    """Length of one product of dimensions; a bare number stands for itself."""
    return math.prod(int(dim) if dim.isdigit() else sizes[dim] for dim in term)


def parse_axes(text: str) -> tuple[Axis, ...]:
    """Axes from their text form, such as ``"kv_head*head_dim, hidden"``."""
    return tuple(
        Axis(tuple(tuple(d.strip() for d in term.split("*")) for term in axis.split("+")))
        for axis in text.split(",")
    )


def table(rows: Mapping[str, str], *, float32: tuple[str, ...] = ()) -> tuple[TensorAxes, ...]:
    """A tensor table from name -> axes text; names in `float32` are stored in that dtype."""
    return tuple(
        TensorAxes(name, parse_axes(text), "float32" if name in float32 else None)
        for name, text in rows.items()
    )
