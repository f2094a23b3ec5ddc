"""Ridge repairs: against least squares, never worse on the fitted text, safe without data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fretsaw.importance.repair import output_gain, repair_channels, repair_projection

TINY = 1e-12


def make(seed: int, *, tokens: int = 60) -> tuple[Tensor, Tensor]:
    """Correlated activations (tokens, 8) and a down projection (4, 8), float64."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    activations = torch.randn(tokens, 8, generator=generator, dtype=torch.float64) @ mix
    return activations, torch.randn(4, 8, generator=generator, dtype=torch.float64)


def test_channels_equal_weighted_least_squares() -> None:
    h, down = make(0)
    w = torch.rand(len(h), 1, dtype=torch.float64)
    moments = (w * h).T @ (w * h)
    repaired = repair_channels(moments, down_proj=down, keep=5, ridge=TINY)
    expected = torch.linalg.lstsq(w * h[:, :5], w * (h @ down.T)).solution.T
    torch.testing.assert_close(repaired, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 1.0, 100.0])
def test_channels_are_never_worse_than_the_slice(ridge: float) -> None:
    for seed in range(5):
        h, down = make(seed, tokens=6)
        repaired = repair_channels(h.T @ h, down_proj=down, keep=4, ridge=ridge)
        error = (h @ down.T - h[:, :4] @ repaired.T).norm()
        assert error <= (h[:, 4:] @ down[:, 4:].T).norm() * (1 + 1e-9)


def test_a_strong_ridge_gives_the_slice() -> None:
    h, down = make(1)
    repaired = repair_channels(h.T @ h, down_proj=down, keep=4, ridge=1e12)
    torch.testing.assert_close(repaired, down[:, :4], rtol=1e-6, atol=1e-8)


def test_without_data_nothing_changes() -> None:
    _, down = make(2)
    zero = torch.zeros(8, 8)
    assert torch.equal(repair_channels(zero, down_proj=down, keep=4, ridge=0.1), down[:, :4])
    cross = torch.zeros(4, 8)
    assert torch.equal(repair_projection(cross, zero, prior=down, ridge=0.1), down)
    assert output_gain(cross, zero, prior=down) == 1.0


def test_projection_equals_least_squares_and_is_never_worse() -> None:
    z, prior = make(3)
    wanted = torch.randn(len(z), 4, dtype=torch.float64)
    cross, moments = wanted.T @ z, z.T @ z
    repaired = repair_projection(cross, moments, prior=prior, ridge=TINY)
    expected = torch.linalg.lstsq(z, wanted).solution.T
    torch.testing.assert_close(repaired, expected, rtol=1e-6, atol=1e-8)
    damped = repair_projection(cross, moments, prior=prior, ridge=1.0)
    assert (wanted - z @ damped.T).norm() < (wanted - z @ prior.T).norm()


def test_gain_is_the_best_factor() -> None:
    z, prior = make(4)
    wanted = 1.7 * z @ prior.T
    assert output_gain(wanted.T @ z, z.T @ z, prior=prior) == pytest.approx(1.7)


def test_dtype_of_the_weight_is_kept() -> None:
    h, down = make(5)
    repaired = repair_channels(h.T @ h, down_proj=down.bfloat16(), keep=4, ridge=0.1)
    assert repaired.dtype == torch.bfloat16
