"""Streaming sums: merging equals seeing everything at once, and nothing seen is no NaN."""

from __future__ import annotations

import pytest
import torch

from fretsaw.errors import ShapeError
from fretsaw.importance.accumulate import UnitSums


def test_nothing_observed_has_mean_zero() -> None:
    mean = UnitSums.zeros(3, 5).mean()
    assert mean.shape == (3, 5)
    assert torch.equal(mean, torch.zeros(3, 5, dtype=torch.float64))


def test_merge_adds_totals_and_counts() -> None:
    one = UnitSums(torch.tensor([[1.0, 2.0], [0.0, 0.0]]).double(), torch.tensor([2, 0]))
    two = UnitSums(torch.tensor([[3.0, 0.0], [4.0, 8.0]]).double(), torch.tensor([2, 4]))
    merged = one.merge(two)
    assert merged.count.tolist() == [4, 4]
    assert merged.mean().tolist() == [[1.0, 0.5], [1.0, 2.0]]


def test_merge_of_other_units_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 4\)"):
        UnitSums.zeros(2, 3).merge(UnitSums.zeros(2, 4))
