"""Nemotron-H: hybrid Mamba-2, attention, (latent) MoE and MLP blocks, one mixer per block.

Reads `nemotron_h` and `nemotron_h_puzzle` configs (old and new layer words, pattern strings with
pipeline and prediction-head marks, per-block `block_configs`), and writes the form that stock
engines accept: plain `nemotron_h` when all blocks of a kind are alike, else `nemotron_h_puzzle`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fretsaw.core.axes import TensorAxes, parse_axes
from fretsaw.core.shape import Block, Mixer, ModelShape
from fretsaw.families.base import Config, Family, Row, block_rows
from fretsaw.families.mixers import block_table
from fretsaw.families.nemotron_h_keys import DEFAULTS, KINDS, MEANS_SOMETHING, unknown_keys
from fretsaw.families.nemotron_h_names import (
    MOE_KEYS,
    NAMINGS,
    canonical,
    config_keys,
    fused_axes,
    part_of,
    stored,
)
from fretsaw.families.nemotron_h_read import read_config
from fretsaw.families.nemotron_h_rules import renamed

STRICTLY_PER_BLOCK = ("moe_intermediate_size", "num_experts_per_tok")
"""Keys left out of the global config when blocks differ, as the published model does."""

LOOKED_UP: dict[Mixer, dict[str, Any]] = {
    "moe": {k: v for k, v in DEFAULTS.items() if k != "chunk_size"} | {"moe_latent_size": None},
    "mamba": {"chunk_size": DEFAULTS["chunk_size"], "mamba_ssm_cache_dtype": "float32"},
}
"""Keys that transformers fills in, but llama.cpp's converter or TensorRT-LLM looks up in the file.

