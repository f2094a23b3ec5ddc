"""A Nemotron-H config as a shape: every spelling of the layers, sizes block by block."""

from __future__ import annotations

from typing import cast

from fretsaw.core.shape import Block, Mixer, ModelShape
from fretsaw.errors import CheckpointError, UnsupportedModelError
from fretsaw.families.base import Config
from fretsaw.families.nemotron_h_keys import KINDS
from fretsaw.families.nemotron_h_names import MOE_KEYS
from fretsaw.families.nemotron_h_rules import (
    check_entries,
    check_mamba,
    check_routing,
    check_values,
    differing,
    renamed,
    shown,
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
MTP_DEFAULT: tuple[Mixer, ...] = ("attention", "moe")
"""What transformers takes for a prediction head whose layers are not listed (5.24)."""


def read_config(config: Config) -> ModelShape:
    """Shape of the model that a config describes.

    Raises:
        CheckpointError: a key is missing, or has a value that cannot be; two keys disagree, or
            their sizes do not go together; engines would make different models of it.
        UnsupportedModelError: the config asks for something that has no tensor table.
    """
    config = renamed(config)
    check_values(config)
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
    check_entries(config, key, mixers=mixers)
    return entries


def _layer_kinds(config: Config) -> tuple[list[Mixer], list[Mixer]]:
    """Mixers of the trunk and of the prediction head, which all spellings must agree on."""
    pattern = cast("str", config.get("hybrid_override_pattern") or "")
    main, _, mtp_in_pattern = pattern.partition("/")
    mixers = _trunk(config, main)
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
    spellings = {
        "mtp_layers_block_type": _from_words(config.get("mtp_layers_block_type")),
        "mtp_hybrid_override_pattern": _from_pattern(
            config.get("mtp_hybrid_override_pattern") or ""
        ),
        "hybrid_override_pattern after '/'": _from_pattern(mtp_in_pattern),
    }
    return mixers, _one_of(spellings) or list(MTP_DEFAULT)


def _trunk(config: Config, pattern: str) -> list[Mixer]:
    entries = config.get("block_configs") or []
    words = [entry.get("block_type") for entry in entries]
    spellings = {
        "layers_block_type": _from_words(config.get("layers_block_type")),
        "layer_types": _from_words(config.get("layer_types")),
        "hybrid_override_pattern": _from_pattern(pattern),
    }
    mixers = _one_of(spellings) or _from_words(words)
    if not mixers:
        raise CheckpointError(
            "config has no list of layers: none of layers_block_type, hybrid_override_pattern, "
            "block_configs",
            "add layers_block_type, one word per block, to config.json",
        )
    return mixers


def _one_of(spellings: dict[str, list[Mixer]]) -> list[Mixer]:
    """The layers that every given spelling lists; empty if none is given.

    Raises:
        CheckpointError: two of them differ.
    """
    given = {key: mixers for key, mixers in spellings.items() if mixers}
    if given and (found := differing(given)):
        first, second, place = found
        raise CheckpointError(
            f"config lists {len(given[first])} layers in {first} and {len(given[second])} in "
            f"{second}, which differ from layer {place} on",
            "keep the list that is right: engines read one or the other",
        )
    return next(iter(given.values()), [])


def _from_words(words: list[str] | None) -> list[Mixer]:
    return [_from_word(word) for word in words or ()]


def _from_word(word: object) -> Mixer:
    if not isinstance(word, str) or word not in LAYER_WORDS:
        raise UnsupportedModelError(
            f"unknown layer word {shown(word)} in config; known: {', '.join(LAYER_WORDS)}",
            "this architecture has no family in fretsaw yet",
        )
    return LAYER_WORDS[word]


def _from_pattern(pattern: str) -> list[Mixer]:
    letters = pattern.replace("|", "")
    if unknown := set(letters) - set(PATTERN_LETTERS):
        raise UnsupportedModelError(
            f"unknown letters {sorted(unknown)} in layer pattern {shown(pattern)}",
            f"known letters: {' '.join(PATTERN_LETTERS)}; '|' and '/' separate",
        )
    return [PATTERN_LETTERS[letter] for letter in letters]


def _get(config: Config, key: str, entry: Config | None = None) -> int:
    """A size, which must be given; its value has been checked."""
    value = (entry or {}).get(key, config.get(key))
    if value is None:
        raise CheckpointError(
            f"config key {key} is {value}; {KINDS[key].words} was expected", "repair config.json"
        )
    return cast("int", value)


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
        sizes = {d: _get(config, k) for d, k in keys.items()}
        check_mamba(config)
        return Block(mixer, {"hidden": hidden} | sizes)
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
    check_routing(config, experts=values["expert"], top_k=top_k)
    return Block("moe", {"hidden": _get(config, "hidden_size"), **values}, {"top_k": top_k})
