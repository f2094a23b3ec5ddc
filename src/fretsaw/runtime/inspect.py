"""What a running mixer computes inside, for packed sequences without padding.

Fused experts and fused scans bypass hooks, so the inner values are computed explicitly from the
module's own weights; tests hold their recombination against the module's output.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.nemotron_h.modeling_nemotron_h import (
    NemotronHBlock,
    NemotronHMamba2Mixer,
    NemotronHMLP,
    NemotronHMoE,
)

from fretsaw.importance.ssm_state import ScanInputs
from fretsaw.runtime.blocks import mixer_input

EXPERTS_DOWN = "mixer.experts.down_proj"
LAST_PROJECTION = {
    "moe": "mixer.fc2_latent_proj",
    "mlp": "mixer.down_proj",
    "mamba": "mixer.out_proj",
}
"""Mixer -> the running block's last linear map (for MoE without latents: an identity)."""


@dataclass(frozen=True)
class ExpertRows:
    """What one expert sees and computes.

    Attributes:
        expert: Which one.
        rows: Tokens routed to it, in ascending order, (tokens_e,) int64.
        weights: Router weight of each, (tokens_e,) float32.
        activations: Input of its down projection, (tokens_e, ffn).
    """

    expert: int
    rows: Tensor
    weights: Tensor
    activations: Tensor


def route(
    mixer: NemotronHMoE, normed: Tensor, *, top_k: int | None = None
) -> tuple[Tensor, Tensor]:
    """The weights that the layer multiplies by, and the experts that it sends each token to.

    Renormalisation over the top-k and the scaling factor are in the weights, because the layer's
    own router is asked.

    Args:
        mixer: Running MoE mixer.
        normed: What it reads, (..., hidden).
        top_k: Another number of experts per token than the layer's own.

    Returns:
        Weights (tokens, top_k) float32 and expert indices (tokens, top_k) int64.
    """
    router = mixer.gate
    if top_k is not None:
        router = copy.copy(router)
        router.top_k = top_k
    _, weights, indices = router(normed)
    return weights, indices


def expert_activations(
    mixer: NemotronHMoE, normed: Tensor, *, top_k: int | None = None
) -> Iterator[ExpertRows]:
    """Each expert with the tokens routed to it and their activations; experts without tokens too.

    Args:
        mixer: Running MoE mixer.
        normed: What it reads, (..., hidden); tokens are numbered as flattened.
        top_k: Another number of experts per token than the layer's own.
    """
    weights, indices = route(mixer, normed, top_k=top_k)
    inputs = mixer.fc1_latent_proj(normed.reshape(-1, normed.shape[-1]))
    experts = mixer.experts
    by_expert = torch.argsort(indices.flatten(), stable=True)
    counts = torch.bincount(indices.flatten(), minlength=experts.num_experts)
    for expert, chosen in enumerate(torch.split(by_expert, counts.tolist())):
        rows = chosen // indices.shape[-1]
        activations = experts.act_fn(functional.linear(inputs[rows], experts.up_proj[expert]))
        yield ExpertRows(expert, rows, weights.flatten()[chosen], activations)


def mlp_activations(mixer: NemotronHMLP, normed: Tensor) -> Tensor:
    """Input of an MLP's down projection, (tokens, ffn), for (..., hidden)."""
    activations: Tensor = mixer.act_fn(mixer.up_proj(normed.reshape(-1, normed.shape[-1])))
    return activations


def scan_inputs(mixer: NemotronHMamba2Mixer, normed: Tensor) -> ScanInputs:
    """What the selective scan reads when the mixer reads (sequences, tokens, hidden)."""
    sequences, tokens, _ = normed.shape
    group_state = mixer.n_groups * mixer.ssm_state_size
    inner = mixer.intermediate_size
    parts = [inner, inner + 2 * group_state, mixer.num_heads]
    gate, mixed, dt = torch.split(mixer.in_proj(normed), parts, dim=-1)
    mixed = mixer.act(mixer.conv1d(mixed.transpose(1, 2))[..., :tokens]).transpose(1, 2)
    x, b, c = torch.split(mixed, [inner, group_state, group_state], dim=-1)
    heads = (sequences, tokens, mixer.num_heads, mixer.head_dim)
    groups = (sequences, tokens, mixer.n_groups, mixer.ssm_state_size)
    dt = functional.softplus(dt + mixer.dt_bias.to(dt.dtype)).clamp(*mixer.time_step_limit)
    return ScanInputs(
        x=x.reshape(heads),
        dt=dt,
        a=-torch.exp(mixer.A_log.float()),
        b=b.reshape(groups),
        c=c.reshape(groups),
        d=mixer.D,
        gate=functional.silu(gate.float()).reshape(heads),
    )


class Projected(NamedTuple):
    """The last linear map of a mixer at work.

    Attributes:
        inputs: What it reads, (tokens, in).
        outputs: What it gives, (tokens, hidden).
    """

    inputs: Tensor
    outputs: Tensor


def projected(block: NemotronHBlock, hidden: Tensor, *, name: str) -> Projected:
    """What the last linear map of a block does when the block reads (sequences, tokens, hidden).

    Args:
        block: Running block with one of the mixers of `LAST_PROJECTION`.
        hidden: Its input.
        name: Value of `LAST_PROJECTION`.
    """
    seen: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend([inputs[0].flatten(0, -2), output.flatten(0, -2)])

    handle = block.get_submodule(name).register_forward_hook(keep)
    try:
        block.mixer(mixer_input(block, hidden))
    finally:
        handle.remove()
    inputs, outputs = seen
    return Projected(inputs, outputs)
