"""A lean chunked scan for Mamba-2 blocks in plain torch, and its use on a running model.

transformers' reference `mamba2_chunk_scan` repeats B and C to every head and lets einsum build
tensors with the heads innermost; its depthwise convolution is slow to differentiate on a CPU.
Here the scores of C and B are made once a group, every product is one batched matmul over
(batch, chunk, group), and the convolution is a few shifted multiply-adds.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer


def chunk_scan(
    x: Tensor,
    dt: Tensor,
    *,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and final state of the selective state space recurrence, chunk by chunk.

        step[t]  = clamp(softplus(dt[t] + dt_bias), dt_limit)
        state[t] = exp(step[t] * A) * state[t-1] + step[t] * x[t] B[t]^T
        y[t]     = state[t] C[t] + D * x[t]

    Args:
        x: Input of the recurrence, (batch, time, mamba_head, mamba_dim).
        dt: Time step before bias and softplus, (batch, time, mamba_head).
        A: Decay rate, negative, (mamba_head,).
        B: What a position writes, (batch, time, group, state).
        C: What a position reads, (batch, time, group, state).
        chunk_size: Positions computed as one matmul; any size gives the same result.
        D: Skip weight, (mamba_head,).
        dt_bias: (mamba_head,).
        dt_limit: Smallest and largest time step.
        initial_state: (batch, mamba_head, mamba_dim, state); zero if None.

    Returns:
        y, (batch, time, mamba_head, mamba_dim), and the state after the last position,
        (batch, mamba_head, mamba_dim, state); both float32.

    Source: Mamba-2, arXiv:2405.21060, section 6 and listing 1. Own: the layout.
    """
    batch, time, num_heads, head_dim = x.shape
    chunks = {"chunk_size": chunk_size, "num_groups": B.shape[2]}
    x = x.float()
    step = functional.softplus(dt.float() if dt_bias is None else dt.float() + dt_bias.float())
    if dt_limit != (0.0, float("inf")):
        step = step.clamp(*dt_limit)
    inputs = _into_chunks(x * step[..., None], **chunks)
    log_decay = _into_chunks((step * A.float())[..., None], **chunks).squeeze(-1)
    keys = _into_chunks(B.float(), **chunks).squeeze(3)
    queries = _into_chunks(C.float(), **chunks).squeeze(3)
    since_start = log_decay.cumsum(-1)

    scores = (queries @ keys.mT).unsqueeze(3)
    within = (scores * _decay_between(since_start)) @ inputs
    to_end = (since_start[..., -1:] - since_start).exp()
    added = (inputs * to_end[..., None]).mT.flatten(3, 4) @ keys
    before, final = _carry(
        added.unflatten(3, (-1, head_dim)), since_start[..., -1], initial=initial_state
    )
    across = (queries @ before.flatten(3, 4).mT).unflatten(4, (-1, head_dim)).transpose(3, 4)

    y = torch.addcmul(within, across, since_start.exp()[..., None])
    y = y.permute(0, 1, 4, 2, 3, 5).reshape(batch, -1, num_heads, head_dim)[:, :time]
    return (y if D is None else torch.addcmul(y, x, D.float()[:, None])), final


