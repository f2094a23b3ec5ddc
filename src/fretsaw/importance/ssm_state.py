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


CHUNK = 8
"""Tokens whose states are held and summed together."""

TILE = 2**18
"""Numbers held at a time, of as many heads as fit: a megabyte, which stays in a core's cache.

Measured in `benchmarks/calibrate.py`.
"""


def state_sums(scan: ScanInputs) -> UnitSums:
    """Summed size of what each state channel adds to the gated output, per group.

        h[t, p, n] = exp(dt[t] a) h[t-1, p, n] + dt[t] b[t, n] x[t, p]
        sums[g, n] = sum |c[t, n] h[t, p, n] gate[t, p]|  over t, p and the heads of group g

    The sum over state channels is what the scan itself would take; here it is left out, because
    everything up to the gated norm is additive in n. The absolute value needs every h[t, p, n], so
    only the recurrence itself goes token by token; what is written into the states and what is
    read from them goes by chunks. Holds `TILE` numbers of states.

    Returns:
        Sums (group, state) and the number of (token, head, dim) behind them, (group,).

    Source: arXiv:2607.04371, appendix A.1.
    """
    groups, states = scan.b.shape[-2:]
    heads, dim = scan.x.shape[-2:]
    repeats = heads // groups
    step = scan.dt.float()
    decay = _by_unit(torch.exp(step * scan.a.float())[..., None])
    x = _by_unit(scan.x.float() * step[..., None])
    gate = _by_unit(scan.gate.float().abs())
    b = _by_unit(scan.b.float().repeat_interleave(repeats, 2))
    c = _by_unit(scan.c.float().abs().repeat_interleave(repeats, 2))
    num_units = max(1, TILE // (CHUNK * dim * states))
    tiles = zip(*(part.split(num_units, dim=1) for part in (x, decay, gate, b, c)), strict=True)
    sums = [_tile_sums(x, decay=d, gate=g, b=b, c=c) for x, d, g, b, c in tiles]
    per_unit = torch.cat(sums)
    total = per_unit.view(-1, groups, repeats, states).sum((0, 2))
    count = torch.full((groups,), scan.x.numel() // groups, dtype=torch.int64)
    return UnitSums(total.cpu(), count)


def _by_unit(part: Tensor) -> Tensor:
    """(sequences, tokens, heads, n) as (tokens, sequences * heads, n)."""
    return part.transpose(0, 1).flatten(1, 2)


def _tile_sums(x: Tensor, *, decay: Tensor, gate: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Sums over tokens and head channels, (units, state) float64; a unit is a head of a sequence.

    Args:
        x: Times the step size, (tokens, units, mamba_dim).
        decay: (tokens, units, 1).
        gate: Its size, (tokens, units, mamba_dim).
        b: (tokens, units, state).
        c: Its size, (tokens, units, state).
    """
    tokens, units, dim = x.shape
    states = x.new_empty(min(CHUNK, tokens), units, dim, b.shape[-1])
    carried = torch.zeros_like(states[0])
    total = torch.zeros(units, b.shape[-1], dtype=torch.float64, device=x.device)
    for start in range(0, tokens, CHUNK):
        at = slice(start, start + CHUNK)
        h = states[: len(x[at])]
        torch.mul(x[at, :, :, None], b[at, :, None, :], out=h)
        for now, rate in zip(h, decay[at, :, :, None], strict=True):
            carried = now.addcmul_(rate, carried)
        carried = carried.clone()
        weighed = (gate[at, :, None, :] @ h.abs_()).squeeze(2)
        total += (weighed * c[at]).sum(0, dtype=torch.float64)
    return total
