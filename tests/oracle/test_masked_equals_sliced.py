"""R11: a parent whose units are masked equals the parent without them, per dimension."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fretsaw.runtime.blocks import BlockView, order_model
from tests.views import logits_of, pico_ids, pico_view, random_orders

SEEDS = (0, 1, 2)
Mask = Callable[[BlockView, int, Tensor, int], None]
"""(view, block, order of the dimension, units kept) -> the block masked in place."""


@torch.no_grad()
def mask_expert_ffn(view: BlockView, index: int, order: Tensor, keep: int) -> None:
    down = view.block(index).mixer.experts.down_proj
    for expert, units in enumerate(order):
        down[expert][:, units[keep:]] = 0


@torch.no_grad()
def mask_mlp_ffn(view: BlockView, index: int, order: Tensor, keep: int) -> None:
    view.block(index).mixer.down_proj.weight[:, order[keep:]] = 0


@torch.no_grad()
def mask_state(view: BlockView, index: int, order: Tensor, keep: int) -> None:
    """A state channel that is never read: its C rows of the convolution give silu(0) = 0."""
    mixer = view.block(index).mixer
    start = mixer.intermediate_size + mixer.n_groups * mixer.ssm_state_size
    for group, units in enumerate(order):
        rows = start + group * mixer.ssm_state_size + units[keep:]
        mixer.conv1d.weight[rows] = 0
        mixer.conv1d.bias[rows] = 0


@torch.no_grad()
def mask_experts(view: BlockView, index: int, order: Tensor, keep: int) -> None:
    view.block(index).mixer.gate.e_score_correction_bias[order[keep:]] = float("-inf")


@torch.no_grad()
def mask_top_k(view: BlockView, index: int, order: Tensor, keep: int) -> None:
    view.block(index).mixer.gate.top_k = keep


CASES: list[tuple[str, str, int, Mask]] = [
    ("moe", "ffn", 12, mask_expert_ffn),
    ("mlp", "ffn", 12, mask_mlp_ffn),
    ("mamba", "state", 8, mask_state),
    ("moe", "expert", 3, mask_experts),
    ("moe", "top_k", 1, mask_top_k),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("mixer", "dim", "keep", "mask"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_masked_equals_sliced(mixer: str, dim: str, keep: int, mask: Mask, seed: int) -> None:
    words = ["mamba", "moe", "attention", "mlp", "moe", "mamba"]
    overrides = {"layers_block_type": words, "num_hidden_layers": 6, "intermediate_size": 24}
    masked, sliced = pico_view(seed, **overrides), pico_view(seed, **overrides)
    ids = pico_ids(seed)
    before = logits_of(masked, ids)

    orders = random_orders(sliced, seed)
    for index in sliced.shape.indices("moe"):
        orders[index]["expert"] = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    for index in masked.shape.indices(mixer):  # type: ignore[arg-type]
        mask(masked, index, orders[index].get(dim, torch.empty(0)), keep)
    ordered = {i: {dim: o[dim]} for i, o in orders.items() if dim in o}
    order_model(sliced, ordered)
    for index in sliced.shape.indices(mixer):  # type: ignore[arg-type]
        block = sliced.shape.blocks[index].with_values({dim: keep})
        sliced.swap(index, sliced.variant(index, block=block), block=block)

    expected = logits_of(masked, ids)
    assert (expected - before).abs().max() > 1e-2, f"masking {dim} changed nothing"
    difference = float((logits_of(sliced, ids) - expected).abs().max())
    assert difference <= 1e-5, f"{mixer} {dim}: masked and sliced differ by {difference:.2e}"
