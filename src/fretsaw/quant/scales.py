"""Scales of the weights that are rounded: by which rule, and those of one checkpoint as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fretsaw.quant.formats import fp8_scale, nvfp4_scale

Method = Literal["max", "mse", "lsq"]
"""Block scales that meet the largest magnitude, those of least squared error, or learned ones."""

SCALE_OF_PEAK = {"fp8": fp8_scale, "nvfp4": nvfp4_scale}
"""Number format -> scale of a whole tensor from its largest magnitude."""


@dataclass(frozen=True)
class WeightScales:
    """Scales of one weight, as they are stored.

    Attributes:
        scale: Of the whole tensor, () float32.
        block_scale: Of NVFP4, (out, in/16) float8_e4m3fn.
    """

    scale: Tensor
    block_scale: Tensor | None = None


@dataclass(frozen=True)
class GivenScales:
    """Scales that were learned with the weights, by canonical name; others follow from values.

    Attributes:
        weights: Of quantised weights.
        inputs: Of what a weight multiplies, () float32.
    """

    weights: Mapping[str, WeightScales] = field(default_factory=dict)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """All of them by a key each, for a file."""
        found = {f"input/{name}": scale for name, scale in self.inputs.items()}
        for name, of_weight in self.weights.items():
            found[f"scale/{name}"] = of_weight.scale
            if of_weight.block_scale is not None:
                found[f"block_scale/{name}"] = of_weight.block_scale
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> GivenScales:
        """Inverse of `tensors`."""
        found: dict[str, dict[str, Tensor]] = {"input": {}, "scale": {}, "block_scale": {}}
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            found[part][name] = tensor
        blocks = found["block_scale"]
        weights = {n: WeightScales(s, blocks.get(n)) for n, s in found["scale"].items()}
        return cls(weights, found["input"])


def shared_scale(peaks: list[Tensor], number_format: str) -> Tensor:
    """Scale of weights that engines fuse, from the largest magnitude of each; of each expert's.

    Args:
        peaks: Each () or (expert,).
        number_format: ``fp8`` or ``nvfp4``.
    """
    return SCALE_OF_PEAK[number_format](torch.stack(peaks).amax(dim=0))
