"""FP8 and NVFP4 to the bit: encode, decode, pack, and the rules of their scales.

E4M3 is torch's `float8_e4m3fn`: 448 at most, no infinities. E2M1 has 0, .5, 1, 1.5, 2, 3, 4, 6 with
a sign; a code is ``8 * sign + index``. Both round ties to the even code and saturate.

Source: OCP 8-bit Floating Point 1.0; OCP Microscaling Formats 1.0 (E2M1); NVFP4 as NVIDIA Model
Optimizer stores it (`NVFP4QTensor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fretsaw.errors import ShapeError

E4M3_MAX, E4M3_MIN = 448.0, 2.0**-9
"""Largest and smallest positive numbers of E4M3."""

E2M1_MAX = 6.0
BLOCK = 16
"""Numbers that share a scale in NVFP4, along the last axis."""

CHUNK = 1 << 16
"""Numbers worked on at a time: the temporaries stay in the processor's cache."""

TINY = torch.finfo(torch.float32).tiny
EXPONENT = 0x7F800000
"""Bits of a float32's exponent."""


@dataclass(frozen=True)
class Fp8:
    """A tensor in E4M3 with one scale: value = codes * scale.

    Attributes:
        codes: float8_e4m3fn, the tensor's shape.
        scale: float32, ().
    """

    codes: Tensor
    scale: Tensor

    def decode(self) -> Tensor:
        """The values, float32."""
        return self.codes.float() * self.scale