Source: defaults of NemotronHConfig, transformers 5.24.
"""

NEVER_WRITTEN = (
    "hidden_act",
    "per_layer_config",
    "quantization_config",
    "transformers_weights",
    "_name_or_path",
)
MTP_KEYS = ("mtp_layers_block_type", "mtp_hybrid_override_pattern", "mtp_block_configs")


def rows(shape: ModelShape) -> tuple[Row, ...]:
    """Every tensor of the model by canonical name, in file order."""
    return tuple(_rows(shape))


def _rows(shape: ModelShape) -> Iterator[Row]:
    embedding = parse_axes("vocab, hidden")
    yield Row(TensorAxes("embeddings.weight", embedding), shape.sizes, "embedding")
    for i, block in enumerate(shape.blocks):
        place = f"layers.{i}."
        yield from block_rows(block_table(block), block.sizes, part="block", block=i, prefix=place)
    yield Row(TensorAxes("norm_f.weight", parse_axes("hidden")), shape.sizes, "norm")
    if not shape.is_tied:
        yield Row(TensorAxes("lm_head.weight", embedding), shape.sizes, "head")
    yield from _mtp_rows(shape)


def _mtp_rows(shape: ModelShape) -> Iterator[Row]:
    last = len(shape.mtp) - 1
    for i, block in enumerate(shape.mtp):
        own = {"enorm": "hidden", "hnorm": "hidden", "eh_proj": "hidden, hidden + hidden"}
        extra = {**(own if i == 0 else {}), **({"final_layernorm": "hidden"} if i == last else {})}
        tensors = [TensorAxes(f"{n}.weight", parse_axes(axes)) for n, axes in extra.items()]
        tensors += block_table(block)
        place = f"mtp.layers.{i}."
        yield from block_rows(tensors, block.sizes, part="mtp", block=i, prefix=place)


def write_config(shape: ModelShape, parent: Config) -> dict[str, Any]:
    """Config of a child of `parent` with this shape, in the form that stock engines read."""
    config = {k: v for k, v in renamed(parent).items() if _is_copied(k, v)}
    if not all(map(_is_finite, config.get("time_step_limit") or ())):
        del config["time_step_limit"]
    for key in ("hybrid_override_pattern", "layer_types", "block_configs", "auto_map"):
        config.pop(key, None)
    config["layers_block_type"] = [block.mixer for block in shape.blocks]
    config["num_hidden_layers"] = shape.num_blocks
    config["tie_word_embeddings"] = shape.is_tied
    if "state" in shape.sizes:
        config["ssm_state_size"] = shape.sizes["state"]
    groups = {b.sizes["group"] for b in shape.blocks if b.mixer == "mamba"}
    if groups:
        config["n_groups"] = config["mamba_n_groups"] = groups.pop()
    config.setdefault("layer_norm_epsilon", config.get("rms_norm_eps", 1e-5))
    for mixer, defaults in LOOKED_UP.items():
        if shape.indices(mixer):
            config |= {key: value for key, value in defaults.items() if key not in config}
    _write_mtp(config, shape)
    if _is_uniform(shape):
        return _write_uniform(config, shape)
    return _write_puzzle(config, shape)


def _is_copied(key: str, value: object) -> bool:
    """Whether a key of the parent goes on; comments and nulls that mean "not given" do not."""
    is_given = value is not None or key not in KINDS or key in MEANS_SOMETHING
    return is_given and key not in NEVER_WRITTEN and not key.startswith("_")


def _is_finite(value: object) -> bool:
    """Whether JSON can say it: transformers writes infinity as a mapping."""
    return isinstance(value, int | float) and math.isfinite(value)


def _write_mtp(config: dict[str, Any], shape: ModelShape) -> None:
    for key in MTP_KEYS:
        config.pop(key, None)
    config["num_nextn_predict_layers"] = int(bool(shape.mtp))
    if shape.mtp:
        config["mtp_layers_block_type"] = [block.mixer for block in shape.mtp]


def _is_uniform(shape: ModelShape) -> bool:
    """Whether plain nemotron_h can say it: alike within a kind, the prediction head included."""
    kinds: dict[str, set[str]] = {}
    for block in (*shape.blocks, *shape.mtp):
        if block.mixer != "mamba":
            kinds.setdefault(block.mixer, set()).add(repr(sorted(block.values.items())))
    return all(len(values) == 1 for values in kinds.values())


def _write_uniform(config: dict[str, Any], shape: ModelShape) -> dict[str, Any]:
    config |= {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h"}
    for block in shape.blocks:
        config |= _entry(block)
    config.pop("block_type", None)
    return config


def _write_puzzle(config: dict[str, Any], shape: ModelShape) -> dict[str, Any]:
    module = "nemotron_h_puzzle"
    config |= {
        "architectures": ["NemotronHPuzzleForCausalLM"],
        "model_type": "nemotron_h_puzzle",
        "auto_map": {
            "AutoConfig": f"configuration_{module}.NemotronHPuzzleConfig",
            "AutoModelForCausalLM": f"modeling_{module}.NemotronHPuzzleForCausalLM",
        },
        "block_configs": [_entry(block) for block in shape.blocks],
    }
    if shape.mtp:
        config["mtp_block_configs"] = [_entry(block) for block in shape.mtp]
    for key in STRICTLY_PER_BLOCK:
        config.pop(key, None)
    for key in set(MOE_KEYS.values()) - set(STRICTLY_PER_BLOCK):
        values = [e[key] for e in config["block_configs"] if e.get(key) is not None]
        config |= {key: max(values)} if values else {}
    return config


def _entry(block: Block) -> dict[str, Any]:
    """One entry of `block_configs`; for MoE all five keys, which some engine each needs."""
    if block.mixer == "mamba":
        return {"block_type": block.mixer}
    no_latent = {"moe_latent_size": None} if block.mixer == "moe" else {}
    return {"block_type": block.mixer} | no_latent | layer_values(block)


def layer_values(block: Block) -> dict[str, int]:
    """Config attributes that build one running block at its own sizes."""
    if block.mixer == "mamba":
        return {"ssm_state_size": block.sizes["state"]}
    if block.mixer == "attention":
        heads = block.sizes["kv_head"] * block.sizes["q_per_kv"]
        return {"num_key_value_heads": block.sizes["kv_head"], "num_attention_heads": heads}
    if block.mixer == "mlp":
        return {"intermediate_size": block.sizes["ffn"]}
    return {key: block.values[d] for d, key in MOE_KEYS.items() if d in block.values}


LONG_CONTEXT = (262_144, 1_048_576)
"""Positions that a Nemotron-3 config states, and that the model, without a position embedding, is
served with (arXiv:2607.04371, appendix C; llama.cpp writes it into every GGUF file)."""


def context_limits(config: Config) -> tuple[int, int]:
    """Tokens of context that the config states, and that engines serve at most."""
    stated = int(config.get("max_position_embeddings", LONG_CONTEXT[0]))
    return stated, max(stated, LONG_CONTEXT[1]) if stated >= LONG_CONTEXT[0] else stated


FAMILY = Family(
    name="nemotron_h",
    model_types=("nemotron_h", "nemotron_h_puzzle"),
    read_config=read_config,
    rows=rows,
    write_config=write_config,
    canonical=canonical,
    fused_axes=fused_axes,
    stored=stored,
    part_of=part_of,
    unknown_keys=unknown_keys,
    config_keys=config_keys,
    namings=NAMINGS,
    context_limits=context_limits,
)
