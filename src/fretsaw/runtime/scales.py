"""Scales of a running model that learns under rounding: they follow its weights, stay, or learn."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fretsaw.quant.calibrate import mse_block_scales
from fretsaw.quant.formats import fake_fp8, fake_nvfp4, peak_of
from fretsaw.quant.learned import learned_fp8, learned_nvfp4, stored_block_scale
from fretsaw.quant.scales import Method, WeightScales, shared_scale
from fretsaw.runtime.linears import Counts

LEARNED_RATE = 10.0
"""A scale is its start times exp(LEARNED_RATE * p): AdamW moves p by its rate, so the scale by ten
times that share. E4M3 numbers are 12 % apart: at the weights' own rate few would be reached."""


class _Moved(nn.Module):
    """A scale that learns as its logarithm.

    Args:
        start: Positive, any shape, float32.
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.start: Tensor
        self.register_buffer("start", start)
        self.moved = nn.Parameter(torch.zeros_like(start))

    def forward(self) -> Tensor:
        return self.start * (LEARNED_RATE * self.moved).exp()


class GroupScales(nn.Module):
    """How weights that engines fuse are rounded: under one scale of the whole, or of each expert.

    With `max` all scales follow from the weights at every look, those of FP8 with `mse` too; block
    scales of `mse` are those of least error when this is made, and stay; with `lsq` they start
    there and learn, as the scale of FP8 does.

    Args:
        weights: Name -> running parameter, (out, in) or (expert, out, in), read at every look.
        number_format: ``fp8`` or ``nvfp4``.
        method: The rule.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], number_format: str, *, method: Method
    ) -> None:
        super().__init__()
        self._weights = dict(weights)
        self._format, self._method = number_format, method
        self._index = {name: i for i, name in enumerate(weights)}
        self.is_given = method == "lsq" or (method == "mse" and number_format == "nvfp4")
        self.blocks = nn.ModuleList()
        self.whole: _Moved | None = None
        self.scale: Tensor
        if not self.is_given:
            return
        scale = self._following()
        if number_format == "fp8":
            self.whole = _Moved(scale)
            return
        self.register_buffer("scale", scale)
        for weight in self._weights.values():
            best = mse_block_scales(weight.detach(), scale=_of_rows(scale, weight)).float()
            self.blocks.append(_Moved(best) if method == "lsq" else _Kept(best))

    def _following(self) -> Tensor:
        """Scale of the whole by the largest magnitudes now, () or (expert,)."""
        peaks = [_peaks(weight.detach()) for weight in self._weights.values()]
        return shared_scale(peaks, self._format)

    def forward(self, name: str, weight: Tensor) -> Tensor:
        """A weight as it will be read from the file, in its own shape and dtype."""
        if self._format == "fp8":
            if self.whole is not None:
                return learned_fp8(weight, scale=_of_rows(self.whole(), weight))
            return fake_fp8(weight, scale=_of_rows(self._following(), weight))
        if not self.is_given:
            return fake_nvfp4(weight, scale=_of_rows(self._following(), weight))
        scale, block = _of_rows(self.scale, weight), self.blocks[self._index[name]]()
        if self._method == "mse":
            return fake_nvfp4(weight, scale=scale, block_scale=block)
        return learned_nvfp4(weight, scale=scale, block_scale=block)

    @torch.no_grad()
    def given(self, name: str) -> list[WeightScales]:
        """What is to be stored of a weight that does not follow: of it, or of each expert."""
        if self.whole is not None:
            return [WeightScales(scale) for scale in self.whole().reshape(-1)]
        scale = self.scale.reshape(-1)
        blocks = stored_block_scale(self.blocks[self._index[name]]())
        parts = blocks.reshape(len(scale), -1, blocks.shape[-1]).unbind()
        return [WeightScales(*pair) for pair in zip(scale, parts, strict=True)]


class _Kept(nn.Module):
    """A scale that stays."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.start: Tensor
        self.register_buffer("start", start)

    def forward(self) -> Tensor:
        return self.start


class InputScale(nn.Module):
    """How the inputs of a weight are rounded: under a scale that stays or learns.

    That of NVFP4 inputs always stays: their block scales are made on the spot, and take back
    whatever it does.

    Args:
        scale: (), or (expert,) for weights of experts, float32.
        number_format: ``fp8`` or ``nvfp4``.
        is_learned: Whether a scale of FP8 learns.
    """

    def __init__(self, scale: Tensor, number_format: str, *, is_learned: bool = False) -> None:
        super().__init__()
        self.is_learned = is_learned and number_format == "fp8"
        self._format = number_format
        self.scale: nn.Module = _Moved(scale) if self.is_learned else _Kept(scale)

    def forward(self, values: Tensor, counts: Counts) -> Tensor:
        """Inputs as they are multiplied; those of experts follow each other, so many of each."""
        scale: Tensor = self.scale()
        if counts is not None:
            scale = scale.repeat_interleave(torch.tensor(counts, device=scale.device))
        if self.is_learned:
            return learned_fp8(values, scale=scale)
        return (fake_fp8 if self._format == "fp8" else fake_nvfp4)(values, scale=scale)

    @torch.no_grad()
    def given(self) -> list[Tensor]:
        """What is to be stored: one scale, or each expert's."""
        return list(self.scale().reshape(-1))


def _peaks(weight: Tensor) -> Tensor:
    return peak_of(weight) if weight.ndim == 2 else weight.abs().amax(dim=(1, 2)).float()  # noqa: PLR2004


def _of_rows(scale: Tensor, weight: Tensor) -> Tensor:
    """The scale of each row of a weight, (rows,); one of all is left as it is."""
    return scale if scale.ndim == 0 else scale.repeat_interleave(weight.shape[1])
