"""Costs that follow from the tensor table: parameters, bytes by format, KV and state.

Every cost is a whole number and a sum over blocks plus what is no block, so the search can add
them exactly. The prediction head (MTP) is in none of them: see `mtp_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from fretsaw.core.shape import Block, ModelShape
from fretsaw.families import Row, family_named

COSTS = {
    "params": "parameters of trunk, embedding and head",
    "trunk_params": "parameters of the blocks and the last norm",
    "moe_params": "parameters of the routed experts",
    "active_params": "parameters that one token uses",
    "active_routed_params": "parameters of the routed experts that one token uses",
    "active_experts": "routed experts that one token uses, summed over blocks",
    "bytes_bf16": "weights in BF16, correction bias in FP32",
    "bytes_fp8": "experts and Mamba projections in FP8, the rest in BF16",
    "bytes_nvfp4": "routed experts in NVFP4, shared experts and Mamba projections in FP8",
    "kv_bytes_per_token": "KV cache of the attention blocks, FP8",
    "state_bytes": "SSM state of one sequence, FP32",
    "conv_state_bytes": "convolution state of one sequence, BF16",
}
"""Every cost by name, additive over blocks: each can be a budget."""

Costs = dict[str, int]
WeightFormat = Literal["bf16", "fp8", "nvfp4"]
FORMATS: tuple[WeightFormat, ...] = ("bf16", "fp8", "nvfp4")

FP32, BF16, FP8 = 4, 2, 1
"""Bytes of a number."""

NVFP4_SIXTEENTHS = 9
"""Sixteenths of a byte per NVFP4 weight: 4 bits, and one 8-bit scale per 16 weights."""


def block_costs(rows: Iterable[Row], block: Block) -> Costs:
    """Costs of one block, from its rows.

    Args:
        rows: The block's rows of the tensor table.
        block: Its shape.

    Returns:
        Cost by name (`COSTS`), in parameters, experts or bytes.
    """
    costs = _no_costs()
    top_k = block.settings.get("top_k", 0)
    for row in rows:
        numel = row.tensor.numel(row.sizes)
        is_routed = "expert" in row.tensor.name_dims
        active = numel // row.sizes["expert"] * top_k if is_routed else numel
        costs["params"] += numel
        costs["trunk_params"] += numel
        costs["active_params"] += active
        if is_routed:
            costs["moe_params"] += numel
            costs["active_routed_params"] += active
        for weight_format in FORMATS:
            costs[f"bytes_{weight_format}"] += stored_bytes(row, weight_format)
    costs["active_experts"] = top_k
    return costs | _cache_costs(block)


def stored_bytes(row: Row, weight_format: WeightFormat) -> int:
    """Bytes of a row's weights in a format; scales of whole tensors (8 bytes each) are left out.

    Which weight takes which format is what the published checkpoints do; the part of a weight in
    its block is read from its dimensions.

    Source: NVIDIA-Nemotron-Labs-3-Puzzle-75B-A9B, its NVFP4 and FP8 files (arXiv:2607.04371, 2.4).
    """
    numel = row.tensor.numel(row.sizes)
    if row.tensor.dtype == "float32":
        return numel * FP32
    if row.part != "block" or weight_format == "bf16":
        return numel * BF16
    if "expert" in row.tensor.name_dims:
        return -(-numel * NVFP4_SIXTEENTHS // 16) if weight_format == "nvfp4" else numel * FP8
    is_mamba_projection = row.tensor.has("mamba_head") and row.tensor.has("hidden")
    return numel * (FP8 if is_mamba_projection or row.tensor.has("shared_ffn") else BF16)


def _cache_costs(block: Block) -> Costs:
    """KV from attention alone, state from Mamba alone, each in its own dtype."""
    s = block.sizes
    if block.mixer == "attention":
        return {"kv_bytes_per_token": 2 * s["kv_head"] * s["head_dim"] * FP8}
    if block.mixer == "mamba":
        inner = s["mamba_head"] * s["mamba_dim"]
        channels = inner + 2 * s["group"] * s["state"]
        return {
            "state_bytes": inner * s["state"] * FP32,
            "conv_state_bytes": channels * (s["kernel"] - 1) * BF16,
        }
    return {}


def costs_by_block(shape: ModelShape) -> list[Costs]:
    """Costs of every block of a model."""
    grouped: list[list[Row]] = [[] for _ in shape.blocks]
    for row in family_named(shape.family).rows(shape):
        if row.part == "block" and row.block is not None:
            grouped[row.block].append(row)
    return [block_costs(rows, b) for rows, b in zip(grouped, shape.blocks, strict=True)]


def fixed_costs(shape: ModelShape) -> Costs:
    """Costs of what is no block: embedding, last norm, head."""
    costs = _no_costs()
    for row in family_named(shape.family).rows(shape.with_blocks(())):
        if row.part == "mtp":
            continue
        numel = row.tensor.numel(row.sizes)
        costs["params"] += numel
        costs["active_params"] += numel
        costs["trunk_params"] += numel if row.part == "norm" else 0
        for weight_format in FORMATS:
            costs[f"bytes_{weight_format}"] += stored_bytes(row, weight_format)
    return costs


def mtp_bytes(shape: ModelShape) -> int:
    """Bytes of the multi-token-prediction head, which stays in BF16 in every format."""
    rows = family_named(shape.family).rows(shape)
    return sum(stored_bytes(row, "bf16") for row in rows if row.part == "mtp")


def model_costs(shape: ModelShape) -> Costs:
    """Costs of the whole model."""
    return add_costs([fixed_costs(shape), *costs_by_block(shape)])


def add_costs(costs: Iterable[Costs]) -> Costs:
    """Sum by name."""
    total = _no_costs()
    for one in costs:
        for name, value in one.items():
            total[name] += value
    return total


def _no_costs() -> Costs:
    return dict.fromkeys(COSTS, 0)
