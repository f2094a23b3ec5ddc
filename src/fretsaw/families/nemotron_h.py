"""Nemotron-H: hybrid Mamba-2, attention, (latent) MoE and MLP blocks, one mixer per block.

Reads `nemotron_h` and `nemotron_h_puzzle` configs (old and new layer words, pattern strings with
pipeline and prediction-head marks, per-block `block_configs`), and writes the form that stock
engines accept: plain `nemotron_h` when all blocks of a kind are alike, else `nemotron_h_puzzle`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

from fretsaw.core.axes import TensorAxes, parse_axes
from fretsaw.core.shape import Block, Mixer, ModelShape
from fretsaw.errors import CheckpointError, UnsupportedModelError
from fretsaw.families.base import Config, Family, Row, block_rows
from fretsaw.families.mixers import block_table
from fretsaw.families.nemotron_h_names import (
    MOE_KEYS,
    NAMINGS,
    canonical,
    config_keys,
    fused_axes,
    part_of,
    stored,
)

PATTERN_LETTERS: dict[str, Mixer] = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
LAYER_WORDS: dict[str, Mixer] = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "moe": "moe",
    "mlp": "mlp",
}
OLD_KEYS = {
    "layer_types": "layers_block_type",
    "num_local_experts": "n_routed_experts",
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_chunk_size": "chunk_size",
}
"""Other name of a key -> its name here; the first is read where the second is missing."""

MUST_BE = {
    "use_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "mamba_proj_bias": False,
    "use_conv_bias": True,
}
"""Keys with the only value that the tensor table holds for."""

STRICTLY_PER_BLOCK = ("moe_intermediate_size", "num_experts_per_tok")
"""Keys left out of the global config when blocks differ, as the published model does."""

GLOBAL_DEFAULTS: dict[Mixer, dict[str, Any]] = {
    "moe": {
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "moe_latent_size": None,
    },
    "mamba": {"chunk_size": 128, "mamba_ssm_cache_dtype": "float32"},
}
"""Keys that transformers fills in, but llama.cpp's converter or TensorRT-LLM looks up in the file.

