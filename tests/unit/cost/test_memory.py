"""Costs from the tensor tables against published numbers, and reports R24 and R25."""

from __future__ import annotations

import pytest

from fretsaw.core.shape import Block
from fretsaw.core.variant import Choice, Variant
from fretsaw.cost.memory import (
    COSTS,
    add_costs,
    costs_by_block,
    fixed_costs,
    model_costs,
    mtp_bytes,
)
from fretsaw.families import family_named
from tests.shapes import hybrid_shape, published_shape

SUPER, PUZZLE = "super_120b_a12b", "puzzle_75b_a9b_inferred_config"
MIB = 2**20


@pytest.mark.parametrize(
    ("name", "params", "active"),
    [
        (SUPER, 120_668_707_840, 12_770_237_440),
        (PUZZLE, 75_353_345_024, 9_337_097_216),
    ],
)
def test_parameters_equal_the_published_ones(name: str, params: int, active: int) -> None:
    costs = model_costs(published_shape(name))
    assert costs["params"] == params
    assert costs["active_params"] == active
    assert costs["trunk_params"] == params - 2 * 131_072 * 4096


def test_super_with_its_prediction_head_has_the_published_bytes() -> None:
    shape = published_shape(SUPER)
    rows = family_named(shape.family).rows(shape)
    mtp_params = sum(row.tensor.numel(row.sizes) for row in rows if row.part == "mtp")
    assert model_costs(shape)["params"] + mtp_params == 123_611_033_088
    assert model_costs(shape)["bytes_bf16"] + mtp_bytes(shape) == 247_222_108_160


def test_puzzle_files_have_the_published_sizes() -> None:
    shape = published_shape(PUZZLE)
    costs, mtp = model_costs(shape), mtp_bytes(shape)
    assert round((costs["bytes_bf16"] + mtp) / 1e9, 2) == 156.59
    assert round((costs["bytes_fp8"] + mtp) / 1e9, 2) == 83.02
    assert round((costs["bytes_nvfp4"] + mtp) / 1e9, 2) == 53.48
    assert round(costs["bytes_nvfp4"] / 1e9, 2) == 47.60


def test_super_in_nvfp4_without_the_prediction_head() -> None:
    assert round(model_costs(published_shape(SUPER))["bytes_nvfp4"] / 1e9, 2) == 73.12


def test_puzzle_keeps_the_published_shares_of_super() -> None:
    parent, child = model_costs(published_shape(SUPER)), model_costs(published_shape(PUZZLE))
    share = {name: child[name] / parent[name] for name in parent}
    assert share["moe_params"] == pytest.approx(0.599, abs=5e-4)
    assert share["active_routed_params"] == pytest.approx(0.30866, abs=5e-6)
    assert share["active_experts"] == 0.5
    assert share["state_bytes"] == 0.75
    assert share["active_params"] == pytest.approx(0.73116, abs=5e-6)


def test_r25_kv_comes_from_the_attention_blocks_alone() -> None:
    shape = published_shape(SUPER)
    assert len(shape.indices("attention")) == 8
    assert model_costs(shape)["kv_bytes_per_token"] == 8 * 2 * 2 * 128


def test_kv_uses_the_true_head_size() -> None:
    shape = hybrid_shape("*M*", hidden_size=32, num_attention_heads=4, head_dim=24)
    assert model_costs(shape)["kv_bytes_per_token"] == 2 * 2 * 2 * 24


@pytest.mark.parametrize(("name", "state", "both"), [(SUPER, 160, 162), (PUZZLE, 120, 122)])
def test_r24_state_is_fp32_and_the_convolution_apart(name: str, state: int, both: int) -> None:
    costs = model_costs(published_shape(name))
    assert costs["state_bytes"] == state * MIB
    assert round((costs["state_bytes"] + costs["conv_state_bytes"]) / MIB) == both


def test_convolution_state_by_hand() -> None:
    costs = model_costs(hybrid_shape("MM*"))
    assert costs["conv_state_bytes"] == 2 * (4 * 16 + 2 * 2 * 32) * (4 - 1) * 2
    assert costs["state_bytes"] == 2 * 4 * 16 * 32 * 4


def test_a_moe_block_by_hand() -> None:
    shape = hybrid_shape("E*")
    costs = costs_by_block(shape)[0]
    expert, router, shared, latent, norm = 2 * 16 * 48, 32 * 8 + 8, 2 * 16 * 32, 2 * 16 * 32, 32
    rest = router + shared + latent + norm
    assert costs["params"] == costs["trunk_params"] == 8 * expert + rest
    assert costs["active_params"] == 6 * expert + rest
    assert (costs["moe_params"], costs["active_routed_params"]) == (8 * expert, 6 * expert)
    assert costs["active_experts"] == 6
    assert costs["bytes_bf16"] == 2 * costs["params"] + 2 * 8
    assert costs["bytes_fp8"] == costs["bytes_bf16"] - 8 * expert - shared
    assert costs["bytes_nvfp4"] == costs["bytes_fp8"] - 8 * expert * 7 / 16


def test_top_k_changes_active_parameters_only() -> None:
    shape = hybrid_shape("E*")
    block = shape.blocks[0].with_values({"top_k": 3})
    full, cut = costs_by_block(shape.with_blocks([shape.blocks[0], block]))
    changed = {name for name in COSTS if full[name] != cut[name]}
    assert changed == {"active_params", "active_routed_params", "active_experts"}


def test_a_tied_embedding_counts_once() -> None:
    tied, untied = (hybrid_shape("M*", tie_word_embeddings=tie) for tie in (True, False))
    assert model_costs(untied)["params"] - model_costs(tied)["params"] == 64 * 32
    assert model_costs(untied)["trunk_params"] == model_costs(tied)["trunk_params"]


def test_costs_of_a_child_are_the_sum_over_its_variants() -> None:
    parent = hybrid_shape("MEM*E-", ssm_state_size=32)
    variants = (
        Variant(0, {"state": 16}),
        Variant(1, {"ffn": 16, "top_k": 2}),
        Variant(2, {"state": 16}),
        Variant(3),
        Variant(4, is_none=True),
        Variant(5),
    )
    blocks = [v.apply(parent.blocks[v.block]) for v in variants]
    summed = add_costs([fixed_costs(parent), *costs_by_block(parent.with_blocks(blocks))])
    assert summed == model_costs(Choice(variants, 0.0, {}).child_shape(parent))
    assert all(isinstance(value, int) for value in summed.values())


def test_a_block_that_is_gone_costs_nothing() -> None:
    shape = hybrid_shape("M*")
    assert not any(costs_by_block(shape.with_blocks([Block("none")]))[0].values())
