"""Names of Nemotron-H on disk: of tensors, of config keys, and what each engine makes of them."""

from __future__ import annotations

import re

from fretsaw.families.base import Config, Naming, Part, Row

MOE_KEYS = {
    "expert": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "ffn": "moe_intermediate_size",
    "shared_ffn": "moe_shared_expert_intermediate_size",
    "latent": "moe_latent_size",
}
"""Our dimension -> key in the config and in each entry of `block_configs`."""

CONFIG_KEYS = {
    **MOE_KEYS,
    "hidden": "hidden_size",
    "vocab": "vocab_size",
    "kv_head": "num_key_value_heads",
    "head_dim": "head_dim",
    "mamba_head": "mamba_num_heads",
    "mamba_dim": "mamba_head_dim",
    "group": "n_groups",
    "state": "ssm_state_size",
    "kernel": "conv_kernel",
}

ONE_EACH = "backbone. or model. before the name, `embeddings`, one tensor per expert and projection"
FUSED_TOO = "backbone. or model. before the name, `embeddings`, experts single or fused"

NAMINGS = (
    Naming("transformers", FUSED_TOO, r"(backbone|model)\.(?!embedding\.|embed_tokens\.).+"),
    Naming("vLLM", FUSED_TOO, r"(backbone|model)\.(?!embedding\.).+"),
    Naming("SGLang", ONE_EACH, r"(backbone|model)\.(?!embedding\.|.*\.experts\.[a-z]).+"),
    Naming(
        "llama.cpp",
        ONE_EACH,
        r"(backbone|model)\.(?!embedding\.|embed_tokens\.|.*\.experts\.[a-z]).+",
    ),
    Naming("TensorRT-LLM", FUSED_TOO, r"(backbone|model)\.(?!embedding\.).+"),
    Naming(
        "Megatron-Bridge",
        "backbone. before the names of nemotron_h, model. before those of nemotron_h_puzzle",
        r"backbone\.(?!embedding\.|embed_tokens\.|.*\.experts\.[a-z]).+",
        unequal=r"model\.(?!embedding\.|embed_tokens\.|.*\.experts\.[a-z]).+",
    ),
)
"""Keys of the trunk that each engine finds; `lm_head.` and `mtp.` are the same for all.

Source: transformers 5.24 (conversion_mapping.py), vLLM 0.32 (hf_to_vllm_mapper), SGLang 0.5.23
(load_weights: what it does not find it only warns of, and keeps random), Megatron-Bridge 0.6.2
(nemotron_h_bridge.py) and its PR #5265; llama.cpp, TensorRT-LLM: checkpoint-formats.md, 0 and 4.
"""


def canonical(key: str) -> str:
    """Canonical name of a stored key: no prefix, `embeddings` in the plural."""
    key = re.sub(r"^(backbone|model)\.", "", key)
    return re.sub(r"^embedding\.|^embed_tokens\.", "embeddings.", key)


def fused_axes(name: str) -> tuple[str, str] | None:
    """For a fused experts tensor, the per-expert name pattern that it holds, and its first axis."""
    if match := re.fullmatch(r"(.*\.experts)\.(up_proj|down_proj)(\.weight)?", name):
        return f"{match[1]}.{{expert}}.{match[2]}.weight", "expert"
    return None


def stored(name: str, config: Config) -> str:
    """Stored key of a canonical name under a written config."""
    if part_of(name) in ("head", "mtp"):
        return name
    return ("model." if config["model_type"] == "nemotron_h_puzzle" else "backbone.") + name


def part_of(name: str) -> Part:
    """Part of the model that a canonical name belongs to, known to the table or not."""
    starts: dict[str, Part] = {"mtp.": "mtp", "lm_head.": "head", "embeddings.": "embedding"}
    found = (part for start, part in starts.items() if name.startswith(start))
    return next(found, "norm" if name.startswith("norm_f.") else "block")


def config_keys(config: Config, row: Row) -> dict[str, str]:
    """Where the config gives the dimensions of a row: ``block_configs[3].moe_latent_size``."""
    keys = CONFIG_KEYS | ({} if "expert" in row.tensor.name_dims else {"ffn": "intermediate_size"})
    place = "mtp_block_configs" if row.part == "mtp" else "block_configs"
    entries = config.get(place)
    own = entries[row.block] if entries and row.block is not None else {}
    return {dim: f"{place}[{row.block}].{k}" if k in own else k for dim, k in keys.items()}
