"""Costs that follow from the tensor table: parameters, bytes by format, KV and state.

Every cost is a whole number and a sum over blocks plus what is no block, so the search can add
them exactly. The prediction head (MTP) is in none of them: see `mtp_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fretsaw.core.hardware import ONE_GPU, Layout
from fretsaw.core.precision import PRESETS, Precision, kind_of, num_bytes
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
FORMATS = ("bf16", "fp8", "nvfp4")
"""Presets whose weight bytes are costs."""

CACHES = Precision("published", kv="fp8", state="fp32", conv_state="bf16")
"""Formats of the caches in the costs by name."""


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
            costs[f"bytes_{weight_format}"] += stored_bytes(row, PRESETS[weight_format])
    costs["active_experts"] = top_k
    return costs | cache_bytes(block, CACHES)


def stored_bytes(row: Row, precision: Precision, *, layout: Layout = ONE_GPU) -> int:
    """Bytes of a row's weights on one GPU; scales of whole tensors (8 bytes each) are left out.

    Args:
        row: A line of the tensor table.
        precision: Which kind of weight has which format.
        layout: How the model lies on its GPUs; by default on one.
    """
    numel = row.tensor.numel(_gpu_sizes(row, layout))
    is_exact = row.tensor.dtype == "float32"
    kind = kind_of(row.tensor, part=row.part)
    return math.ceil(num_bytes(numel, "fp32" if is_exact else precision.format_of(kind)))


SPLIT = ("kv_head", "mamba_head", "group", "ffn", "shared_ffn", "vocab")
"""Dimensions that tensor parallelism splits; with fewer KV heads than GPUs each keeps a copy."""


def _gpu_sizes(row: Row, layout: Layout) -> Mapping[str, int]:
    """Sizes of a row on one GPU, rounded up."""
    sizes, tp = dict(row.sizes), layout.tp
    if layout.ep > 1 and "expert" in row.tensor.name_dims:
        return sizes | {"expert": -(-sizes["expert"] // layout.ep)}
    if "q_per_kv" in sizes:
        heads = sizes["kv_head"] * sizes["q_per_kv"]
        sizes["q_per_kv"] = -(-heads // tp) // max(1, sizes["kv_head"] // tp)
    return sizes | {dim: -(-sizes[dim] // tp) for dim in SPLIT if dim in sizes}


def cache_bytes(block: Block, precision: Precision, *, layout: Layout = ONE_GPU) -> Costs:
    """What a sequence keeps of a block on one GPU: KV per token, SSM state and conv state.

    KV comes from attention alone, state from Mamba alone, each in its own format.

    Returns:
        ``kv_bytes_per_token``, ``state_bytes`` and ``conv_state_bytes``, where the block has them.
    """
    s, tp = block.sizes, layout.tp
    if block.mixer == "attention":
        heads = -(-s["kv_head"] // tp)
        return {"kv_bytes_per_token": round(num_bytes(2 * heads * s["head_dim"], precision.kv))}
    if block.mixer == "mamba":
        inner = -(-s["mamba_head"] // tp) * s["mamba_dim"]
        channels = inner + 2 * -(-s["group"] // tp) * s["state"]
        return {
            "state_bytes": round(num_bytes(inner * s["state"], precision.state)),
            "conv_state_bytes": round(
                num_bytes(channels * (s["kernel"] - 1), precision.conv_state)
            ),
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
            costs[f"bytes_{weight_format}"] += stored_bytes(row, PRESETS[weight_format])
    return costs


def mtp_bytes(shape: ModelShape) -> int:
    """Bytes of the multi-token-prediction head, which stays in BF16 in every format."""
    rows = family_named(shape.family).rows(shape)
    return sum(stored_bytes(row, PRESETS["bf16"]) for row in rows if row.part == "mtp")


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
