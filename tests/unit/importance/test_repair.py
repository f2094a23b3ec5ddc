"""Ridge repairs: against least squares, never worse on the fitted text, safe without data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fretsaw.importance.repair import (
    output_gain,
    repair_channels,
    repair_jointly,
    repair_projection,
)

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
    repaired = repair_channels(moments[:5], down_proj=down, ridge=TINY)
    expected = torch.linalg.lstsq(w * h[:, :5], w * (h @ down.T)).solution.T
    torch.testing.assert_close(repaired, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 1.0, 100.0])
def test_channels_are_never_worse_than_the_slice(ridge: float) -> None:
    for seed in range(5):
        h, down = make(seed, tokens=6)
        repaired = repair_channels((h.T @ h)[:4], down_proj=down, ridge=ridge)
        error = (h @ down.T - h[:, :4] @ repaired.T).norm()
        assert error <= (h[:, 4:] @ down[:, 4:].T).norm() * (1 + 1e-9)


def test_a_strong_ridge_gives_the_slice() -> None:
    h, down = make(1)
    repaired = repair_channels((h.T @ h)[:4], down_proj=down, ridge=1e12)
    torch.testing.assert_close(repaired, down[:, :4], rtol=1e-6, atol=1e-8)


def test_without_data_nothing_changes() -> None:
    _, down = make(2)
    zero = torch.zeros(8, 8)
    assert torch.equal(repair_channels(zero[:4], down_proj=down, ridge=0.1), down[:, :4])
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
    repaired = repair_channels((h.T @ h)[:4], down_proj=down.bfloat16(), ridge=0.1)
    assert repaired.dtype == torch.bfloat16


def make_routed(seed: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Features of three experts over 90 tokens, two experts a token; a fourth sees none."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.tensor([[0, 1], [1, 2], [0, 2]])[torch.arange(90) % 3]
    rows = [(pairs == e).any(-1).nonzero().flatten() for e in range(4)]
    features = [torch.randn(len(r), 5, generator=generator) for r in rows]
    return features, rows, torch.randn(90, 3, generator=generator)


def summed(features: list[Tensor], rows: list[Tensor], weights: Tensor) -> Tensor:
    total = torch.zeros(90, 3)
    for f, at, weight in zip(features, rows, weights, strict=True):
        total.index_add_(0, at, f @ weight.T)
    return total


def test_joint_repair_tends_to_least_squares_over_all_experts() -> None:
    features, rows, wanted = make_routed(0)
    prior = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))
    solved = repair_jointly(features, rows, wanted=wanted, prior=prior, ridge=1e-9, sweeps=60)
    design = torch.zeros(90, 15)
    for e, (f, at) in enumerate(zip(features[:3], rows, strict=False)):
        design[at, 5 * e : 5 * e + 5] = f
    expected = torch.linalg.lstsq(design, wanted).solution.T.reshape(3, 3, 5).transpose(0, 1)
    torch.testing.assert_close(solved[:3], expected, rtol=1e-3, atol=1e-4)
    factor = float(solved[3, 0, 0] / prior[3, 0, 0])
    torch.testing.assert_close(solved[3], factor * prior[3])


def test_each_sweep_comes_nearer() -> None:
    features, rows, wanted = make_routed(2)
    prior = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(3))
    errors = []
    for sweeps in (0, 1, 2, 4):
        solved = repair_jointly(
            features, rows, wanted=wanted, prior=prior, ridge=1e-6, sweeps=sweeps
        )
        errors.append(float((wanted - summed(features, rows, solved)).norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] <= float((wanted - summed(features, rows, prior)).norm())
