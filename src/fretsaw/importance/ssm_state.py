"""Importance of the state channels of a Mamba-2 mixer, inside each group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fretsaw.importance.accumulate import UnitSums


@dataclass(frozen=True)
class ScanInputs:
    """What the selective scan of a Mamba-2 mixer reads, for packed sequences.

    Attributes:
        x: (sequences, tokens, mamba_head, mamba_dim).
        dt: Step sizes after bias and softplus, (sequences, tokens, mamba_head).
        a: Negative decay rates, (mamba_head,).
        b: Input matrix, (sequences, tokens, group, state).
        c: Output matrix, (sequences, tokens, group, state).
        d: Skip weights, (mamba_head,).
        gate: After its activation, (sequences, tokens, mamba_head, mamba_dim).
    """

    x: Tensor
    dt: Tensor
    a: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    gate: Tensor


def state_sums(scan: ScanInputs) -> UnitSums:
    """Summed size of what each state channel adds to the gated output, per group.

        h[t, p, n] = exp(dt[t] a) h[t-1, p, n] + dt[t] b[t, n] x[t, p]
        sums[g, n] = sum |c[t, n] h[t, p, n] gate[t, p]|  over t, p and the heads of group g

    The sum over state channels is what the scan itself would take; here it is left out, because
    everything up to the gated norm is additive in n. Holds the state of one time step only,
    (sequences, mamba_head, mamba_dim, state).

    Returns:
        Sums (group, state) and the number of (token, head, dim) behind them, (group,).

    Source: arXiv:2607.04371, appendix A.1.
    """
    sequences, tokens, heads, dim = scan.x.shape
    groups, states = scan.b.shape[-2:]
    decay = torch.exp(scan.dt.float() * scan.a.float())
    x = scan.x.float() * scan.dt.float().unsqueeze(-1)
    gate, b, c = scan.gate.float().abs(), scan.b.float(), scan.c.float().abs()
    per_group = (sequences, groups, heads // groups)
    total = torch.zeros(groups, states, dtype=torch.float64, device=x.device)
    h = x.new_zeros(*per_group, dim, states)
    for t in range(tokens):
        h.mul_(decay[:, t].reshape(*per_group, 1, 1))
        h.add_(x[:, t].reshape(*per_group, dim, 1) * b[:, t, :, None, None])
        weighed = torch.einsum("sghpn,sghp->sgn", h.abs(), gate[:, t].reshape(*per_group, dim))
        total += (weighed * c[:, t]).sum(0, dtype=torch.float64)
    count = torch.full((groups,), x.numel() // groups, dtype=torch.int64)
    return UnitSums(total.cpu(), count)
