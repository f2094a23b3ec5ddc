"""The demo parent as a model: its sizes, its tokenizer, its initial weights, its MTP head."""

import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import NemotronHConfig, NemotronHForCausalLM, PreTrainedTokenizerFast
from transformers.models.nemotron_h.modeling_nemotron_h import (
    NemotronHBlock,
    NemotronHExperts,
    NemotronHMamba2Mixer,
    NemotronHMoE,
    NemotronHRMSNorm,
)

from fretsaw.runtime.scan import use_fast_scan

BLOCKS = {"M": "mamba", "E": "moe", "*": "attention"}
PATTERN = "MEMEM*EMEMEMEMEM*EMEME"
CONTEXT = 512
RESIDUAL_WRITERS = (
    "out_proj.weight",
    "o_proj.weight",
    "fc2_latent_proj.weight",
    "shared_experts.down_proj.weight",
)
PAD, BOS, EOS = "<pad>", "<s>", "</s>"

# The config as it is written: the older words for the blocks, which every engine reads.
CONFIG = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 4096,
    "hidden_size": 128,
    "num_hidden_layers": len(PATTERN),
    "layers_block_type": [BLOCKS[letter] for letter in PATTERN],
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 32,
    "conv_kernel": 4,
    "chunk_size": 64,
    "expand": 1,
    "n_routed_experts": 48,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 96,
    "moe_latent_size": 64,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 16,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "mlp_hidden_act": "relu2",
    "intermediate_size": 96,
    "num_nextn_predict_layers": 1,
    "mtp_layers_block_type": ["attention", "moe"],
    "max_position_embeddings": 4096,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of the vocabulary size in `CONFIG`, trained on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=CONFIG["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )


def make_config(blocks: list[str] | None = None) -> NemotronHConfig:
    """The parent's config, or with other blocks, with the experts computed by `grouped_mm`."""
    values = CONFIG if blocks is None else CONFIG | {"layers_block_type": blocks}
    config = NemotronHConfig(**{key: values[key] for key in values if key != "num_hidden_layers"})
    config._experts_implementation = "grouped_mm"
    config._attn_implementation = "sdpa"
    return config


class MtpHead(nn.Module):
    """Predicts the token after next: an attention and a MoE block over trunk and embedding.

    The attributes make the names of the checkpoint: `mtp.layers.{0,1}.*`.
    """

    def __init__(self) -> None:
        super().__init__()
        config = make_config(CONFIG["mtp_layers_block_type"])
        hidden, eps = config.hidden_size, config.layer_norm_epsilon
        self.layers = nn.ModuleList(NemotronHBlock(config, layer_idx=index) for index in range(2))
        first, last = self.layers
        first.enorm = NemotronHRMSNorm(hidden, eps=eps)
        first.hnorm = NemotronHRMSNorm(hidden, eps=eps)
        first.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        last.final_layernorm = NemotronHRMSNorm(hidden, eps=eps)

    def forward(self, hidden: Tensor, next_embedding: Tensor) -> Tensor:
        """Input of lm_head for the token after next.

        Args:
            hidden: The trunk's output after its last norm, (batch, time, hidden).
            next_embedding: Embedding of the token that follows each position, same shape.
        """
        first, last = self.layers
        joined = torch.cat([first.enorm(next_embedding), first.hnorm(hidden)], dim=-1)
        return last.final_layernorm(last(first(first.eh_proj(joined))))


def prepare(model: nn.Module) -> None:
    """Use the fast scan, and undo transformers' clamp of the time step."""
    use_fast_scan(model)
    for module in model.modules():
        if isinstance(module, NemotronHMamba2Mixer):
            module.time_step_limit = (0.0, float("inf"))


def build_parent(seed: int) -> tuple[NemotronHForCausalLM, MtpHead]:
    """A fresh trunk and MTP head."""
    torch.manual_seed(seed)
    model = NemotronHForCausalLM(make_config())
    mtp = MtpHead()
    prepare(model)
    with torch.no_grad():
        for module in (*model.modules(), *mtp.modules()):
            _initialize(module)
        nn.init.normal_(model.model.embeddings.weight, std=0.3)
        nn.init.normal_(model.lm_head.weight, std=0.02)
    return model, mtp


def _initialize(module: nn.Module) -> None:
    """Fan-in initialisation; what writes into the residual stream starts smaller by sqrt(depth).

    With the library's std of 0.02 the squared ReLU of the experts gave outputs so small that they
    learned to contribute nothing.
    """
    shrink = 1 / math.sqrt(len(PATTERN))
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
    elif isinstance(module, NemotronHExperts):
        for weight in (module.up_proj, module.down_proj):
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    if isinstance(module, NemotronHMoE):
        hidden, num_experts = module.gate.weight.shape[1], module.gate.weight.shape[0]
        nn.init.normal_(module.gate.weight, std=hidden**-0.5)
        module.gate.e_score_correction_bias.copy_(torch.zeros(num_experts))
    if isinstance(module, NemotronHBlock):
        for name, parameter in module.named_parameters():
            if name.endswith(RESIDUAL_WRITERS):
                nn.init.normal_(parameter, std=shrink * parameter.shape[-1] ** -0.5)
    if isinstance(module, NemotronHMamba2Mixer):
        step = torch.empty_like(module.dt_bias).uniform_(math.log(1e-3), math.log(0.1)).exp()
        module.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
        module.A_log.copy_(torch.arange(1, module.num_heads + 1).float().log())


def load_texts(folder: Path, split: str) -> list[dict[str, str]]:
    """Documents of one split of a corpus written by corpus.py."""
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
