"""R9: importance against switching off one unit at a time in the running module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fretsaw.runtime.blocks import BlockView
from fretsaw.runtime.inspect import LAST_PROJECTION, projected
from fretsaw.runtime.statistics import collect_statistics, rank_units
from tests.views import pico_ids, pico_view

MAMBA, MOE = 0, 1


@torch.no_grad()
def latent_sum(view: BlockView, hidden: Tensor) -> Tensor:
    return projected(view.block(MOE), hidden, name=LAST_PROJECTION["moe"]).inputs


def rank_correlation(one: Tensor, two: Tensor) -> float:
    ranks = torch.stack([one, two]).argsort(dim=-1).argsort(dim=-1)
    return float(torch.corrcoef(ranks.double())[0, 1])


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_channels(seed: int) -> None:
    """Without one channel, each token's sum of experts moves by exactly the term it brings."""
    view, ids = pico_view(seed), pico_ids(seed)
    ranking = rank_units(view, collect_statistics(view, [ids]), min_tokens=1)
    counts = collect_statistics(view, [ids]).sums[MOE]["ffn"].count
    hidden = view.run(view.embed(ids), start=0, stop=MOE)
    full = latent_sum(view, hidden)
    down = view.block(MOE).mixer.experts.down_proj
    moved = torch.zeros(*down.shape[::2], dtype=torch.float64)
    for expert, channel in torch.cartesian_prod(torch.arange(4), torch.arange(32)).tolist():
        column = down[expert, :, channel].clone()
        down[expert, :, channel] = 0
        difference = (latent_sum(view, hidden) - full).norm(dim=-1)
        moved[expert, channel] = difference.sum(dtype=torch.float64) / counts[expert]
        down[expert, :, channel] = column
    importance = ranking.importance[MOE]["ffn"]
    torch.testing.assert_close(importance, moved, rtol=1e-3, atol=1e-6)
    for expert in range(4):
        assert rank_correlation(importance[expert], moved[expert]) == pytest.approx(1.0)


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_state(seed: int) -> None:
    """Without one state channel, what enters the gated norm moves by its contribution."""
    view, ids = pico_view(seed), pico_ids(seed)
    mixer = view.block(MAMBA).mixer
    hidden = view.embed(ids)
    seen: list[tuple[Tensor, Tensor]] = []
    handle = mixer.norm.register_forward_hook(lambda _, inputs, __: seen.append(inputs))
    view.run(hidden, start=0, stop=1)
    full, gate = seen.pop()
    start = mixer.intermediate_size + mixer.n_groups * mixer.ssm_state_size
    moved = torch.zeros(2, 16, dtype=torch.float64)
    for group, channel in torch.cartesian_prod(torch.arange(2), torch.arange(16)).tolist():
        row = start + group * 16 + channel
        kept = mixer.conv1d.weight[row].clone(), mixer.conv1d.bias[row].clone()
        mixer.conv1d.weight[row] = 0
        mixer.conv1d.bias[row] = 0
        view.run(hidden, start=0, stop=1)
        difference = (seen.pop()[0] - full) * torch.nn.functional.silu(gate)
        per_group = difference.reshape(*difference.shape[:-1], 2, -1)
        moved[group, channel] = per_group[:, :, group].abs().mean(dtype=torch.float64)
        mixer.conv1d.weight[row], mixer.conv1d.bias[row] = kept
    handle.remove()
    importance = rank_units(view, collect_statistics(view, [ids]), min_tokens=1).importance
    torch.testing.assert_close(importance[MAMBA]["state"], moved, rtol=1e-3, atol=1e-6)
