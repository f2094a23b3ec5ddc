"""Scales from what was seen: block scales of least error, activation scales from maxima."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fretsaw.quant.formats import (
    CHUNK,
    E4M3_MAX,
    block_scales,
    in_blocks,
    of_rows,
    peaks_of_blocks,
    round_e2m1,
    row_chunks,
)

STEPS = range(-7, 9)
"""Codes around that of the largest magnitude among which the best block scale lies.

A scale below 0.6 of it: clipping the largest number costs over (0.4 * 6)^2 = 5.8 of the scale
squared and gains nothing above 4, where all is clipped; below 4 rounding costs 15 * 0.5^2 = 3.8 at
most. A scale of 2 or more: half of it has every point of that grid that is in reach, and more.
An octave has eight codes.
"""


def mse_block_scales(weight: Tensor, *, scale: Tensor) -> Tensor:
    """Block scales of least squared error among all E4M3 numbers.

    Args:
        weight: (..., in), `in` a multiple of 16.
        scale: Of the whole tensor, (); or of each of its rows, (rows,).

    Returns:
        float8_e4m3fn, (..., in/16); zero blocks have 1, as `block_scales` gives.

    Source: the error-minimising ("static") scales of Model Optimizer's NVFP4; the range is own.
    """
    flat = weight.reshape(-1, weight.shape[-1])
    parts = [
        _best(flat[rows].float(), of_rows(scale, rows)) for rows in row_chunks(flat, CHUNK // 2)
    ]
    return torch.cat(parts).view(torch.float8_e4m3fn).reshape(*weight.shape[:-1], -1)


def _best(weight: Tensor, scale: Tensor) -> Tensor:
    """Codes of the best block scales, uint8; of rows under scales of (1, 1) or (rows, 1)."""
    blocks = in_blocks(weight)
    start = block_scales(peaks_of_blocks(weight), scale).view(torch.uint8).int()
    best = start.to(torch.uint8)
    least = torch.full(start.shape, torch.inf)
    for step in sorted(STEPS, key=abs):  # the largest magnitude's own code first: it wins a tie
        code = (start + step).clamp(1, 126).to(torch.uint8)
        by = (code.view(torch.float8_e4m3fn).float() * scale).unsqueeze(-1)
        error = (round_e2m1(blocks / by).mul_(by).sub_(blocks)).square_().sum(dim=-1)
        is_better = error < least
        best = torch.where(is_better, code, best)
        least = torch.where(is_better, error, least)
    return best


BIN_SHIFT, NUM_BINS = 20, 2048
"""Bins of a histogram over magnitudes: float32's exponent and three bits more, 12 % wide."""


class Magnitudes:
    """Streaming largest magnitude, and on demand a histogram to cut outliers off by."""

    def __init__(self, *, has_histogram: bool = False) -> None:
        self.largest = 0.0
        self.counts = torch.zeros(NUM_BINS, dtype=torch.int64) if has_histogram else None

    def add(self, values: Tensor) -> None:
        """Take values of any shape, float, into account."""
        if not values.numel():
            return
        size = values.detach().float().abs()
        largest = float(size.amax())
        self.largest = math.inf if math.isnan(largest) else max(self.largest, largest)
        if self.counts is not None:
            bins = size.flatten().view(torch.int32) >> BIN_SHIFT
            self.counts += torch.bincount(bins, minlength=NUM_BINS).cpu()

    def peak(self, percentile: float | None = None) -> float:
        """The largest magnitude, or the end of the bin below which that share of values lies.

        Infinite where a value was not finite.

        Args:
            percentile: In (0, 100]; needs a histogram.
        """
        if percentile is None or self.counts is None or self.largest in (0.0, math.inf):
            return self.largest
        wanted = math.ceil(int(self.counts.sum()) * percentile / 100)
        found = int(torch.searchsorted(self.counts.cumsum(0), wanted)) + 1
        end = torch.tensor(found << BIN_SHIFT, dtype=torch.int32).view(torch.float32)
        return min(self.largest, float(end))


@dataclass(frozen=True)
class Activations:
    """Largest magnitudes that calibration saw.

    Attributes:
        inputs: Name of a weight -> of what it multiplies.
        cache: Name of a KV scale -> of what is cached.
        tokens: Block -> tokens that reached each expert.
        num_tokens: Tokens pushed through the model.
        borrowed: Block -> experts with too few tokens; their maxima are their neighbours'.
    """

    inputs: Mapping[str, float]
    cache: Mapping[str, float]
    tokens: Mapping[int, Sequence[int]]
    num_tokens: int
    borrowed: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {
            "num_tokens": self.num_tokens,
            "inputs": dict(self.inputs),
            "cache": dict(self.cache),
            "tokens": {str(b): list(t) for b, t in self.tokens.items()},
            "borrowed": {str(b): list(e) for b, e in self.borrowed.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Activations:
        """Inverse of `to_json`."""
        return cls(
            data["inputs"],
            data["cache"],
            {int(b): t for b, t in data["tokens"].items()},
            data["num_tokens"],
            {int(b): e for b, e in data["borrowed"].items()},
        )


def share_peaks(peaks: Sequence[float], tokens: Sequence[int], *, min_tokens: int) -> list[float]:
    """Largest magnitudes of a block's experts, those with few tokens raised to their neighbours'.

    A scale that is too large costs NVFP4 next to nothing, since block scales go down to 2^-9 of
    it; one that was never seen is zero, and NaN in the engine. Own.

    Args:
        peaks: Of each expert's input; 0 where it had none.
        tokens: That reached each expert.
        min_tokens: That an expert needs to be trusted.
    """
    trusted = [p for p, n in zip(peaks, tokens, strict=True) if n >= min_tokens]
    most = max(trusted, default=0.0) or max(peaks) or 1.0
    few = [n < min_tokens or p == 0 for p, n in zip(peaks, tokens, strict=True)]
    return [max(p, most) if f else p for p, f in zip(peaks, few, strict=True)]


def kv_scale(peak: float, *, is_power_of_two: bool = False) -> float:
    """Scale of an FP8 cache at which the largest magnitude meets 448; 1 where nothing was seen.

    Args:
        peak: Largest magnitude of keys or values.
        is_power_of_two: Round it up to one, so that scaling is exact.
    """
    scale = peak / E4M3_MAX if peak > 0 else 1.0
    return 2.0 ** math.ceil(math.log2(scale)) if is_power_of_two else scale
