"""Config of a Nemotron-H model whose blocks differ: written beside the weights by fretsaw."""

import copy

from transformers import NemotronHConfig

PER_BLOCK = {
    "n_routed_experts": max,
    "num_experts_per_tok": max,
    "moe_intermediate_size": max,
    "moe_shared_expert_intermediate_size": max,
    "moe_latent_size": max,
    "intermediate_size": max,
}


class NemotronHPuzzleConfig(NemotronHConfig):
    """NemotronHConfig plus `block_configs`: one dict per block, and one per prediction-head block.

    A global attribute holds the largest value of all blocks; `get_nemotron_h_config_for_layer`
    gives the config that one block is built from.
    """

    model_type = "nemotron_h_puzzle"
    block_configs: list | None = None
    mtp_block_configs: list | None = None

    def __post_init__(self, **kwargs):
        blocks = [b for b in self.block_configs or [] if isinstance(b, dict)]
        for key, choose in PER_BLOCK.items():
            values = [b[key] for b in blocks if b.get(key) is not None]
            if values:
                setattr(self, key, choose(values))
        if self.layers_block_type is None and blocks:
            self.layers_block_type = [b["block_type"] for b in blocks]
        super().__post_init__(**kwargs)

    def get_nemotron_h_config_for_layer(self, layer_idx):
        """The config of one block; indices from num_hidden_layers on are the prediction head's."""
        blocks = [*(self.block_configs or []), *(self.mtp_block_configs or [])]
        config = copy.copy(self)
        for key, value in blocks[layer_idx].items():
            if key != "block_type" and value is not None:
                setattr(config, key, value)
        return config
