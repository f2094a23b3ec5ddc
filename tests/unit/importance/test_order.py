"""Orders: most important first, ties in place, and to tensors and back."""

from __future__ import annotations

import torch

from fretsaw.importance.order import (
    identity_order,
    order_units,
    orders_from_tensors,
    orders_to_tensors,
)


def test_most_important_first_and_ties_keep_their_order() -> None:
    importance = torch.tensor([[1.0, 3.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert order_units(importance).tolist() == [[1, 4, 3, 0, 2], [0, 1, 2, 3, 4]]


def test_identity() -> None:
    assert identity_order(2, 3).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert identity_order(3).tolist() == [0, 1, 2]


def test_tensors_and_back() -> None:
    orders = {
        10: {"state": torch.tensor([[1, 0]])},
        2: {"ffn": torch.tensor([2, 0, 1]), "expert": torch.tensor([0, 1])},
    }
    tensors = orders_to_tensors(orders)
    assert set(tensors) == {"10.state", "2.ffn", "2.expert"}
    back = orders_from_tensors(tensors)
    assert back.keys() == orders.keys()
    assert all(torch.equal(back[i][d], o) for i, dims in orders.items() for d, o in dims.items())