def _into_chunks(tensor: Tensor, *, chunk_size: int, num_groups: int) -> Tensor:
    """(batch, time, group * r, n) as (batch, chunk, group, r, position, n), padded with zeros."""
    padding = -tensor.shape[1] % chunk_size
    if padding:
        tensor = functional.pad(tensor, (0, 0, 0, 0, 0, padding))
    batch, _, num_units, size = tensor.shape
    chunks = tensor.reshape(batch, -1, chunk_size, num_groups, num_units // num_groups, size)
    return chunks.permute(0, 1, 3, 4, 2, 5)


def _decay_between(since_start: Tensor) -> Tensor:
    """exp(sum of log decay after s up to l) for s <= l, else 0: (..., l) gives (..., l, s)."""
    length = since_start.shape[-1]
    between = since_start[..., :, None] - since_start[..., None, :]
    future = torch.ones(length, length, dtype=torch.bool, device=between.device).triu(1)
    return between.masked_fill(future, float("-inf")).exp()


def _carry(added: Tensor, log_decay: Tensor, *, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    """State before each chunk and after the last, from what each chunk adds to it.

    Args:
        added: (batch, chunk, group, r, mamba_dim, state).
        log_decay: Of a whole chunk, (batch, chunk, group, r).
        initial: (batch, group * r, mamba_dim, state) or None.
    """
    decay = log_decay.exp()[..., None, None]
    first = added[:, 0]
    state = torch.zeros_like(first) if initial is None else initial.reshape(first.shape)
    before = []
    for chunk in range(added.shape[1]):
        before.append(state)
        state = torch.addcmul(added[:, chunk], decay[:, chunk], state)
    return torch.stack(before, dim=1), state.flatten(1, 2)


def causal_conv(x: Tensor, weight: Tensor, *, bias: Tensor | None) -> Tensor:
    """Depthwise causal convolution over time as shifted multiply-adds.

        y[t, c] = bias[c] + sum_k weight[c, k] * x[t - (kernel - 1) + k, c]

    Args:
        x: (batch, time, channel).
        weight: (channel, kernel).
        bias: (channel,) or None.

    Returns:
        (batch, time, channel).

    Source: Own.
    """
    time, kernel = x.shape[1], weight.shape[1]
    padded = functional.pad(x, (0, 0, kernel - 1, 0))
    y = padded[:, :time] * weight[:, 0]
    for k in range(1, kernel):
        y = torch.addcmul(y, padded[:, k : k + time], weight[:, k])
    return y if bias is None else y + bias


CACHE_NAMES = ("cache", "cache_params")
"""What transformers calls the mixer's cache: from 5.24 on, and before."""


class FastMamba2Mixer(NemotronHMamba2Mixer):
    """transformers' Mamba-2 mixer with `chunk_scan` wherever no cache takes part."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: object,
    ) -> Tensor:
        """Output of the mixer, (batch, time, hidden); as the parent class."""
        has_cache = any(kwargs.get(name) is not None for name in CACHE_NAMES)
        if has_cache or attention_mask is not None or self.activation != "silu":
            slow: Tensor = super().forward(hidden_states, attention_mask=attention_mask, **kwargs)
            return slow
        inner, states = self.intermediate_size, self.n_groups * self.ssm_state_size
        gate, mixed, dt = self.in_proj(hidden_states).split(
            [inner, self.conv_dim, self.num_heads], dim=-1
        )
        mixed = functional.silu(
            causal_conv(mixed, self.conv1d.weight.squeeze(1), bias=self.conv1d.bias)
        )
        x, B, C = mixed.split([inner, states, states], dim=-1)
        y, _ = chunk_scan(
            x.unflatten(-1, (self.num_heads, self.head_dim)),
            dt,
            A=-torch.exp(self.A_log.float()),
            B=B.unflatten(-1, (self.n_groups, -1)),
            C=C.unflatten(-1, (self.n_groups, -1)),
            chunk_size=min(self.chunk_size, 64),
            D=self.D,
            dt_bias=self.dt_bias,
            dt_limit=self.time_step_limit,
        )
        output: Tensor = self.out_proj(self.norm(y.flatten(2), gate).to(hidden_states.dtype))
        return output


def use_fast_scan(model: nn.Module) -> int:
    """Let every Mamba-2 mixer of a model use `chunk_scan`; returns how many there are.

    Only the instances change, no global of transformers. With a cache or a padding mask the
    mixers compute as before.
    """
    mixers = [module for module in model.modules() if type(module) is NemotronHMamba2Mixer]
    for mixer in mixers:
        mixer.__class__ = FastMamba2Mixer
    return len(mixers)
