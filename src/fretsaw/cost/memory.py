"""Costs that follow from the tensor table: parameters, bytes by format, KV and state."""

from __future__ import annotations

from collections.abc import Iterable

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

BF16, FP32, FP8 = 2.0, 4.0, 1.0
NVFP4 = 0.5 + 1 / 16
"""4 bits a weight and one 8-bit scale per 16."""

Costs = dict[str, float]


def block_costs(rows: Iterable[Row], block: Block) -> Costs:
    """Costs of one block, from its rows.

    Args:
        rows: The block's rows of the tensor table.
        block: Its shape.

    Returns:
        Cost by name (`COSTS`).
    """
    costs: Costs = dict.fromkeys(COSTS, 0)
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
        for fmt in ("bf16", "fp8", "nvfp4"):
            costs[f"bytes_{fmt}"] += numel * bytes_per_weight(row, fmt)
    costs["active_experts"] += top_k
    return costs | _cache_costs(block)


def bytes_per_weight(row: Row, weight_format: str) -> float:
    """Bytes of one weight of a row under a format, as the published checkpoints assign them.

    Source: Nemotron-Labs-3-Puzzle-75B-A9B, arXiv:2607.04371, table 2, and its released files.
    """
    if row.tensor.dtype == "float32":
        return FP32
    is_routed = "expert" in row.tensor.name_dims
    is_shared = row.tensor.has("shared_ffn")
    is_mamba_projection = row.tensor.has("mamba_head") and row.tensor.has("hidden")
    if row.part != "block" or weight_format == "bf16":
        return BF16
    if is_routed:
        return NVFP4 if weight_format == "nvfp4" else FP8
    return FP8 if is_shared or is_mamba_projection else BF16


def _cache_costs(block: Block) -> Costs:
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
    """Costs of what is no block: embedding, last norm, head; the prediction head is left out."""
    costs: Costs = dict.fromkeys(COSTS, 0)
    for row in family_named(shape.family).rows(shape):
        if row.part in ("embedding", "norm", "head"):
            numel = row.tensor.numel(row.sizes)
            names = ["params", "active_params"] + ["trunk_params"] * (row.part == "norm")
            for name in names:
                costs[name] += numel
            for fmt in ("bf16", "fp8", "nvfp4"):
                costs[f"bytes_{fmt}"] += numel * BF16
    return costs


def mtp_bytes(shape: ModelShape) -> float:
    """Bytes of the multi-token-prediction head, which stays in BF16 in every format."""
    rows = family_named(shape.family).rows(shape)
    return sum(r.tensor.numel(r.sizes) * bytes_per_weight(r, "bf16") for r in rows if r.part == "mtp")


def model_costs(shape: ModelShape) -> Costs:
    """Costs of the whole model."""
    return add_costs([fixed_costs(shape), *costs_by_block(shape)])


def add_costs(costs: Iterable[Costs]) -> Costs:
    """Sum by name."""
    total: Costs = dict.fromkeys(COSTS, 0)
    for one in costs:
        for name, value in one.items():
            total[name] += value
    return total