@dataclass(frozen=True)
class Nvfp4:
    """A matrix in E2M1 with two levels of scales: value = grid[code] * block_scale * scale.

    Attributes:
        packed: Two codes per byte, the even column in the low half, (out, in/2) uint8.
        block_scale: float8_e4m3fn, (out, in/16).
        scale: float32, ().
    """

    packed: Tensor
    block_scale: Tensor
    scale: Tensor

    def decode(self) -> Tensor:
        """The values, (out, in) float32."""
        parts = []
        for rows in row_chunks(self.packed, CHUNK // 2):
            grid = decode_e2m1(unpack(self.packed[rows]))
            block = self.block_scale[rows].float() * self.scale
            parts.append((in_blocks(grid) * block.unsqueeze(-1)).flatten(-2))
        return torch.cat(parts)


def row_chunks(tensor: Tensor, size: int = CHUNK) -> Iterator[slice]:
    """Slices of the first axis that hold about `size` numbers each."""
    step = max(1, size // max(1, tensor[0].numel())) if len(tensor) else 1
    for start in range(0, max(1, len(tensor)), step):
        yield slice(start, start + step)


def encode_e4m3(values: Tensor) -> Tensor:
    """The nearest E4M3 of each value, ties to even, beyond 448 saturated; NaN stays NaN.

    Args:
        values: Any shape, float.

    Returns:
        float8_e4m3fn.
    """
    return values.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def encode_e2m1(values: Tensor) -> Tensor:
    """The E2M1 code nearest to each value, ties to the even code, beyond 6 saturated.

    The grid has steps of 1/2 up to 2, of 1 up to 4, of 2 up to 6, so a code is the least of the
    three lines ``round(2 a)``, ``round(a) + 2``, ``round(a / 2) + 4``. Own.

    Args:
        values: Any shape, float, without NaN.

    Returns:
        uint8, below 16.
    """
    return _codes(values).to(torch.uint8)


def _codes(values: Tensor) -> Tensor:
    """`encode_e2m1` as int32, in which torch is several times faster than in uint8."""
    size = values.float().abs()
    code = (size * 2.0).round_()
    torch.minimum(code, size.round().add_(2.0), out=code)
    torch.minimum(code, size.mul_(0.5).round_().add_(4.0), out=code)
    unsigned = code.clamp_(max=7.0).to(torch.int32)
    positive_zero = values.float() + 0.0
    return unsigned | (positive_zero.view(torch.int32) >> 28) & 8


def decode_e2m1(codes: Tensor) -> Tensor:
    """The value of each E2M1 code, float32.

    The greatest of the three lines that `encode_e2m1` takes the least of, undone.
    """
    index = (codes & 7).float()
    size = torch.maximum(index * 0.5, index - 2.0)
    torch.maximum(size, index.mul_(2.0).sub_(8.0), out=size)
    return size.mul_(1.0 - (codes >> 3).float() * 2.0)


def pack(codes: Tensor) -> Tensor:
    """Two codes per byte: the even column in the low half. (..., in) -> (..., in/2) uint8."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def unpack(packed: Tensor) -> Tensor:
    """Inverse of `pack`, uint8."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def fp8_scale(peak: Tensor) -> Tensor:
    """Scale at which the largest magnitude meets 448; 1 where all is zero.

    Args:
        peak: Largest magnitude, float.
    """
    return _scale(peak, E4M3_MAX)


def nvfp4_scale(peak: Tensor) -> Tensor:
    """Scale of a whole tensor at which its largest block scale meets 448; 1 where all is zero."""
    return _scale(peak, E2M1_MAX * E4M3_MAX)


def _scale(peak: Tensor, top: float) -> Tensor:
    peak = peak.float()
    return torch.where(peak > 0, (peak / top).clamp(min=TINY), torch.ones_like(peak))


def block_scales(block_peaks: Tensor, scale: Tensor) -> Tensor:
    """Scales of blocks whose largest magnitude shall meet 6; 1 for a block of zeros.

    Args:
        block_peaks: Largest magnitude of each block, any shape, float.
        scale: Of the whole tensor, ().

    Returns:
        float8_e4m3fn, never below 2^-9: no block is lost to a scale of zero.
    """
    wanted = block_peaks.float() / (E2M1_MAX * scale)
    wanted = torch.where(wanted == 0, torch.ones_like(wanted), wanted)
    return encode_e4m3(wanted.clamp(min=E4M3_MIN))


def peak_of(values: Tensor) -> Tensor:
    """Largest magnitude, () float32; NaN where there is one."""
    least, most = values.aminmax()
    peak: Tensor = torch.maximum(-least, most).float()
    return peak


def peaks_of_blocks(values: Tensor) -> Tensor:
    """Largest magnitude of each block of 16 along the last axis, (..., in) -> (..., in/16).

    Raises:
        ShapeError: the last axis is no multiple of 16.
    """
    check_blocks(values.shape[-1])
    blocks = in_blocks(values).abs()
    while blocks.shape[-1] > 1:  # faster than amax over so short an axis
        half = blocks.shape[-1] // 2
        blocks = torch.maximum(blocks[..., :half], blocks[..., half:])
    return blocks.squeeze(-1)


def check_blocks(columns: int) -> None:
    """Whether rows of that many numbers fall into blocks of 16.

    Raises:
        ShapeError: they do not.
    """
    if columns % BLOCK:
        raise ShapeError(
            f"NVFP4 needs rows of a multiple of {BLOCK} numbers; these have {columns}",
            "keep this kind of weight in bf16, or cut its dimensions to a multiple of 16",
        )


def quantize_fp8(weight: Tensor, *, scale: Tensor | None = None) -> Fp8:
    """A matrix in E4M3 under one scale.

    Args:
        weight: (out, in), any float dtype.
        scale: To use in place of the tensor's own.
    """
    if scale is None:
        scale = fp8_scale(peak_of(weight))
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for rows in row_chunks(weight):
        codes[rows] = encode_e4m3(weight[rows].float() / scale)
    return Fp8(codes, scale)


def quantize_nvfp4(
    weight: Tensor, *, scale: Tensor | None = None, block_scale: Tensor | None = None
) -> Nvfp4:
    """A matrix in NVFP4.

    Args:
        weight: (out, in), any float dtype, `in` a multiple of 16.
        scale: Of the whole tensor, in place of its own.
        block_scale: float8_e4m3fn (out, in/16), in place of those that meet the largest magnitude.

    Raises:
        ShapeError: `in` is no multiple of 16.
    """
    check_blocks(weight.shape[-1])
    if scale is None:
        scale = nvfp4_scale(peak_of(weight))
    packed = torch.empty((*weight.shape[:-1], weight.shape[-1] // 2), dtype=torch.uint8)
    if block_scale is None:
        found = torch.empty(
            (*weight.shape[:-1], weight.shape[-1] // BLOCK), dtype=torch.float8_e4m3fn
        )
    else:
        found = block_scale
    for rows in row_chunks(weight):
        values = weight[rows].float()
        if block_scale is None:
            found[rows] = block_scales(peaks_of_blocks(values), scale)
        by = found[rows].float() * scale
        packed[rows] = pack(_codes(in_blocks(values) / by.unsqueeze(-1)).flatten(-2))
    return Nvfp4(packed, found, scale)


def in_blocks(values: Tensor) -> Tensor:
    """(..., in) -> (..., in/16, 16)."""
    blocks: Tensor = values.unflatten(-1, (-1, BLOCK))
    return blocks


def round_e2m1(values: Tensor) -> Tensor:
    """Each value moved to the E2M1 grid, float32."""
    return _to_grid_(values.float().clamp(-E2M1_MAX, E2M1_MAX), least=1.0, bits=1)


def round_e4m3(values: Tensor) -> Tensor:
    """Each value moved to the E4M3 grid, float32; NaN stays NaN."""
    return _to_grid_(values.float().clamp(-E4M3_MAX, E4M3_MAX), least=2.0**-6, bits=3)


def _to_grid_(values: Tensor, *, least: float, bits: int) -> Tensor:
    """Float32 rounded in place to so many bits of mantissa, ties to even, evenly below `least`.

    A number of the size of 1.5 * 2^23 steps has no bits below a step: adding and subtracting it
    rounds. Five times as fast as going through codes. Own.
    """
    power = (values.view(torch.int32) & EXPONENT).view(torch.float32)
    many = power.clamp_(min=least).mul_(1.5 * 2.0 ** (23 - bits))
    return values.add_(many).sub_(many)


class _StraightThrough(torch.autograd.Function):
    """Rounded values forward, the gradient of the values as they were backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rounded: Tensor) -> Tensor:
        del ctx, values
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        del ctx
        return grads[0], None


def straight_through(values: Tensor, rounded: Tensor) -> Tensor:
    """`rounded`, through which the gradient goes as if it were `values`.

    Source: Bengio, Leonard and Courville, arXiv:1308.3432, section 4.
    """
    found: Tensor = _StraightThrough.apply(values, rounded)  # type: ignore[no-untyped-call]
    return found


def fake_fp8(values: Tensor, *, scale: Tensor) -> Tensor:
    """Values as an FP8 matrix product would read them under a static scale, in their own dtype.

    The gradient passes straight through.

    Args:
        values: (..., in).
        scale: Of the whole tensor, (); or of each of its rows, (rows,).
    """
    flat = values.detach().reshape(-1, values.shape[-1])
    result = torch.empty_like(flat)
    for rows in row_chunks(flat):
        by = of_rows(scale, rows)
        result[rows] = round_e4m3(flat[rows].float() / by).mul_(by)
    return straight_through(values, result.reshape(values.shape))


def fake_nvfp4(values: Tensor, *, scale: Tensor, block_scale: Tensor | None = None) -> Tensor:
    """Values as an NVFP4 matrix product would read them, in their own dtype.

    The gradient passes straight through.

    Args:
        values: (..., in), `in` a multiple of 16.
        scale: Of the whole tensor, static, (); or of each of its rows, (rows,).
        block_scale: E4M3 numbers in any dtype, (..., in/16); made on the spot, as engines do for
            inputs, if not given.
    """
    flat = values.detach().reshape(-1, values.shape[-1])
    given = None if block_scale is None else block_scale.detach().reshape(len(flat), -1)
    result = torch.empty_like(flat)
    for rows in row_chunks(flat):
        part, whole = flat[rows].float(), of_rows(scale, rows)
        block = block_scales(peaks_of_blocks(part), whole) if given is None else given[rows]
        by = (block.float() * whole).unsqueeze(-1)
        result[rows] = round_e2m1(in_blocks(part) / by).mul_(by).flatten(-2).to(values.dtype)
    return straight_through(values, result.reshape(values.shape))


def of_rows(scale: Tensor, rows: slice) -> Tensor:
    """A scale that multiplies some rows, (1, 1) or (rows, 1)."""
    return (scale if scale.ndim == 0 else scale[rows]).reshape(-1, 1)
