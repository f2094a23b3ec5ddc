"""Keys of a Nemotron-H config: what fretsaw knows of each, and which values go together.

Every key has one of these fates, so that none is copied unread:

- it decides the tensor table (`DIMENSIONS`, the lists of layers, `SETTINGS` that go with them);
- it has one value that the table, or every engine, holds for (`MUST_BE`, `AGREED`);
- it is written anew for a child (`REWRITTEN`);
- it changes no tensor and no sum, and is copied (`COPIED`);
- nobody here knows it: it is copied and named at the check (`unknown_keys`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fretsaw.families.base import Config
from fretsaw.families.nemotron_h_names import CONFIG_KEYS

OLD_KEYS = {
    "num_local_experts": "n_routed_experts",
    "attention_head_dim": "head_dim",
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_chunk_size": "chunk_size",
    "mamba_expand": "expand",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_dt_min": "time_step_min",
    "mamba_dt_max": "time_step_max",
    "mamba_dt_limit": "time_step_limit",
    "mamba_dt_init_floor": "time_step_floor",
}
"""Other name of a key -> its name here; the first is read where the second is missing."""

MUST_BE: dict[str, Any] = {
    "use_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "mamba_proj_bias": False,
    "use_conv_bias": True,
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "sliding_window": None,
    "per_layer_config": None,
}
"""Keys with the only value that the tensor table, the scan and the costs hold for."""

SHARED_EXPERTS = "n_shared_experts"
"""vLLM multiplies the shared width by it and builds none at 0; transformers builds one in any case.

Source: vLLM 0.32 (nemotron_h.py, NemotronHMoE), transformers 5.24 (NemotronHMoE).
"""

SETTINGS = ("chunk_size", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor")
LAYER_KEYS = (
    "layers_block_type",
    "layer_types",
    "hybrid_override_pattern",
    "block_configs",
    "num_hidden_layers",
    "num_nextn_predict_layers",
    "mtp_layers_block_type",
    "mtp_hybrid_override_pattern",
    "mtp_block_configs",
)
REWRITTEN = ("architectures", "model_type", "auto_map", "quantization_config", "hidden_act")
COPIED = frozenset(
    {
        "attention_dropout",
        "bos_token_id",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "dtype",
        "eos_token_id",
        "ep_size",
        "expand",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "layer_norm_epsilon",
        "mamba_ssm_cache_dtype",
        "max_position_embeddings",
        "moe_shared_expert_overlap",
        "norm_eps",
        "num_logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "partial_rotary_factor",
        "pretraining_tp",
        "problem_type",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "return_dict",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sep_token_id",
        "task_specific_params",
        "tie_word_embeddings",
        "time_step_floor",
        "time_step_limit",
        "time_step_max",
        "time_step_min",
        "time_step_rank",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "unk_token_id",
        "use_cache",
        "use_mamba_kernels",
    }
)
"""Keys that change no tensor and no sum here: how text is started, what a reader prints, what
random weights are drawn from, rotary settings that this family does not use, `expand`, which no
engine derives a size from."""

DEFAULTS: dict[str, Any] = {
    SHARED_EXPERTS: 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "chunk_size": 128,
}
"""What transformers takes for a missing key (defaults of NemotronHConfig, 5.24)."""

LARGEST_SIZE = 2**31 - 1
MOST_EXPERTS = 2**14


@dataclass(frozen=True)
class Kind:
    """What a value has to be: the test, and the words for it."""

    holds: Callable[[Any], bool]
    words: str


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_int(value) and 1 <= value <= LARGEST_SIZE


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def _is_number(value: Any) -> bool:
    return (value == 0 and not isinstance(value, bool)) or _is_positive(value)


def _is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value)


SIZE = Kind(_is_size, f"a positive integer up to {LARGEST_SIZE}")
POSITIVE = Kind(_is_positive, "a positive, finite number")
FLAG = Kind(lambda value: isinstance(value, bool), "true or false")
TEXT = Kind(lambda value: isinstance(value, str), "a text")
WORDS = Kind(_is_list_of(str), "a list of words")
NUMBER = Kind(_is_number, "a finite number from 0 on")
TOKENS = Kind(
    lambda value: all(map(_is_int, value if isinstance(value, list) else [value])),
    "a token id, or a list of them",
)
ENTRIES = Kind(_is_list_of(dict), "a list of objects, one per block")

NUMBERS = (
    "attention_dropout",
    "hidden_dropout",
    "initializer_range",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
)
FLAGS = (
    "norm_topk_prob",
    "tie_word_embeddings",
    "use_cache",
    "residual_in_fp32",
    "rescale_prenorm_residual",
    "moe_shared_expert_overlap",
    "use_mamba_kernels",
    "output_router_logits",
)
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

KINDS: dict[str, Kind] = {
    **dict.fromkeys(CONFIG_KEYS.values(), SIZE),
    "n_routed_experts": Kind(
        lambda value: _is_size(value) and value <= MOST_EXPERTS,
        f"a positive integer up to {MOST_EXPERTS}",
    ),
    "intermediate_size": SIZE,
    "num_attention_heads": SIZE,
    "chunk_size": SIZE,
    "n_group": SIZE,
    "topk_group": SIZE,
    "max_position_embeddings": SIZE,
    "num_hidden_layers": SIZE,
    "num_nextn_predict_layers": Kind(lambda v: _is_int(v) and v >= 0, "a count of layers"),
    "routed_scaling_factor": POSITIVE,
    "layer_norm_epsilon": POSITIVE,
    "rms_norm_eps": POSITIVE,
    "norm_eps": POSITIVE,
    **dict.fromkeys(NUMBERS, NUMBER),
    **dict.fromkeys(FLAGS, FLAG),
    **dict.fromkeys(TOKEN_IDS, TOKENS),
    "expand": POSITIVE,
    "num_logits_to_keep": Kind(lambda v: _is_int(v) and v >= 0, "a count of positions"),
    "dtype": TEXT,
    "torch_dtype": TEXT,
    "mamba_ssm_cache_dtype": TEXT,
    "hybrid_override_pattern": TEXT,
    "mtp_hybrid_override_pattern": TEXT,
    "layers_block_type": WORDS,
    "layer_types": WORDS,
    "mtp_layers_block_type": WORDS,
    "block_configs": ENTRIES,
    "mtp_block_configs": ENTRIES,
    "auto_map": Kind(lambda value: isinstance(value, dict), "an object"),
}
"""What a key's value has to be, where it is given and not null."""


MEANS_SOMETHING = ("moe_latent_size", *TOKEN_IDS)
"""Keys whose null is a value; any other null is a key that is not given."""


def unknown_keys(config: Config) -> tuple[str, ...]:
    """Keys of a config that nobody here knows; a child gets them as they are."""
    known = {
        *CONFIG_KEYS.values(),
        *MUST_BE,
        *OLD_KEYS,
        *SETTINGS,
        *LAYER_KEYS,
        *REWRITTEN,
        *COPIED,
        SHARED_EXPERTS,
        "intermediate_size",
        "num_attention_heads",
    }
    return tuple(sorted(k for k in config if k not in known and not k.startswith("_")))