Source: defaults of NemotronHConfig, transformers 5.24.
"""

NEVER_WRITTEN = ("hidden_act", "per_layer_config", "quantization_config", "_name_or_path")
MTP_KEYS = ("mtp_layers_block_type", "mtp_hybrid_override_pattern", "mtp_block_configs")


def read_config(config: Config) -> ModelShape:
    """Shape of the model that a config describes.

    Raises:
        CheckpointError: a key is missing, or two parts of the config disagree.
        UnsupportedModelError: the config asks for something that has no tensor table.
    """
    config = _renamed(config)
    for key, value in MUST_BE.items():
        if config.get(key, value) is not value:
            raise UnsupportedModelError(
                f"config has {key}={config[key]}; only {key}={value} has a tensor table",
                "fretsaw cannot cut this checkpoint",
            )
    mixers, mtp_mixers = _layer_kinds(config)
    entries = _entries(config, "block_configs", mixers=mixers)
    mtp_entries = _entries(config, "mtp_block_configs", mixers=mtp_mixers)
    return ModelShape(
        family="nemotron_h",
        sizes={
            "hidden": _get(config, "hidden_size"),
            "vocab": _get(config, "vocab_size"),
            **({"state": _get(config, "ssm_state_size")} if "mamba" in mixers else {}),
        },
        blocks=tuple(_block(m, config, entry=e) for m, e in zip(mixers, entries, strict=True)),
        mtp=tuple(_block(m, config, entry=e) for m, e in zip(mtp_mixers, mtp_entries, strict=True)),
        is_tied=bool(config.get("tie_word_embeddings", False)),
    )


def _renamed(config: Config) -> dict[str, Any]:
    """The config with old keys under their present names."""
    renamed = dict(config)
    for old, new in OLD_KEYS.items():
        if old in renamed and renamed.setdefault(new, renamed[old]) is not None:
            del renamed[old]
    return renamed


def _entries(config: Config, key: str, *, mixers: list[Mixer]) -> list[Config]:
    """Own values of each block; empty where the config has none."""
    entries: list[Config] = config.get(key) or [{}] * len(mixers)
    if len(entries) != len(mixers):
        raise CheckpointError(
            f"config lists {len(entries)} {key} for {len(mixers)} blocks",
            "repair config.json: one entry per block",
        )
    for i, (entry, mixer) in enumerate(zip(entries, mixers, strict=True)):
        if _from_word(entry.get("block_type", mixer)) != mixer:
            raise CheckpointError(
                f"{key}[{i}] is of type {entry['block_type']!r}, but block {i} is {mixer}",
                "repair config.json so that the two agree",
            )
    return entries


def _layer_kinds(config: Config) -> tuple[list[Mixer], list[Mixer]]:
    pattern = cast("str", config.get("hybrid_override_pattern") or "")
    main, _, mtp_in_pattern = pattern.partition("/")
    if words := config.get("layers_block_type"):
        mixers = [_from_word(word) for word in words]
    elif main:
        mixers = _from_pattern(main)
    elif entries := config.get("block_configs"):
        mixers = [_from_word(entry["block_type"]) for entry in entries]
    else:
        raise CheckpointError(
            "config has no list of layers: none of layers_block_type, hybrid_override_pattern, "
            "block_configs",
            "add layers_block_type, one word per block, to config.json",
        )
    num_layers = config.get("num_hidden_layers")
    if num_layers is not None and num_layers != len(mixers):
        raise CheckpointError(
            f"config says num_hidden_layers={num_layers} but lists {len(mixers)} layers",
            "repair config.json so that the two agree",
        )
    depth = config.get("num_nextn_predict_layers", int(bool(mtp_in_pattern)))
    if not depth:
        return mixers, []
    if depth != 1:
        raise UnsupportedModelError(
            f"config has num_nextn_predict_layers={depth}; a prediction head of one depth is known",
            "fretsaw cannot cut this checkpoint",
        )
    if words := config.get("mtp_layers_block_type"):
        return mixers, [_from_word(word) for word in words]
    return mixers, _from_pattern(config.get("mtp_hybrid_override_pattern") or mtp_in_pattern)


def _from_word(word: str) -> Mixer:
    if word not in LAYER_WORDS:
        raise UnsupportedModelError(
            f"unknown layer word {word!r} in config; known: {', '.join(LAYER_WORDS)}",
            "this architecture has no family in fretsaw yet",
        )
    return LAYER_WORDS[word]


def _from_pattern(pattern: str) -> list[Mixer]:
    letters = pattern.replace("|", "")
    if unknown := set(letters) - set(PATTERN_LETTERS):
        raise UnsupportedModelError(
            f"unknown letters {sorted(unknown)} in layer pattern {pattern!r}",
            f"known letters: {' '.join(PATTERN_LETTERS)}; '|' and '/' separate",
        )
    return [PATTERN_LETTERS[letter] for letter in letters]


def _get(config: Config, key: str, entry: Config | None = None) -> int:
    value = (entry or {}).get(key, config.get(key))
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"config key {key} is {value!r}; a positive integer was expected",
            "repair config.json",
        )
    return value


def _block(mixer: Mixer, config: Config, *, entry: Config) -> Block:
    hidden = _get(config, "hidden_size")
    if mixer == "mamba":
        keys = {
            "mamba_head": "mamba_num_heads",
            "mamba_dim": "mamba_head_dim",
            "group": "n_groups",
            "state": "ssm_state_size",
            "kernel": "conv_kernel",
        }
        return Block(mixer, {"hidden": hidden} | {d: _get(config, k) for d, k in keys.items()})
    if mixer == "attention":
        kv_head = _get(config, "num_key_value_heads", entry)
        heads = _get(config, "num_attention_heads", entry)
        if heads % kv_head:
            raise CheckpointError(
                f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_head}",
                "repair config.json",
            )
        sizes = {"kv_head": kv_head, "q_per_kv": heads // kv_head}
        return Block(mixer, {"hidden": hidden, **sizes, "head_dim": _get(config, "head_dim")})
    if mixer == "mlp":
        return Block(mixer, {"hidden": hidden, "ffn": _get(config, "intermediate_size", entry)})
    return _moe_block(config, entry)


def _moe_block(config: Config, entry: Config) -> Block:
    has_latent = {**config, **entry}.get("moe_latent_size") is not None
    dims = [d for d in MOE_KEYS if d != "latent" or has_latent]
    values = {dim: _get(config, MOE_KEYS[dim], entry) for dim in dims}
    top_k = values.pop("top_k")
    if top_k > values["expert"]:
        raise CheckpointError(
            f"config asks for top-k {top_k} of {values['expert']} experts",
            "num_experts_per_tok must not exceed n_routed_experts",
        )
    return Block("moe", {"hidden": _get(config, "hidden_size"), **values}, {"top_k": top_k})


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
    config = {k: v for k, v in _renamed(parent).items() if k not in NEVER_WRITTEN}
    config = {k: v for k, v in config.items() if not _is_comment(k)}
    if not all(map(_is_finite, config.get("time_step_limit") or ())):
        del config["time_step_limit"]
    for key in ("hybrid_override_pattern", "block_configs", "auto_map"):
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
    for mixer, defaults in GLOBAL_DEFAULTS.items():
        if shape.indices(mixer):
            config |= {key: value for key, value in defaults.items() if key not in config}
    _write_mtp(config, shape)
    if _is_uniform(shape):
        return _write_uniform(config, shape)
    return _write_puzzle(config, shape)


def _is_comment(key: str) -> bool:
    return key.startswith("_")


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
    config_keys=config_keys,
    namings=NAMINGS,
    context_limits=context_limits,
)
