"""Scales from what was seen: histograms, experts without tokens, KV scales."""

from __future__ import annotations

import math

import pytest
import torch

from fretsaw.quant.calibrate import Activations, Magnitudes, kv_scale, share_peaks


def test_the_largest_magnitude_of_a_stream() -> None:
    seen = Magnitudes()
    for values in (torch.tensor([[1.0, -3.0]]), torch.zeros(0, 2), torch.tensor([2.0])):
        seen.add(values)
    assert seen.peak() == seen.peak(99.0) == 3.0


@pytest.mark.parametrize("percentile", [50.0, 99.0, 99.9, 100.0])
def test_a_percentile_lies_in_the_bin_of_the_exact_one(percentile: float) -> None:
    values = torch.randn(40_000, generator=torch.Generator().manual_seed(0))
    seen = Magnitudes(has_histogram=True)
    for part in values.split(7_000):
        seen.add(part)
    ordered = values.abs().sort().values
    exact = float(ordered[math.ceil(len(ordered) * percentile / 100) - 1])
    assert exact <= seen.peak(percentile) <= exact * 1.13
    assert seen.peak(100.0) == pytest.approx(float(ordered[-1]))


def test_outliers_are_cut_off() -> None:
    seen = Magnitudes(has_histogram=True)
    seen.add(torch.cat([torch.ones(9_999), torch.tensor([1e4])]))
    assert seen.peak() == 1e4
    assert 1.0 <= seen.peak(99.9) <= 1.13


def test_values_that_are_not_finite_show() -> None:
    for bad in (math.nan, math.inf):
        seen = Magnitudes(has_histogram=True)
        seen.add(torch.tensor([1.0, bad]))
        seen.add(torch.tensor([2.0] * 100))
        assert seen.peak() == seen.peak(50.0) == math.inf


def test_experts_without_tokens_borrow_from_their_neighbours() -> None:
    """R45: every expert has a finite positive maximum."""
    assert share_peaks([2.0, 0.0, 5.0, 1.0], [40, 0, 3, 50], min_tokens=32) == [2.0, 2.0, 5.0, 1.0]
    assert share_peaks([0.0, 4.0], [100, 1], min_tokens=32) == [4.0, 4.0]
    assert share_peaks([0.0, 0.0], [0, 0], min_tokens=1) == [1.0, 1.0]


def test_kv_scales() -> None:
    assert kv_scale(448.0) == 1.0
    assert kv_scale(0.0) == 1.0
    assert kv_scale(100.0) == pytest.approx(100 / 448)
    assert kv_scale(100.0, is_power_of_two=True) == 0.25
    assert kv_scale(112.0, is_power_of_two=True) == 0.25


def test_activations_to_json_and_back() -> None:
    found = Activations({"a": 1.5}, {"k": 2.0}, {3: [1, 2]}, 3, {3: [0]})
    assert Activations.from_json(found.to_json()) == found
