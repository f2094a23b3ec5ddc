"""From importance to the order of units, most important first; kept as plain tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Orders = Mapping[int, Mapping[str, Tensor]]
"""Block index -> dimension -> unit indices, most important first, (units,) or (context, units)."""


def order_units(importance: Tensor) -> Tensor:
    """Unit indices, most important first; equal units keep their order.

    Args:
        importance: (context..., units), larger = keep; each row is ordered by itself.

    Returns:
        int64 of the same shape.
    """
    return torch.argsort(importance, dim=-1, descending=True, stable=True)


def identity_order(*shape: int) -> Tensor:
    """The order that changes nothing, for (context..., units) of this shape."""
    return torch.arange(shape[-1]).expand(shape).contiguous()


def orders_to_tensors(orders: Orders) -> dict[str, Tensor]:
    """Flat form ``"{block}.{dim}"`` -> unit indices, as stored in safetensors."""
    return {f"{i}.{dim}": order for i, dims in orders.items() for dim, order in dims.items()}


def orders_from_tensors(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Inverse of `orders_to_tensors`."""
    orders: dict[int, dict[str, Tensor]] = {}
    for name, order in sorted(tensors.items()):
        index, dim = name.split(".", 1)
        orders.setdefault(int(index), {})[dim] = order
    return orders
