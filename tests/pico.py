"""A pico hybrid (Mamba, MoE, attention, MoE) with random but varied weights, and its checkpoint.

Built straight from transformers, without fretsaw, so that it can serve as an oracle.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import NemotronHConfig, NemotronHForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock, NemotronHMamba2Mixer

VOCAB = 128
UNK, BOS, EOS = "<unk>", "<s>", "</s>"
BLOCKS = ("mamba", "moe", "attention", "moe")
"""Old layer words, as on disk."""

HETEROGENEOUS: dict[int, dict[str, int]] = {
    1: {"moe_intermediate_size": 24, "num_experts_per_tok": 1},
    3: {"moe_intermediate_size": 16, "num_experts_per_tok": 2},
}
"""Own sizes of the MoE blocks of the heterogeneous form; the default is 32 and top-2 of 4."""

FLOAT32 = ("A_log", "D", "dt_bias", "e_score_correction_bias")
MERGES = (
    "e r|i n|o n|t h|r e|s e|a t|o r|s t|e n|a n|i t|l e|i s|d e|e s|o u|t i|c o|a r|"
    "Ġ a|Ġ t|Ġ s|Ġ i|Ġ =|Ġ Ġ|n e"
)
MOE_KEYS = (
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
)


def pico_config(**overrides: Any) -> dict[str, Any]:
    """Config of the pico model as a plain dict, in the words of published checkpoints."""
    config: dict[str, Any] = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "layers_block_type": list(BLOCKS),
        "num_hidden_layers": len(BLOCKS),
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "chunk_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_latent_size": 16,
        "moe_shared_expert_intermediate_size": 16,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.0,
        "mlp_hidden_act": "relu2",
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "num_nextn_predict_layers": 1,
        "mtp_layers_block_type": ["attention", "moe"],
        "dtype": "bfloat16",
    }
    return config | overrides


def pico_model(
    seed: int,
    *,
    per_block: Mapping[int, Mapping[str, int]] | None = None,
    **overrides: Any,
) -> NemotronHForCausalLM:
    """The pico model in float32 and evaluation mode; its weights are exact in bfloat16.

    Args:
        seed: Of the weights.
        per_block: Block index -> config keys with this block's own values (unequal blocks).
        overrides: Config keys of the whole model.
    """
    skipped = {"num_hidden_layers", "architectures", "model_type", "dtype"}
    config = NemotronHConfig(
        **{k: v for k, v in pico_config(**overrides).items() if k not in skipped}
    )
    model = NemotronHForCausalLM(config)
    for index, values in (per_block or {}).items():
        own = copy.copy(model.config)
        for key, value in values.items():
            setattr(own, key, value)
        model.model.layers[index] = NemotronHBlock(own, layer_idx=index)
    for module in model.modules():
        if isinstance(module, NemotronHMamba2Mixer):
            module.time_step_limit = (0.0, float("inf"))
    fill(model, seed)
    model.train(False)
    return model


def fill(model: nn.Module, seed: int) -> None:
    """Give every tensor varied values: fan-in scaled matrices, no special ones, no zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            values = random_values(name, tuple(tensor.shape), generator=generator)
            tensor.copy_(values.to(disk_dtype(name)))


def random_values(name: str, shape: tuple[int, ...], *, generator: torch.Generator) -> Tensor:
    """Values that fit a tensor's role, known from its name."""
    last = name.rsplit(".", 1)[-1]
    normal = torch.randn(shape, generator=generator)
    if last == "A_log":
        return torch.log(1 + 7 * torch.rand(shape, generator=generator))
    if last == "dt_bias":
        step = torch.exp(math.log(0.02) + 3 * torch.rand(shape, generator=generator))
        return step + torch.log(-torch.expm1(-step))
    if last == "D" or ("norm" in name and len(shape) == 1):
        return 1 + 0.2 * normal
    if last in ("e_score_correction_bias", "bias"):
        return 0.1 * normal
    if "embeddings" in name:
        return normal
    gain = 2.0 if "lm_head" in name else 1.0
    fan_in = shape[-1] if "conv1d" not in name else shape[-1] * 2
    return gain * normal / math.sqrt(fan_in)


def disk_dtype(name: str) -> torch.dtype:
    """Dtype of a tensor on disk."""
    return torch.float32 if name.endswith(FLOAT32) else torch.bfloat16


