"""Scales from what was seen: block scales of least error, activation scales from maxima."""

from __future__ import annotations

import torch
from torch import Tensor

from fretsaw.quant.formats import (
    CHUNK,
    block_scales,
    in_blocks,
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
        weight: (out, in), `in` a multiple of 16.
        scale: Of the whole tensor, ().

    Returns:
        float8_e4m3fn, (out, in/16); zero blocks have 1, as `block_scales` gives.

    Source: the error-minimising ("static") scales of Model Optimizer's NVFP4; the range is own.
    """
    parts = [_best(weight[rows].float(), scale) for rows in row_chunks(weight, CHUNK // 2)]
    return torch.cat(parts).view(torch.float8_e4m3fn)


def _best(weight: Tensor, scale: Tensor) -> Tensor:
    """Codes of the best block scales, uint8."""
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
