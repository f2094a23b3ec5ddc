"""The demo parent on disk: names, dtypes and shards of a plain `nemotron_h` checkpoint."""

import json
import shutil
from pathlib import Path

import torch
from parent_model import BOS, CONFIG, EOS, PAD, MtpHead
from safetensors.torch import save_file
from torch import Tensor
from transformers import NemotronHForCausalLM, PreTrainedTokenizerFast

MAX_SHARD_BYTES = 7_500_000
FLOAT32_NAMES = ("A_log", ".D", "dt_bias", "e_score_correction_bias")
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": PAD,
    "bos_token": BOS,
    "eos_token": EOS,
    "clean_up_tokenization_spaces": False,
    "model_max_length": CONFIG["max_position_embeddings"],
}


def export(
    folder: Path,
    *,
    model: NemotronHForCausalLM,
    mtp: MtpHead,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """Write a checkpoint folder aside and rename it, replacing an earlier export."""
    aside = folder.with_name(f".{folder.name}-aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    _write_shards(aside, checkpoint_tensors(model, mtp))
    tokenizer.save_pretrained(aside)
    # transformers 5 writes a class name that older releases do not know.
    _write_json(aside / "tokenizer_config.json", TOKENIZER_CONFIG)
    _write_json(aside / "config.json", CONFIG)
    generation = {name: value for name, value in CONFIG.items() if name.endswith("_token_id")}
    _write_json(aside / "generation_config.json", generation)
    old = folder.with_name(f".{folder.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.replace(old)
    aside.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def checkpoint_tensors(model: NemotronHForCausalLM, mtp: MtpHead) -> dict[str, Tensor]:
    """Tensors of trunk and head by their names on disk, experts apart, in their stored dtype."""
    tensors: dict[str, Tensor] = {}
    running = {f"mtp.{name}": tensor for name, tensor in mtp.state_dict().items()}
    for name, tensor in (model.state_dict() | running).items():
        stored = f"backbone.{name.removeprefix('model.')}" if name.startswith("model.") else name
        dtype = torch.float32 if name.endswith(FLOAT32_NAMES) else torch.bfloat16
        if name.endswith(("experts.up_proj", "experts.down_proj")):
            stem, projection = stored.rsplit(".", 1)
            for expert, weight in enumerate(tensor):
                tensors[f"{stem}.{expert}.{projection}.weight"] = weight.to(dtype)
        else:
            tensors[stored] = tensor.to(dtype)
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > MAX_SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards, start=1):
        file = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
        weight_map |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
