"""Costs from the tensor tables against published numbers, and reports R24 and R25."""

from __future__ import annotations

import pytest

from fretsaw.core.hardware import Layout
from fretsaw.core.precision import PRESETS, kind_of
from fretsaw.core.shape import Block
from fretsaw.core.variant import Choice, Variant
from fretsaw.families import family_named
from fretsaw.pricing.footprint import Footprint, footprint, footprints, mtp_footprint
from fretsaw.pricing.memory import (
    COSTS,
    add_costs,
    costs_by_block,
    fixed_costs,
    model_costs,
    mtp_bytes,
    stored_bytes,
)
from tests.shapes import hybrid_shape, published_shape

SUPER, PUZZLE = "super", "puzzle"
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


@pytest.mark.parametrize("name", [SUPER, PUZZLE])
@pytest.mark.parametrize("preset_name", ["bf16", "fp8", "nvfp4"])
def test_a_footprint_is_the_costs_of_one_gpu(name: str, preset_name: str) -> None:
    shape, precision = published_shape(name), PRESETS[preset_name]
    costs = model_costs(shape)
    found = footprint(shape, precision)
    assert found.weights_bytes == costs[f"bytes_{preset_name}"]
    # KV in BF16 beside BF16 weights, in FP8 as the cost by name elsewhere.
    assert found.kv_bytes_per_token == costs["kv_bytes_per_token"] * (1 + (preset_name == "bf16"))
    assert found.state_bytes == costs["state_bytes"] + costs["conv_state_bytes"]
    blocks, rest = footprints(shape, precision)
    assert sum(blocks, rest) == found


@pytest.mark.parametrize("layout", [Layout(tp, 1, ep) for tp in (2, 4, 8) for ep in (1, tp)])
def test_gpus_of_a_replica_hold_the_model_and_what_they_copy(layout: Layout) -> None:
    """Copied: norms, router with its bias, latent projections, and KV heads beyond their number."""
    shape, precision = published_shape(SUPER), PRESETS["nvfp4"]
    copied = 0
    for row in family_named(shape.family).rows(shape):
        if row.part == "mtp":
            continue
        size, tensor = stored_bytes(row, precision), row.tensor
        is_kv = tensor.has("kv_head") and not tensor.has("q_per_kv")
        if kind_of(tensor, part=row.part) in {"norm", "router", "router_bias", "latent"}:
            copied += size * (layout.tp - 1)
        elif is_kv:
            copied += size * (max(1, layout.tp // 2) - 1)
    whole, each = footprint(shape, precision), footprint(shape, precision, layout=layout)
    assert layout.tp * each.weights_bytes == whole.weights_bytes + copied
    assert each.kv_bytes_per_token == 2048
    assert layout.tp * each.state_bytes == whole.state_bytes


def test_data_parallel_groups_share_experts_alone() -> None:
    shape, precision = published_shape(SUPER), PRESETS["nvfp4"]
    one, many = footprint(shape, precision), footprint(shape, precision, layout=Layout(1, 8, 8))
    experts = 40 * 512 * 2 * 1024 * 2688 * 9 // 16
    assert one.weights_bytes - many.weights_bytes == experts * 7 // 8
    assert one.sequence_bytes(10) == many.sequence_bytes(10)


def test_sizes_that_do_not_divide_are_rounded_up() -> None:
    shape = hybrid_shape("-*", intermediate_size=65)
    even = hybrid_shape("-*", intermediate_size=66)
    two = [footprint(s, PRESETS["bf16"], layout=Layout(2)).weights_bytes for s in (shape, even)]
    assert two[0] == two[1]


def test_the_prediction_head_brings_weights_in_bf16_and_kv_of_its_own() -> None:
    """Super's head: one attention block, so an eighth of the trunk's KV on top."""
    shape, precision = published_shape(SUPER), PRESETS["nvfp4"]
    found = mtp_footprint(shape, precision)
    assert found.weights_bytes == mtp_bytes(shape)
    assert found.kv_bytes_per_token == 2 * 2 * 128
    assert found.state_bytes == 0
    split = mtp_footprint(shape, precision, layout=Layout(2))
    assert 0.5 < split.weights_bytes / found.weights_bytes < 0.53
    assert split.kv_bytes_per_token == 2 * 128
    assert mtp_footprint(hybrid_shape("M*"), precision) == Footprint()


def test_footprints_of_parts_add_up() -> None:
    assert Footprint(1, 2, 3) + Footprint(10, 20, 30) == Footprint(11, 22, 33)
    assert Footprint(1, 2, 3).times(3) == Footprint(3, 6, 9)
    assert Footprint(1, 2, 3).sequence_bytes(10.5) == 24
