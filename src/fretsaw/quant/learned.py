"""Rounding under scales that learn: what a scale does to the numbers it rounds has a gradient."""

from __future__ import annotations

from torch import Tensor

from fretsaw.quant.formats import (
    E2M1_MAX,
    E4M3_MAX,
    E4M3_MIN,
    encode_e4m3,
    in_blocks,
    round_e2m1,
    round_e4m3,
    straight_through,
)


def learned_fp8(values: Tensor, *, scale: Tensor) -> Tensor:
    """`formats.fake_fp8` whose scale has a gradient.

        ratio = clamp(values / scale, -448, 448);  result = scale * round(ratio)
        d result / d values = 1 inside the grid, 0 beyond its ends
        d result / d scale  = round(ratio) - ratio inside the grid, round(ratio) beyond its ends

    Args:
        values: (..., in).
        scale: Positive, () or (rows,), as there.

    Source: LSQ, Esser et al., arXiv:1902.08153, section 2.1, for a grid that is not even.
    """
    flat = values.reshape(-1, values.shape[-1])
    by = scale.reshape(-1, 1)
    ratio = (flat.float() / by).clamp(-E4M3_MAX, E4M3_MAX)
    rounded = straight_through(ratio, round_e4m3(ratio.detach())) * by
    return rounded.to(values.dtype).reshape(values.shape)


def learned_nvfp4(weight: Tensor, *, scale: Tensor, block_scale: Tensor) -> Tensor:
    """`formats.fake_nvfp4` whose block scales have a gradient, and are rounded to E4M3 as stored.

    The gradient is that of `learned_fp8`, with 6 as the end of the grid. The scale of the whole
    tensor has none: what it could do, the block scales do.

    Args:
        weight: (..., in), `in` a multiple of 16.
        scale: () or (rows,), as there.
        block_scale: Positive, (..., in/16) float32, before it is rounded.
    """
    flat = weight.reshape(-1, weight.shape[-1])
    blocks = block_scale.reshape(len(flat), -1)
    stored = straight_through(blocks, stored_block_scale(blocks).float())
    by = (stored * scale.reshape(-1, 1)).unsqueeze(-1)
    ratio = (in_blocks(flat.float()) / by).clamp(-E2M1_MAX, E2M1_MAX)
    rounded = straight_through(ratio, round_e2m1(ratio.detach())) * by
    return rounded.to(weight.dtype).reshape(weight.shape)


def stored_block_scale(block_scale: Tensor) -> Tensor:
    """What a positive block scale is stored as: float8_e4m3fn, never zero."""
    return encode_e4m3(block_scale.detach().clamp(min=E4M3_MIN))
