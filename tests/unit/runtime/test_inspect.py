"""Inner values: recombined by hand they give the module's own output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fretsaw.importance.ssm_state import ScanInputs
from fretsaw.runtime.blocks import mixer_input, run_block
from fretsaw.runtime.inspect import (
    LAST_PROJECTION,
    expert_activations,
    mlp_activations,
    projected,
    route,
    scan_inputs,
)
from tests.views import pico_ids, pico_view

SEEDS = (0, 1, 2)
MAMBA, MOE = 0, 1


@torch.no_grad()
@pytest.mark.parametrize("is_normed", [True, False])
def test_router_weights_by_hand(is_normed: bool) -> None:
    """R19: sigmoid scores of the biased choice, renormalised if asked, times the factor."""
    view = pico_view(0, norm_topk_prob=is_normed, routed_scaling_factor=2.5)
    mixer = view.block(MOE).mixer
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0])
    mixer.gate.e_score_correction_bias.copy_(bias)
    normed = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(1))
    weights, indices = route(mixer, normed)
    for token, row, chosen in zip(normed[0], weights, indices, strict=True):
        scores = [float(torch.sigmoid(token @ w)) for w in mixer.gate.weight]
        best = sorted(range(4), key=lambda e: -(scores[e] + float(bias[e])))[:2]
        total = sum(scores[e] for e in best) if is_normed else 1.0
        expected = {e: 2.5 * scores[e] / total for e in best}
        assert 3 in best
        assert dict(zip(chosen.tolist(), row.tolist(), strict=True)) == pytest.approx(expected)


def test_routing_under_another_top_k_leaves_the_layer_alone() -> None:
    mixer = pico_view(0).block(MOE).mixer
    normed = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    weights, indices = route(mixer, normed, top_k=1)
    assert weights.shape == indices.shape == (5, 1)
    torch.testing.assert_close(weights, torch.full((5, 1), 2.0))
    assert mixer.gate.top_k == 2
    assert route(mixer, normed)[0].shape == (5, 2)


@torch.no_grad()
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("latent", [16, None])
def test_experts_recombine_to_the_output(seed: int, latent: int | None) -> None:
    view = pico_view(seed, moe_latent_size=latent)
    block = view.block(MOE)
    normed = mixer_input(block, view.embed(pico_ids(seed)))
    flat = normed.flatten(0, 1)
    combined = torch.zeros(len(flat), latent or 32)
    experts = list(expert_activations(block.mixer, normed))
    for e in experts:
        out = e.activations @ block.mixer.experts.down_proj[e.expert].T
        combined.index_add_(0, e.rows, out * e.weights[:, None])
    output = block.mixer.fc2_latent_proj(combined) + block.mixer.shared_experts(flat)
    torch.testing.assert_close(output, block.mixer(normed).flatten(0, 1), rtol=0, atol=1e-5)
    assert [e.expert for e in experts] == [0, 1, 2, 3]
    assert sum(len(e.rows) for e in experts) == 2 * len(flat)


@torch.no_grad()
def test_mlp_recombines_to_the_output() -> None:
    view = pico_view(0, layers_block_type=["mlp"], num_hidden_layers=1, intermediate_size=24)
    mixer = view.block(0).mixer
    normed = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    output = mlp_activations(mixer, normed) @ mixer.down_proj.weight.T
    torch.testing.assert_close(output, mixer(normed).flatten(0, 1), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("seed", SEEDS)
def test_scan_recombines_to_the_output(seed: int) -> None:
    """R22: the pure path matches a reference scan without any kernel package."""
    view = pico_view(seed)
    block = view.block(MAMBA)
    normed = mixer_input(block, view.embed(pico_ids(seed)))
    mixer = block.mixer
    gated = naive_scan(scan_inputs(mixer, normed)).flatten(2)
    output = mixer.out_proj(group_norm(mixer.norm, gated))
    torch.testing.assert_close(output, mixer(normed), rtol=0, atol=1e-5)


def naive_scan(scan: ScanInputs) -> Tensor:
    heads, groups = scan.x.shape[2], scan.b.shape[2]
    b = scan.b.repeat_interleave(heads // groups, dim=2)
    c = scan.c.repeat_interleave(heads // groups, dim=2)
    h = torch.zeros(*scan.x.shape[:1], *scan.x.shape[2:], scan.b.shape[-1])
    outputs = []
    for t in range(scan.x.shape[1]):
        dt = scan.dt[:, t, :, None, None]
        h = h * torch.exp(dt * scan.a[:, None, None])
        h = h + dt * scan.x[:, t, ..., None] * b[:, t, :, None]
        y = (h * c[:, t, :, None]).sum(-1) + scan.d[:, None] * scan.x[:, t]
        outputs.append(y * scan.gate[:, t])
    return torch.stack(outputs, dim=1)


def group_norm(norm: Any, gated: Tensor) -> Tensor:
    parts = gated.reshape(*gated.shape[:-1], -1, norm.group_size)
    normed = functional.rms_norm(parts, (parts.shape[-1],), eps=norm.variance_epsilon)
    result: Tensor = norm.weight * normed.flatten(-2)
    return result


@torch.no_grad()
@pytest.mark.parametrize(("index", "mixer"), [(MAMBA, "mamba"), (MOE, "moe")])
def test_projected_is_the_last_linear_map(index: int, mixer: str) -> None:
    view = pico_view(0)
    block = view.block(index)
    hidden = view.embed(pico_ids(0))
    inputs, outputs = projected(block, hidden, name=LAST_PROJECTION[mixer])
    weight = block.get_parameter(LAST_PROJECTION[mixer] + ".weight")
    torch.testing.assert_close(inputs @ weight.T, outputs, rtol=0, atol=1e-5)
    rest = (run_block(block, hidden) - hidden).flatten(0, 1) - outputs
    if mixer == "moe":
        rest -= block.mixer.shared_experts(mixer_input(block, hidden).flatten(0, 1))
    torch.testing.assert_close(rest, torch.zeros_like(rest), rtol=0, atol=1e-5)