def write_pico_checkpoint(
    folder: Path,
    seed: int,
    *,
    with_tokenizer: bool = True,
    with_mtp: bool = True,
    heterogeneous: bool = False,
    num_shards: int = 1,
    **overrides: Any,
) -> NemotronHForCausalLM:
    """Write a checkpoint folder as published ones are laid out; gives the model it holds.

    Equal blocks: `nemotron_h` with prefix `backbone.`; unequal: `nemotron_h_puzzle`, `model.`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    per_block = HETEROGENEOUS if heterogeneous else {}
    model = pico_model(seed, per_block=per_block, **overrides)
    config = pico_config(**overrides)
    tensors = dict(disk_tensors(model, "model." if heterogeneous else "backbone."))
    if with_mtp:
        tensors |= mtp_tensors(config, seed)
    else:
        config["num_nextn_predict_layers"] = 0
        del config["mtp_layers_block_type"]
    if heterogeneous:
        config = puzzle_config(config, per_block)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {"eos_token_id": config["eos_token_id"], "bos_token_id": config["bos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")
    write_shards(folder, tensors, num_shards=num_shards)
    if with_tokenizer:
        write_tokenizer(folder)
    return model


def disk_tensors(model: NemotronHForCausalLM, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """The model's tensors under published names: own prefix, one tensor per expert."""
    for running, tensor in model.state_dict().items():
        name = running.replace("model.", prefix, 1) if running.startswith("model.") else running
        value = tensor.detach().to(disk_dtype(name))
        if ".experts." not in name:
            yield name, value.contiguous().clone()
            continue
        for expert, matrix in enumerate(value):
            stem, projection = name.rsplit(".", 1)
            yield f"{stem}.{expert}.{projection}.weight", matrix.contiguous().clone()


def mtp_tensors(config: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
    """Random tensors of a one-depth prediction head: attention, then MoE."""
    hidden, latent = config["hidden_size"], config["moe_latent_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    shared, experts = config["moe_shared_expert_intermediate_size"], config["n_routed_experts"]
    shapes: dict[str, tuple[int, ...]] = {
        "0.enorm.weight": (hidden,),
        "0.hnorm.weight": (hidden,),
        "0.norm.weight": (hidden,),
        "0.eh_proj.weight": (hidden, 2 * hidden),
        "0.mixer.q_proj.weight": (heads, hidden),
        "0.mixer.k_proj.weight": (kv_heads, hidden),
        "0.mixer.v_proj.weight": (kv_heads, hidden),
        "0.mixer.o_proj.weight": (hidden, heads),
        "1.norm.weight": (hidden,),
        "1.final_layernorm.weight": (hidden,),
        "1.mixer.gate.weight": (experts, hidden),
        "1.mixer.gate.e_score_correction_bias": (experts,),
        "1.mixer.fc1_latent_proj.weight": (latent, hidden),
        "1.mixer.fc2_latent_proj.weight": (hidden, latent),
        "1.mixer.shared_experts.up_proj.weight": (shared, hidden),
        "1.mixer.shared_experts.down_proj.weight": (hidden, shared),
    }
    ffn = config["moe_intermediate_size"]
    for expert in range(experts):
        shapes[f"1.mixer.experts.{expert}.up_proj.weight"] = (ffn, latent)
        shapes[f"1.mixer.experts.{expert}.down_proj.weight"] = (latent, ffn)
    generator = torch.Generator().manual_seed(seed + 1)
    return {
        f"mtp.layers.{name}": random_values(name, shape, generator=generator).to(disk_dtype(name))
        for name, shape in shapes.items()
    }


def puzzle_config(
    config: Mapping[str, Any], per_block: Mapping[int, Mapping[str, int]]
) -> dict[str, Any]:
    """The config of unequal blocks, as NVIDIA's Puzzle model writes it."""
    full = {key: config[key] for key in MOE_KEYS}
    entries: list[dict[str, Any]] = []
    for index, word in enumerate(config["layers_block_type"]):
        own = {**full, **per_block.get(index, {})} if word == "moe" else {}
        entries.append({"block_type": word, **own})
    result = dict(config) | {
        "architectures": ["NemotronHPuzzleForCausalLM"],
        "model_type": "nemotron_h_puzzle",
        "block_configs": entries,
    }
    if config["num_nextn_predict_layers"]:
        mtp = config["mtp_layers_block_type"]
        result["mtp_block_configs"] = [
            {"block_type": word, **(full if word == "moe" else {})} for word in mtp
        ]
    for key in ("moe_intermediate_size", "num_experts_per_tok"):
        del result[key]
    return result


def write_shards(folder: Path, tensors: Mapping[str, Tensor], *, num_shards: int) -> None:
    """One `model.safetensors`, or several with an index."""
    if num_shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for i in range(num_shards):
        file = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::num_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of 128 tokens: specials, printable ASCII, tab, newline, a few merges."""
    marks = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ", "ĉ"]
    merges = [(left, right) for left, right in (m.split(" ") for m in MERGES.split("|"))]
    words = [UNK, BOS, EOS, *marks, *(left + right for left, right in merges)]
    words += [f"<extra_{i}>" for i in range(VOCAB - len(words))]
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([UNK, BOS, EOS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNK,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
