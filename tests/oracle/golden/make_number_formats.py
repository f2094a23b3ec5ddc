"""Makes number_formats.safetensors: what NVIDIA Model Optimizer stores for some matrices.

Run where nvidia-modelopt is installed (it is no dependency of the project):
    python tests/oracle/golden/make_number_formats.py     (made with 0.47.0, torch 2.13.0)
"""

from __future__ import annotations

from pathlib import Path

import torch
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import save_file
from torch import Tensor

FILE = Path(__file__).with_name("number_formats.safetensors")


def matrices() -> dict[str, Tensor]:
    """Gaussian, heavy-tailed, ties on the grid, zero blocks among tiny and huge ones."""
    generator = torch.Generator().manual_seed(5)
    normal = torch.randn(16, 64, generator=generator)
    heavy = normal * torch.exp(2 * torch.randn(16, 64, generator=generator))
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]).repeat(4, 8)
    ties[:, 1::2] *= -1
    steps = torch.logspace(-8, 3, 32).repeat_interleave(16).reshape(8, 64) * normal[:8]
    steps[::3, 16:32] = 0.0
    return {
        "normal": normal.bfloat16(),
        "heavy": heavy.bfloat16(),
        "ties": ties.bfloat16() * 448,
        "steps": steps.bfloat16(),
    }


def stored(name: str, weight: Tensor) -> dict[str, Tensor]:
    packed, block_scale, scale = NVFP4QTensor.quantize(weight.clone(), 16)
    back = packed.dequantize(
        torch.float32, scale=block_scale, double_scale=scale, block_sizes={-1: 16}
    )
    codes, fp8_scale = FP8QTensor.quantize(weight.float())
    return {
        f"{name}.weight": weight,
        f"{name}.nvfp4.packed": packed._quantized_data,
        f"{name}.nvfp4.block_scale": block_scale,
        f"{name}.nvfp4.scale": scale,
        f"{name}.nvfp4.back": back,
        f"{name}.fp8.codes": codes._quantized_data,
        f"{name}.fp8.scale": fp8_scale,
    }


if __name__ == "__main__":
    found: dict[str, Tensor] = {}
    for name, weight in matrices().items():
        found |= stored(name, weight)
    save_file({k: v.contiguous() for k, v in found.items()}, FILE)
