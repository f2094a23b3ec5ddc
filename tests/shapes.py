"""Small hybrid shapes and the published configs, without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fretsaw.core.shape import ModelShape
from fretsaw.families import family_of

CONFIGS = Path(__file__).parents[1] / "src" / "fretsaw" / "data" / "configs"
WORDS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}


def published_shape(name: str) -> ModelShape:
    """The shape of a config that comes with the package."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return family_of(config).read_config(config)


def hybrid_shape(pattern: str, **overrides: Any) -> ModelShape:
    """A small hybrid, one letter a block: M mamba, E moe, * attention, - mlp."""
    config: dict[str, Any] = {
        "model_type": "nemotron_h",
        "layers_block_type": [WORDS[letter] for letter in pattern],
        "num_hidden_layers": len(pattern),
        "vocab_size": 64,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 32,
        "conv_kernel": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 48,
        "moe_latent_size": 16,
        "moe_shared_expert_intermediate_size": 16,
        "intermediate_size": 64,
    }
    config |= overrides
    return family_of(config).read_config(config)
