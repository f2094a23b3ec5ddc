"""Closed-form repair: the weights that stay are re-solved to stand in for those that went."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def repair_channels(moments: Tensor, *, down_proj: Tensor, ridge: float) -> Tensor:
    """Kept columns of a down projection, re-solved to give what the full expert gave.

        D' = argmin sum_t w[t]^2 ||D h[t] - D' h[t, :n]||^2 + s ||D' - D[:, :n]||^2
           = D[:, :n] + D[:, n:] M[n:, :n] (M[:n, :n] + s I)^-1,   M = sum_t w[t]^2 h[t] h[t]^T

    with s = `ridge` times the mean diagonal of M[:n, :n]. The plain slice is a point of the
    problem, so the fitted error is never larger than the slice's.

    Args:
        moments: First n rows of M of one expert in importance order, (n, ffn), any float dtype.
        down_proj: Full weight in importance order, (latent, ffn).
        ridge: Pull towards the plain slice, relative, > 0.

    Returns:
        (latent, n), dtype of `down_proj`; the plain slice where M is zero.

    Source: own; ridge regression on second moments.
    """
    m = moments.double()
    keep = len(m)
    kept, gone = down_proj[:, :keep].double(), down_proj[:, keep:].double()
    solved = _solve(gone @ m[:, keep:].T, m[:, :keep], ridge=ridge)
    return (kept + solved).to(down_proj.dtype)


def repair_projection(cross: Tensor, moments: Tensor, *, prior: Tensor, ridge: float) -> Tensor:
    """A projection re-solved so that a changed input gives the output that was wanted.

        F' = argmin sum_t ||y[t] - F' z[t]||^2 + s ||F' - F||^2
           = F + (Y - F Z) (Z + s I)^-1,   Y = sum_t y[t] z[t]^T,  Z = sum_t z[t] z[t]^T

    with s = `ridge` times the mean diagonal of Z.

    Args:
        cross: Y, (out, in).
        moments: Z, (in, in).
        prior: F, the present weight, (out, in).
        ridge: Pull towards the present weight, relative, > 0.

    Returns:
        (out, in), dtype of `prior`; the present weight where Z is zero.

    Source: own; ridge regression on second moments.
    """
    f, z = prior.double(), moments.double()
    return (f + _solve(cross.double() - f @ z, z, ridge=ridge)).to(prior.dtype)


def repair_jointly(
    features: Sequence[Tensor],
    rows: Sequence[Tensor],
    *,
    wanted: Tensor,
    prior: Tensor,
    ridge: float,
    sweeps: int,
) -> Tensor:
    """Down projections of all experts, re-solved together to give the sum that was wanted.

        argmin sum_t ||y[t] - sum_e D_e f_e[t]||^2 + sum_e s_e ||D_e - g P_e||^2

    by block coordinate descent: each expert in turn is solved exactly against what the others
    leave over. So an expert takes on part of what tokens lost with experts that no longer see
    them, which `repair_channels`, expert by expert, cannot know. g is the one factor on all
    experts that brings their sum nearest to y; s_e = `ridge` times the mean diagonal of expert
    e's moments. No sweep makes the fitted error plus pull larger.

    Args:
        features: Per expert its weighted activations, (tokens_e, ffn).
        rows: Per expert the tokens that they belong to, (tokens_e,) int64.
        wanted: y, (tokens, latent).
        prior: P, (expert, latent, ffn).
        ridge: Pull towards the prior, relative, > 0.
        sweeps: Times that each expert is solved.

    Returns:
        (expert, latent, ffn), dtype of `prior`; an expert without tokens is g P.

    Source: own; ridge regression by blocks.
    """
    given = _sum_of_experts(features, rows, weights=prior, like=wanted)
    gain = _best_factor(float((given * wanted).sum()), float(given.square().sum()))
    prior = prior * gain
    solved = prior.clone()
    rest = wanted.float() - gain * given
    moments = [f.T @ f for f in features]
    for _ in range(sweeps):
        for expert, (f, at) in enumerate(zip(features, rows, strict=True)):
            present = solved[expert].clone()
            cross = rest[at].T @ f + present.float() @ moments[expert]
            solved[expert] = repair_projection(
                cross, moments[expert], prior=prior[expert], ridge=ridge
            )
            rest.index_add_(0, at, f @ (present - solved[expert]).float().T)
    return solved


def output_gain(cross: Tensor, moments: Tensor, *, prior: Tensor) -> float:
    """The one factor on a projection that brings it nearest to the wanted output.

        gain = argmin_g sum_t ||y[t] - g F z[t]||^2 = <F, Y> / <F Z, F>

    Args:
        cross: Y = sum_t y[t] z[t]^T, (out, in).
        moments: Z = sum_t z[t] z[t]^T, (in, in).
        prior: F, the present weight, (out, in).

    Returns:
        The factor; 1 where F Z is zero.

    Source: own.
    """
    f = prior.double()
    return _best_factor(float((f * cross.double()).sum()), float((f @ moments.double() * f).sum()))


def _best_factor(product: float, power: float) -> float:
    return product / power if power > 0 else 1.0


def _sum_of_experts(
    features: Sequence[Tensor], rows: Sequence[Tensor], *, weights: Tensor, like: Tensor
) -> Tensor:
    given = torch.zeros_like(like, dtype=torch.float32)
    for f, at, weight in zip(features, rows, weights, strict=True):
        given.index_add_(0, at, f @ weight.float().T)
    return given


def _solve(right: Tensor, moments: Tensor, *, ridge: float) -> Tensor:
    """``right (moments + s I)^-1`` for a symmetric, positive semi-definite matrix."""
    mean = float(moments.diagonal().mean())
    if mean <= 0:
        return torch.zeros_like(right)
    damped = moments.clone()
    damped.diagonal().add_(ridge * mean)
    solved: Tensor = torch.linalg.solve(damped, right, left=False)
    return solved
