"""Nemotron-H with unequal blocks or packed weights: transformers' own modules.

Each block is built from its own config; weights in FP8 or NVFP4 are opened by dequantising them.
"""

import copy
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import GenerationConfig, NemotronHForCausalLM
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock

from .configuration_nemotron_h_puzzle import NemotronHPuzzleConfig

register_checkpoint_conversion_mapping(
    "nemotron_h_puzzle", get_checkpoint_conversion_mapping("nemotron_h"), overwrite=True
)

SCALES = (
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "k_scale",
    "v_scale",
)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BLOCK = 16


class NemotronHPuzzleForCausalLM(NemotronHForCausalLM):
    """Causal language model whose blocks may differ in sizes and settings."""

    config_class = NemotronHPuzzleConfig
    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config):
        super().__init__(config)
        if hasattr(config, "get_nemotron_h_config_for_layer"):
            self.model.layers = torch.nn.ModuleList(
                NemotronHBlock(config.get_nemotron_h_config_for_layer(i), layer_idx=i)
                for i in range(config.num_hidden_layers)
            )
        for layer in self.model.layers:
            if hasattr(layer.mixer, "time_step_limit"):
                # transformers 5.15 to 5.24 clamp the time step in prefill only.
                layer.mixer.time_step_limit = (0.0, float("inf"))
        self.post_init()

    @classmethod
    def from_pretrained(cls, name, *args, config=None, **kwargs):
        """As transformers' own; packed weights become numbers of `dtype`, float32 or the config's.

        Scales of inputs and of the cache are left aside: both stay in `dtype`.
        """
        if config is None or getattr(config, "quantization_config", None) is None:
            return super().from_pretrained(name, *args, config=config, **kwargs)
        folder = Path(name)
        if not folder.is_dir():
            place = ("revision", "token", "cache_dir", "local_files_only")
            folder = Path(snapshot_download(name, **{k: kwargs[k] for k in place if k in kwargs}))
        config = copy.deepcopy(config)
        del config.quantization_config
        dtype = kwargs.pop("torch_dtype", None) or kwargs.get("dtype")
        kwargs["dtype"] = dtype if isinstance(dtype, torch.dtype) else config.dtype
        state = read_weights(folder, dtype=kwargs["dtype"])
        found = super().from_pretrained(None, *args, config=config, state_dict=state, **kwargs)
        model = found[0] if isinstance(found, tuple) else found
        model.config.name_or_path = str(name)
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
        return found


def read_weights(folder, *, dtype):
    """Every tensor of a folder by name, packed matrices in `dtype`, no scales."""
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    place = {key: file for file in files for key in file.keys()}  # noqa: SIM118

    def read(key):
        return place[key].get_tensor(key) if key in place else None

    state = {}
    for key in place:
        module, _, part = key.rpartition(".")
        if part in SCALES:
            continue
        codes, scale = read(key), None
        if part in ("weight", "weight_packed"):
            scale = read(f"{module}.weight_scale")
        if scale is None:
            state[key] = codes
            continue
        whole = read(f"{module}.weight_scale_2")
        if part == "weight_packed":  # compressed-tensors stores one over it
            whole = 1.0 / read(f"{module}.weight_global_scale").float()
        state[f"{module}.weight"] = decode(codes, scale=scale, whole=whole).to(dtype)
    return state


def decode(codes, *, scale, whole):
    """FP8: codes * scale. NVFP4: two numbers a byte, * scale of 16 in a row, * scale of all."""
    if codes.dtype != torch.uint8:
        return codes.float() * scale.float()
    digits = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).long()
    grid = torch.tensor((*E2M1, *(-x for x in E2M1)))[digits].unflatten(-1, (-1, BLOCK))
    return (grid * (scale.float() * whole.float()).unsqueeze(-1)).flatten(-2)
