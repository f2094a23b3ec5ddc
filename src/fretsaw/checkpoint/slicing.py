"""Put the units of a tensor into importance order, and keep the first n along named dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fretsaw.core.axes import Axis, Sizes, Term, term_size
from fretsaw.errors import ShapeError

UNIT_CONTEXT: dict[str, str] = {"ffn": "expert", "state": "group"}
"""Dimensions whose units may be ordered anew inside each unit of another dimension."""

TermFunction = Callable[[Tensor, Term, int], Tensor]


def prefix(tensor: Tensor, axes: tuple[Axis, ...], *, old: Sizes, new: Sizes) -> Tensor:
    """The tensor with only the first `new[d]` units of each dimension d.

    A view where every axis is one term of one dimension, a copy otherwise.

    Args:
        tensor: Laid out as `axes` say at sizes `old`.
        axes: Named axes in storage order.
        old: Size of each dimension now.
        new: Size of each dimension in the result, never larger.

    Raises:
        ShapeError: the tensor does not have the shape that `axes` and `old` give.
    """

    def first(part: Tensor, term: Term, start: int) -> Tensor:
        for i, dim in enumerate(term):
            if not dim.isdigit() and new[dim] < old[dim]:
                part = part.narrow(start + i, 0, new[dim])
        return part

    return _map_terms(tensor, axes, sizes=old, function=first)


def reorder(
    tensor: Tensor,
    axes: tuple[Axis, ...],
    *,
    sizes: Sizes,
    orders: Mapping[str, Tensor],
    bound: Mapping[str, int] | None = None,
) -> Tensor:
    """The tensor with the units of some dimensions put into a new order.

    Args:
        tensor: Laid out as `axes` say at `sizes`.
        axes: Named axes in storage order.
        sizes: Size of each dimension.
        orders: Dimension -> unit indices, (units,), or (context, units) where each unit of the
            context dimension (`UNIT_CONTEXT`) has an order of its own.
        bound: Context dimensions that are fixed for this tensor, such as ``{"expert": 3}``.

    Returns:
        A new tensor of the same shape.
    """
    for dim, order in orders.items():
        context = UNIT_CONTEXT.get(dim) if order.ndim > 1 else None
        index = order
        if context is not None and bound and context in bound:
            index, context = order[bound[context]], None
        tensor = _map_terms(
            tensor, axes, sizes=sizes, function=_gather(dim, index, axes=axes, context=context)
        )
    return tensor


def _gather(
    dim: str, index: Tensor, *, axes: tuple[Axis, ...], context: str | None
) -> TermFunction:
    def take(part: Tensor, term: Term, start: int) -> Tensor:
        if dim not in term:
            return part
        at = start + term.index(dim)
        units = index.to(part.device)
        if context is None:
            return part.index_select(at, units)
        context_at = start + term.index(context) if context in term else _axis_of(axes, context)
        shape = [1] * part.ndim
        shape[context_at], shape[at] = units.shape
        return torch.take_along_dim(part, units.reshape(shape), at)

    return take


def _axis_of(axes: tuple[Axis, ...], dim: str) -> int:
    """Position of a dimension that is an axis by itself, before any axis is unfolded."""
    return next(i for i, axis in enumerate(axes) if axis.terms == ((dim,),))


def _map_terms(
    tensor: Tensor, axes: tuple[Axis, ...], *, sizes: Sizes, function: TermFunction
) -> Tensor:
    """Apply a function to every term of every axis, unfolded into its dimensions."""
    expected = tuple(axis.size(sizes) for axis in axes)
    if tuple(tensor.shape) != expected:
        raise ShapeError(
            f"a tensor has shape {tuple(tensor.shape)}; its table gives {expected}",
            "the checkpoint and its config disagree: run `fretsaw describe` on it",
        )
    for position, axis in enumerate(axes):
        lengths = [term_size(term, sizes) for term in axis.terms]
        parts = tensor.split(lengths, dim=position) if len(lengths) > 1 else (tensor,)
        done = []
        for part, term in zip(parts, axis.terms, strict=True):
            dims = [int(d) if d.isdigit() else sizes[d] for d in term]
            unfolded = part.unflatten(position, dims) if len(dims) > 1 else part
            result = function(unfolded, term, position)
            done.append(_fold(result, position, count=len(dims)))
        tensor = torch.cat(done, dim=position) if len(done) > 1 else done[0]
    return tensor


def _fold(tensor: Tensor, position: int, *, count: int) -> Tensor:
    return tensor.flatten(position, position + count - 1) if count > 1 else tensor
