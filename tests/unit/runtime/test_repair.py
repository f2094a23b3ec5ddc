"""Repairing variants: what is replaced, how near it comes, and when it is left alone."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from fretsaw.core.shape import Block
from fretsaw.runtime.blocks import BlockView, run_block
from fretsaw.runtime.repair import Repairer, RepairKind, RepairSettings
from tests.views import pico_ids, pico_view

MAMBA, MOE = 0, 1
CUTS: list[tuple[int, dict[str, int]]] = [
    (MAMBA, {"state": 8}),
    (MOE, {"ffn": 16}),
    (MOE, {"top_k": 1}),
    (MOE, {"ffn": 16, "top_k": 1}),
]


def make(seed: int, index: int) -> tuple[BlockView, Tensor]:
    view = pico_view(seed)
    with torch.no_grad():
        fit = view.run(view.embed(pico_ids(seed, sequences=12)), start=0, stop=index)
    return view, fit


def repairer(view: BlockView, index: int, *, fit: Tensor, **settings: object) -> Repairer:
    chosen = RepairSettings(**({"min_tokens": 4, "batch_sequences": 5} | settings))  # type: ignore[arg-type]
    return Repairer(view, index, fit_hidden=fit, settings=chosen)


@torch.no_grad()
def error(view: BlockView, index: int, *, block: Block, fit: Tensor, **settings: object) -> float:
    replaced = repairer(view, index, fit=fit, **settings).replaced(block)
    variant = view.variant(index, block=block, replaced=replaced)
    full = run_block(view.block(index), fit)
    return float((run_block(variant, fit) - full).norm() / (full - fit).norm())


@pytest.mark.parametrize(("index", "cut"), CUTS)
@pytest.mark.parametrize("kind", ["output", "gain", "both", "joint"])
def test_comes_nearer_to_the_full_block(index: int, cut: dict[str, int], kind: str) -> None:
    for seed in (0, 1, 2):
        view, fit = make(seed, index)
        block = view.shape.blocks[index].with_values(cut)
        plain = error(view, index, block=block, fit=fit, kind="none")
        assert error(view, index, block=block, fit=fit, kind=kind) <= plain * (1 + 1e-5)


def test_experts_come_nearer_at_full_top_k() -> None:
    view, fit = make(0, MOE)
    block = view.shape.blocks[MOE].with_values({"ffn": 16})
    plain = error(view, MOE, block=block, fit=fit, kind="none")
    assert error(view, MOE, block=block, fit=fit, kind="experts") < 0.9 * plain


@pytest.mark.parametrize("kind", get_args(RepairKind))
def test_the_full_block_and_none_are_left_alone(kind: RepairKind) -> None:
    view, fit = make(0, MOE)
    assert repairer(view, MOE, fit=fit, kind=kind).replaced(view.shape.blocks[MOE]) == {}
    assert repairer(view, MOE, fit=fit, kind=kind).replaced(Block("none")) == {}


def test_experts_with_few_tokens_keep_the_slice() -> None:
    view, fit = make(0, MOE)
    block = view.shape.blocks[MOE].with_values({"ffn": 16})
    replaced = repairer(view, MOE, fit=fit, kind="experts", min_tokens=10**6).replaced(block)
    sliced = view.block(MOE).mixer.experts.down_proj[..., :16]
    assert torch.equal(replaced["mixer.experts.down_proj"], sliced)


def test_moments_serve_all_widths_and_answers_repeat() -> None:
    view, fit = make(0, MOE)
    full = view.shape.blocks[MOE]
    shared = repairer(view, MOE, fit=fit, kind="both")
    for values in ({"ffn": 16}, {"ffn": 24, "top_k": 1}, {"ffn": 24}, {"ffn": 16}):
        block = full.with_values(values)
        fresh = repairer(view, MOE, fit=fit, kind="both").replaced(block)
        for name, tensor in shared.replaced(block).items():
            assert torch.equal(tensor, fresh[name])


def test_experts_without_latents_take_the_output_repair() -> None:
    view = pico_view(0, moe_latent_size=None)
    with torch.no_grad():
        fit = view.run(view.embed(pico_ids(0, sequences=12)), start=0, stop=MOE)
    block = view.shape.blocks[MOE].with_values({"ffn": 16, "top_k": 1})
    plain = error(view, MOE, block=block, fit=fit, kind="none")
    assert error(view, MOE, block=block, fit=fit, kind="both") < plain


def test_mlp_takes_the_output_repair() -> None:
    view = pico_view(0, layers_block_type=["mlp"], num_hidden_layers=1, intermediate_size=24)
    fit = view.embed(pico_ids(0, sequences=12)).detach()
    block = view.shape.blocks[0].with_values({"ffn": 12})
    plain = error(view, 0, block=block, fit=fit, kind="none")
    assert error(view, 0, block=block, fit=fit, kind="both") < 0.9 * plain
