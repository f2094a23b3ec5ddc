"""Nemotron-H with unequal blocks: transformers' own modules, each built from its block's config."""

import torch
from transformers import NemotronHForCausalLM
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock

from .configuration_nemotron_h_puzzle import NemotronHPuzzleConfig

register_checkpoint_conversion_mapping(
    "nemotron_h_puzzle", get_checkpoint_conversion_mapping("nemotron_h"), overwrite=True
)


class NemotronHPuzzleForCausalLM(NemotronHForCausalLM):
    """Causal language model whose blocks differ in expert width and top-k."""

    config_class = NemotronHPuzzleConfig
    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model.layers = torch.nn.ModuleList(
            NemotronHBlock(config.get_nemotron_h_config_for_layer(i), layer_idx=i)
            for i in range(config.num_hidden_layers)
        )
        for layer in self.model.layers:
            if hasattr(layer.mixer, "time_step_limit"):
                # transformers 5.15 to 5.24 clamp the time step in prefill only.
                layer.mixer.time_step_limit = (0.0, float("inf"))
        self.post_init()
