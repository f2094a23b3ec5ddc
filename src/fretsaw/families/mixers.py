"""Tensor tables of the mixers: weight name inside the block -> named axes in storage order."""

from __future__ import annotations

from fretsaw.core.axes import TensorAxes, table
from fretsaw.core.shape import Block

NORM = table({"norm.weight": "hidden"})

ATTENTION = table(
    {
        "mixer.q_proj.weight": "kv_head*q_per_kv*head_dim, hidden",
        "mixer.k_proj.weight": "kv_head*head_dim, hidden",
        "mixer.v_proj.weight": "kv_head*head_dim, hidden",
        "mixer.o_proj.weight": "hidden, kv_head*q_per_kv*head_dim",
    }
)

KV_SCALES = {
    "mixer.k_proj.weight": "mixer.k_proj.k_scale",
    "mixer.v_proj.weight": "mixer.v_proj.v_scale",
}
"""Weight whose output is cached -> the scale of that cache, where it is quantised."""

MAMBA = table(
    {
        "mixer.in_proj.weight": (
            "mamba_head*mamba_dim + mamba_head*mamba_dim + group*state + group*state + mamba_head,"
            " hidden"
        ),
        "mixer.conv1d.weight": "mamba_head*mamba_dim + group*state + group*state, 1, kernel",
        "mixer.conv1d.bias": "mamba_head*mamba_dim + group*state + group*state",
        "mixer.A_log": "mamba_head",
        "mixer.D": "mamba_head",
        "mixer.dt_bias": "mamba_head",
        "mixer.norm.weight": "mamba_head*mamba_dim",
        "mixer.out_proj.weight": "hidden, mamba_head*mamba_dim",
    }
)

MLP = table(
    {"mixer.up_proj.weight": "ffn, hidden", "mixer.down_proj.weight": "hidden, ffn"},
)

ROUTER = table(
    {"mixer.gate.weight": "expert, hidden", "mixer.gate.e_score_correction_bias": "expert"},
    float32=("mixer.gate.e_score_correction_bias",),
)

SHARED_EXPERT = table(
    {
        "mixer.shared_experts.up_proj.weight": "shared_ffn, hidden",
        "mixer.shared_experts.down_proj.weight": "hidden, shared_ffn",
    }
)

EXPERTS = table(
    {
        "mixer.experts.{expert}.up_proj.weight": "ffn, hidden",
        "mixer.experts.{expert}.down_proj.weight": "hidden, ffn",
    }
)

LATENT_EXPERTS = table(
    {
        "mixer.fc1_latent_proj.weight": "latent, hidden",
        "mixer.fc2_latent_proj.weight": "hidden, latent",
        "mixer.experts.{expert}.up_proj.weight": "ffn, latent",
        "mixer.experts.{expert}.down_proj.weight": "latent, ffn",
    }
)


def block_table(block: Block, *, has_conv_bias: bool = True) -> tuple[TensorAxes, ...]:
    """Every tensor of one residual block, its norm included; nothing for a block that is gone."""
    match block.mixer:
        case "attention":
            return NORM + ATTENTION
        case "mamba":
            rows = tuple(r for r in MAMBA if has_conv_bias or r.name != "mixer.conv1d.bias")
            return NORM + rows
        case "mlp":
            return NORM + MLP
        case "moe":
            experts = LATENT_EXPERTS if "latent" in block.sizes else EXPERTS
            return NORM + ROUTER + SHARED_EXPERT + experts
        case _:
            return ()
