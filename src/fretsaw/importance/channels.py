"""Importance of the inner channels of an expert or an MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fretsaw.errors import ShapeError
from fretsaw.importance.accumulate import UnitSums


@dataclass(frozen=True)
class ChannelImportance:
    """Importance of each channel, and where it rests on weights alone.

    Attributes:
        values: (expert, ffn), or (ffn,) for a plain MLP; float64, larger = keep, always finite.
        uncalibrated: Experts with too few routed tokens (for a plain MLP: 0 if so).
    """

    values: Tensor
    uncalibrated: tuple[int, ...]


def channel_sums(activations: Tensor, weights: Tensor) -> Tensor:
    """Summed size of the activations of one expert, as its layer weighs them.

        sums[c] = sum_t weights[t] * |activations[t, c]|

    Args:
        activations: Input of the down projection, (tokens, ffn), any float dtype.
        weights: Router weight of each token, (tokens,), exactly as multiplied by the layer.

    Returns:
        (ffn,) float64.
    """
    return (activations.abs().float() * weights.float().unsqueeze(-1)).sum(0, dtype=torch.float64)


def channel_importance(
    sums: UnitSums, *, up_proj: Tensor, down_proj: Tensor, min_tokens: int
) -> ChannelImportance:
    """Importance of each channel inside its expert: the mean size of the term that goes with it.

        importance[e, c] = mean_t (weights[t, e] * |activations[t, e, c]|) * ||down_proj[e, :, c]||

    over the tokens t routed to expert e. An expert with fewer than `min_tokens` of them has no
    trustworthy mean and falls back to ``||up_proj[e, c]|| * ||down_proj[e, :, c]||``. The two
    scales never meet, because channels are compared inside an expert only.

    Args:
        sums: Of `channel_sums`, (expert, ffn), or (ffn,) for a plain MLP.
        up_proj: Weight, (expert, ffn, latent), or (ffn, hidden).
        down_proj: Weight, (expert, latent, ffn), or (hidden, ffn).
        min_tokens: Routed tokens that an expert needs to be judged by its activations.

    Raises:
        ShapeError: the statistics and the weights disagree on expert or ffn.

    Source: Puzzle, arXiv:2411.19146, section 3; inside each routed expert: arXiv:2607.04371,
    section 2.1.1. Router weight: own.
    """
    up, down = up_proj.double().norm(dim=-1), down_proj.double().norm(dim=-2)
    if not up.shape == down.shape == sums.total.shape:
        raise ShapeError(
            f"channel statistics have shape {tuple(sums.total.shape)}; the weights give "
            f"{tuple(up.shape)} (up) and {tuple(down.shape)} (down)",
            "calibrate this checkpoint again: the statistics are of another one",
        )
    is_few = sums.count < min_tokens
    values = torch.where(is_few.unsqueeze(-1), up * down, sums.mean() * down)
    return ChannelImportance(values, tuple(is_few.flatten().nonzero().flatten().tolist()))
