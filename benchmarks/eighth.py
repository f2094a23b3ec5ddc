"""Two configs to time without weights: an eighth of Nemotron-3-Super's width, and its child.

The child has the paper's proportions (arXiv:2607.04371): 62 % of the parameters, 31 % of the active
routed capacity, 75 % of the Mamba state.

    python benchmarks/eighth.py FOLDER
    fretsaw serve FOLDER/child.json --against FOLDER/parent.json --random-weights \
        --engine vllm --workload 64/64 --concurrency 1,4,16
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PATTERN = "MEMEMEM*E" + "MEMEMEM*E" + "MEMEMEM*E"
WORDS = {"M": "mamba", "E": "moe", "*": "attention"}
FFN, TOP_K = 336, 22
CHILD = [(304, 17), (224, 8), (176, 6), (144, 8), (176, 10), (128, 12)]
CHILD += [(128, 9), (160, 12), (160, 8), (176, 14), (224, 14), (272, 19)]
"""Width and top-k of each block of experts: wider towards both ends."""


def parent() -> dict[str, Any]:
    """Everything an eighth of Super's, with half of its experts and a third of its depth."""
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "layers_block_type": [WORDS[letter] for letter in PATTERN],
        "num_hidden_layers": len(PATTERN),
        "vocab_size": 16384,
        "hidden_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "mamba_num_heads": 16,
        "mamba_head_dim": 64,
        "n_groups": 1,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "chunk_size": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": TOP_K,
        "moe_intermediate_size": FFN,
        "moe_latent_size": 128,
        "moe_shared_expert_intermediate_size": 672,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "mlp_hidden_act": "relu2",
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "dtype": "bfloat16",
    }


def child() -> dict[str, Any]:
    """The parent's config with a width and a top-k for each block of experts."""
    config = parent()
    sizes = iter(CHILD)
    keys = ("n_routed_experts", "moe_latent_size", "moe_shared_expert_intermediate_size")
    common = {key: config[key] for key in keys}
    blocks: list[dict[str, Any]] = []
    for word in config["layers_block_type"]:
        own: dict[str, Any] = {"block_type": word}
        if word == "moe":
            ffn, top_k = next(sizes)
            own |= {**common, "moe_intermediate_size": ffn, "num_experts_per_tok": top_k}
        blocks.append(own)
    del config["moe_intermediate_size"], config["num_experts_per_tok"]
    return config | {
        "architectures": ["NemotronHPuzzleForCausalLM"],
        "model_type": "nemotron_h_puzzle",
        "ssm_state_size": 96,
        "block_configs": blocks,
    }


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in {"parent": parent(), "child": child()}.items():
        (folder / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
