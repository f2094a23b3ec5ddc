"""Kernels of blocks against the tensor table: bytes, FLOPs, caches, and how layouts split them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fretsaw.core.hardware import ONE_GPU, Layout
from fretsaw.core.precision import PRESETS, Precision, preset
from fretsaw.core.shape import Block, ModelShape
from fretsaw.errors import RecipeError
from fretsaw.families import Row, family_named
from fretsaw.pricing.blocks import block_kernels, check_layout, head_kernels
from fretsaw.pricing.footprint import footprint
from fretsaw.pricing.kernels import Kernel, Step
from fretsaw.pricing.memory import (
    cache_bytes,
    costs_by_block,
    fixed_costs,
    model_costs,
    stored_bytes,
)
from fretsaw.serving.frontier import prefill_steps
from tests.shapes import hybrid_shape, published_shape

SUPER, PUZZLE = "super", "puzzle"
ALL_EXPERTS = Step(1e6, 1, 0.0)
"""A batch so large that every expert is hit."""

ONE = Step(1.0, 1, 1000.0)
EVEN = ("-E*M", {"moe_intermediate_size": 64})
"""A small hybrid whose heads, groups, widths and experts two GPUs divide."""


def kernels_of(
    shape: ModelShape,
    *,
    step: Step,
    layout: Layout = ONE_GPU,
    precision: Precision = PRESETS["bf16"],
) -> list[Kernel]:
    """All kernels of a model on one GPU."""
    found = [
        kernel
        for block in shape.blocks
        for kernel in block_kernels(block, step=step, layout=layout, precision=precision)
    ]
    return [*found, *head_kernels(shape, step=step, layout=layout, precision=precision)]


def total(kernels: Iterable[Kernel], field: str) -> float:
    return sum(getattr(kernel, field) for kernel in kernels)


def is_matrix(row: Row) -> bool:
    """What a step multiplies by: not embedding, norms, correction bias, convolution, A, D, dt."""
    has_two_axes = len(row.tensor.axes) > 1 and not row.tensor.has("kernel")
    return row.part in {"block", "head"} and has_two_axes


def table(shape: ModelShape) -> Iterable[Row]:
    return family_named(shape.family).rows(shape)


@pytest.mark.parametrize("name", [SUPER, PUZZLE])
@pytest.mark.parametrize("number_format", ["bf16", "fp8", "nvfp4"])
def test_weights_that_a_large_batch_reads_are_those_of_the_table(
    name: str, number_format: str
) -> None:
    shape, precision = published_shape(name), preset(number_format)
    read = total(kernels_of(shape, step=ALL_EXPERTS, precision=precision), "weight_bytes")
    stored = sum(stored_bytes(row, precision) for row in table(shape) if is_matrix(row))
    assert read == pytest.approx(stored, rel=1e-12)
    embedding = 2 * shape.sizes["vocab"] * shape.sizes["hidden"]
    assert read + embedding == pytest.approx(footprint(shape, precision).weights_bytes, rel=2e-4)


@pytest.mark.parametrize("name", [SUPER, PUZZLE])
def test_one_token_reads_and_multiplies_the_active_parameters(name: str) -> None:
    shape = published_shape(name)
    kernels = [k for k in kernels_of(shape, step=ONE) if k.operation in {"gemm", "experts"}]
    others = sum(
        row.tensor.numel(row.sizes)
        for row in table(shape)
        if row.part != "mtp" and not is_matrix(row)
    )
    active = model_costs(shape)["active_params"] - others
    assert total(kernels, "flops") == 2 * active
    assert total(kernels, "weight_bytes") == 2 * active


def test_every_block_multiplies_its_active_parameters_for_each_token() -> None:
    shape = published_shape(PUZZLE)
    for block, costs in zip(shape.blocks, costs_by_block(shape), strict=True):
        for tokens in (1, 64):
            step = Step(tokens, 1, 10.0)
            kernels = block_kernels(block, step=step, layout=Layout(), precision=preset("bf16"))
            products = [k for k in kernels if k.operation in {"gemm", "experts"}]
            assert total(products, "flops") == pytest.approx(
                2 * tokens * costs["active_params"], rel=1e-2
            )


@pytest.mark.parametrize("sequences", [1, 7])
@pytest.mark.parametrize("precision", [preset("nvfp4"), preset("bf16").with_caches(state="fp16")])
def test_caches_that_a_step_reads_are_those_that_memory_holds(
    sequences: int, precision: Precision
) -> None:
    shape, context = published_shape(SUPER), 1000
    kernels = kernels_of(shape, step=Step(sequences, 1, context - 1), precision=precision)
    read = {
        operation: sum(k.cache_bytes for k in kernels if k.operation == operation)
        for operation in ("attention", "state_update", "conv")
    }
    held = [cache_bytes(block, precision) for block in shape.blocks]
    for operation, name, times in (
        ("attention", "kv_bytes_per_token", context),
        ("state_update", "state_bytes", 2),
        ("conv", "conv_state_bytes", 2),
    ):
        assert read[operation] == sequences * times * sum(one.get(name, 0) for one in held)


def test_r25_attention_alone_reads_kv_and_mamba_alone_keeps_state() -> None:
    for block in published_shape(SUPER).blocks:
        kernels = block_kernels(block, step=ONE, layout=Layout(), precision=preset("nvfp4"))
        bound = {k.largest_bytes for k in kernels if k.cache_bytes}
        assert bound == {"attention": {"KV"}, "mamba": {"state"}}.get(block.mixer, set())


@pytest.mark.parametrize("layout", [Layout(2), Layout(2, 1, 2), Layout(1, 2, 2), Layout(2, 2, 4)])
def test_gpus_of_a_replica_share_the_work_of_one(layout: Layout) -> None:
    """What is split adds up; router and latent projections are whole in each group."""
    shape = hybrid_shape(EVEN[0], **EVEN[1])
    step = Step(64, 1, 100.0)
    whole = kernels_of(shape, step=step)
    part = kernels_of(shape, step=step, layout=layout)
    for group in {k.group for k in whole} - {"router", "latent projections", "norm", "head"}:
        for field in ("flops", "cache_bytes"):
            one = sum(getattr(k, field) for k in whole if k.group == group)
            each = sum(getattr(k, field) for k in part if k.group == group)
            assert layout.gpus * each == pytest.approx(one), (group, field)
    for group in ("router", "latent projections"):
        one = sum(k.flops for k in whole if k.group == group)
        each = sum(k.flops for k in part if k.group == group)
        assert layout.dp * each == pytest.approx(one)
    split = {"attention projections", "Mamba projections", "MLP", "shared experts"}
    for group in split:
        one = sum(k.weight_bytes for k in whole if k.group == group)
        each = sum(k.weight_bytes for k in part if k.group == group)
        assert layout.tp * each == pytest.approx(one), group


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_expert_parallelism_keeps_whole_experts_and_a_share_of_them(ep: int) -> None:
    block = published_shape(SUPER).blocks[1]
    assert block.mixer == "moe"
    for layout in (Layout(ep, 1, ep), Layout(1, ep, ep)):
        kernels = block_kernels(block, step=ALL_EXPERTS, layout=layout, precision=preset("nvfp4"))
        (experts,) = (k for k in kernels if k.operation == "experts")
        assert experts.sizes["expert"] == 512 / ep
        assert experts.sizes["ffn"] == 2688
        assert experts.weight_bytes == pytest.approx(512 / ep * 2 * 1024 * 2688 * 9 / 16)
        assert experts.sizes["tokens"] == ALL_EXPERTS.sequences
        assert experts.flops == pytest.approx(4e6 * 22 / ep * 1024 * 2688)


@pytest.mark.parametrize("mixer", ["mamba", "moe", "attention", "mlp"])
@pytest.mark.parametrize(
    ("layout", "reduces"),
    [(Layout(), 0), (Layout(2), 1), (Layout(1, 2, 2), 0), (Layout(2, 2, 4), 1)],
)
def test_outputs_are_summed_once_a_block_and_only_over_tp(
    mixer: str, layout: Layout, reduces: int
) -> None:
    block = next(b for b in hybrid_shape("-E*M").blocks if b.mixer == mixer)
    step = Step(8, 3, 10.0)
    kernels = block_kernels(block, step=step, layout=layout, precision=preset("bf16"))
    sums = [k for k in kernels if k.operation == "all_reduce"]
    swaps = [k for k in kernels if k.operation == "all_to_all"]
    assert len(sums) == reduces
    assert all(k.sizes == {"bytes": 2 * 8 * 3 / layout.dp * 32, "gpus": 2} for k in sums)
    assert len(swaps) == (2 if mixer == "moe" and layout.dp > 1 else 0)
    assert all(k.sizes["bytes"] == 2 * 8 * 3 / layout.dp * 16 for k in swaps)


@pytest.mark.parametrize("tokens", [1, 8191, 8193, 20_000])
def test_a_prompt_in_chunks_attends_as_the_whole(tokens: int) -> None:
    block = next(b for b in hybrid_shape("*").blocks)

    def flops(steps: Iterable[Step]) -> float:
        return sum(
            kernel.flops
            for step in steps
            for kernel in block_kernels(block, step=step, layout=Layout(), precision=preset("bf16"))
            if kernel.group == "attention"
        )

    chunks = prefill_steps(tokens)
    assert sum(step.tokens for step in chunks) == tokens
    assert flops(chunks) == flops([Step(1, tokens, 0.0)])
    pairs = tokens * (tokens + 1) // 2
    assert flops(chunks) == 4 * pairs * 4 * 8


def test_decoding_after_a_prompt_attends_as_one_more_token_of_it() -> None:
    block = next(b for b in hybrid_shape("*").blocks)

    def attend(step: Step) -> Kernel:
        kernels = block_kernels(block, step=step, layout=Layout(), precision=preset("bf16"))
        return next(k for k in kernels if k.group == "attention")

    whole, before = attend(Step(1, 101, 0.0)).flops, attend(Step(1, 100, 0.0)).flops
    assert attend(Step(1, 1, 100.0)).flops == whole - before


def test_the_head_meets_every_new_token_but_of_a_prompt_only_the_last() -> None:
    shape = published_shape(SUPER)
    for step, rows in ((Step(6, 1, 10.0), 6), (Step(6, 4, 10.0), 24), (Step(6, 100, 0.0), 6)):
        kernels = head_kernels(shape, step=step, layout=Layout(2, 2, 4), precision=preset("nvfp4"))
        assert total(kernels, "flops") == 2 * rows / 2 * 131_072 / 2 * 4096


def test_kv_heads_fewer_than_gpus_are_kept_on_each() -> None:
    block = next(b for b in published_shape(SUPER).blocks if b.mixer == "attention")
    step = Step(1, 1, 999.0)

    def kv(layout: Layout) -> float:
        kernels = block_kernels(block, step=step, layout=layout, precision=preset("nvfp4"))
        return total(kernels, "cache_bytes")

    assert kv(Layout()) == 1000 * 2 * 2 * 128
    assert kv(Layout(2)) == kv(Layout(4)) == kv(Layout(8)) == 1000 * 2 * 128
    held = cache_bytes(block, preset("nvfp4"), layout=Layout(8))
    assert kv(Layout(8)) == 1000 * held["kv_bytes_per_token"]


def test_a_block_that_is_gone_runs_nothing() -> None:
    assert block_kernels(Block("none"), step=ONE, layout=Layout(), precision=preset("bf16")) == ()


def test_a_cut_block_never_does_more() -> None:
    shape = published_shape(SUPER)
    cuts = {"ffn": 1280, "top_k": 4, "state": 96, "kv_head": 1}
    for block in shape.blocks:
        for axis in cuts.keys() & block.values.keys():
            small = block.with_values({axis: cuts[axis]})
            for step in (Step(64, 1, 1000.0), Step(1, 4096, 0.0)):
                for layout in (Layout(), Layout(4), Layout(2, 2, 4)):
                    more, less = (
                        block_kernels(b, step=step, layout=layout, precision=preset("nvfp4"))
                        for b in (block, small)
                    )
                    for a, b in zip(more, less, strict=True):
                        assert b.bytes <= a.bytes
                        assert b.flops <= a.flops


@pytest.mark.parametrize("layout", [Layout(tp) for tp in (1, 2, 4, 8)])
def test_super_lies_on_every_usual_node(layout: Layout) -> None:
    check_layout(published_shape(SUPER), layout, gpus=8)
    check_layout(published_shape(SUPER), replace(layout, ep=layout.tp), gpus=8)


@pytest.mark.parametrize(
    ("shape", "layout", "gpus", "said", "hint"),
    [
        (published_shape(SUPER), Layout(2), 3, "does not divide the node's 3", "1, 3"),
        (published_shape(SUPER), Layout(8), 4, "does not divide the node's 4", "1, 2, 4"),
        (published_shape(SUPER), Layout(3), 3, "tp3 does not divide the 128 Mamba heads", "tp"),
        (published_shape(SUPER), Layout(16), 16, "tp16 does not divide the 8 groups", "tp"),
        (published_shape(SUPER), Layout(1, 3, 3), 3, "ep3 does not divide the 512 experts", "ep1"),
        (hybrid_shape("*"), Layout(8), 8, "tp8 does not divide the 4 query heads", "tp"),
        (hybrid_shape("M"), Layout(8), 8, "tp8 does not divide the 4 Mamba heads", "tp"),
        (hybrid_shape("M"), Layout(4), 8, "tp4 does not divide the 2 groups", "tp"),
        (
            hybrid_shape("*", num_attention_heads=12, num_key_value_heads=6),
            Layout(4),
            8,
            "tp4 does not divide the 6 KV heads",
            "tp",
        ),
    ],
)
def test_layouts_that_do_not_divide(
    shape: ModelShape, layout: Layout, gpus: int, said: str, hint: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        check_layout(shape, layout, gpus=gpus)
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_a_lone_group_and_few_kv_heads_are_copied() -> None:
    shape = hybrid_shape("M*", n_groups=1, num_key_value_heads=1)
    check_layout(shape, Layout(4), gpus=4)
    one, four = (
        sum(
            cache_bytes(block, preset("bf16"), layout=layout).get("conv_state_bytes", 0)
            for block in shape.blocks
        )
        for layout in (Layout(), Layout(4))
    )
    # 64 channels are split, twice 32 of the group are not; 3 steps of two bytes.
    assert (one, four) == ((64 + 64) * 6, (16 + 64) * 6)


def test_a_model_of_fixed_parts_alone_has_their_bytes() -> None:
    shape = hybrid_shape("M*")
    kernels = head_kernels(shape, step=ONE, layout=Layout(), precision=preset("bf16"))
    embedding_and_norm = 2 * 64 * 32 + 2 * 32
    assert total(kernels, "weight_bytes") == fixed_costs(shape)["bytes_bf16"] - embedding_and_norm
