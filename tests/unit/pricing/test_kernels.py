"""Kernels by hand; distinct experts against drawing them."""

from __future__ import annotations

import itertools
import random

import pytest

from fretsaw.pricing.kernels import (
    Kernel,
    Step,
    all_reduce,
    all_to_all,
    distinct_experts,
    gemm,
    stream,
)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts"), [(1, 2, 5), (2, 2, 5), (3, 1, 4), (2, 3, 4)]
)
def test_distinct_experts_is_the_mean_over_every_choice(
    tokens: int, top_k: int, experts: int
) -> None:
    choices = list(itertools.combinations(range(experts), top_k))
    batches = list(itertools.product(choices, repeat=tokens))
    mean = sum(len(set(itertools.chain(*batch))) for batch in batches) / len(batches)
    assert distinct_experts(tokens, top_k=top_k, experts=experts) == pytest.approx(mean)


@pytest.mark.parametrize(("tokens", "top_k"), [(16, 22), (128, 4), (7, 9)])
def test_distinct_experts_of_512_by_drawing(tokens: int, top_k: int) -> None:
    rng = random.Random(tokens)
    drawn = [
        len({e for _ in range(tokens) for e in rng.sample(range(512), top_k)}) for _ in range(300)
    ]
    expected = distinct_experts(tokens, top_k=top_k, experts=512)
    assert sum(drawn) / len(drawn) == pytest.approx(expected, rel=0.01)


def test_distinct_experts_grow_with_the_batch_up_to_all() -> None:
    batches = [0.25, 0.5, 1, 1.5, 2, 3, 8, 64, 1024, 1e6]
    for top_k in (1, 8, 22, 511):
        hit = [distinct_experts(n, top_k=top_k, experts=512) for n in batches]
        assert hit == sorted(hit)
        assert hit[0] == top_k / 4
        assert hit[2] == top_k
        assert hit[-1] == pytest.approx(512)
    by_top_k = [distinct_experts(16, top_k=k, experts=512) for k in (1, 4, 22, 512)]
    assert by_top_k == sorted(by_top_k)
    assert by_top_k[-1] == 512


def test_a_product_by_hand() -> None:
    kernel = gemm(3, outputs=32, inputs=64, fmt="nvfp4", group="MLP")
    assert kernel.flops == 2 * 3 * 32 * 64
    assert kernel.weight_bytes == 32 * 64 / 2 + 32 * 64 / 16
    assert kernel.activation_bytes == 2 * 3 * (32 + 64)
    assert kernel.bytes == kernel.weight_bytes + kernel.activation_bytes


def test_an_element_wise_kernel_reads_and_writes() -> None:
    assert stream(3, 64, group="norm").bytes == 2 * 2 * 3 * 64


@pytest.mark.parametrize("collective", [all_reduce, all_to_all])
def test_one_gpu_tells_nobody(collective) -> None:
    assert collective(3, 64, gpus=1) == ()
    (kernel,) = collective(3, 64, gpus=2)
    assert (kernel.sizes["bytes"], kernel.sizes["gpus"]) == (2 * 3 * 64, 2)


@pytest.mark.parametrize(
    ("kernel", "largest"),
    [
        (Kernel("gemm", "head", weight_bytes=2, activation_bytes=1), "weights"),
        (Kernel("gemm", "head", weight_bytes=1, activation_bytes=2), "activations"),
        (Kernel("attention", "attention", cache_bytes=2, activation_bytes=1), "KV"),
        (Kernel("state_update", "state", cache_bytes=2, activation_bytes=1), "state"),
        (Kernel("conv", "convolution", cache_bytes=2, activation_bytes=1), "state"),
    ],
)
def test_most_bytes_are_named(kernel: Kernel, largest: str) -> None:
    assert kernel.largest_bytes == largest


def test_units_that_compute() -> None:
    assert gemm(1, outputs=1, inputs=1, fmt="nvfp4", group="").computed_in == "nvfp4"
    assert Kernel("attention", "attention", number_format="fp8").computed_in == "bf16"
    assert Kernel("state_update", "state", number_format="fp16").computed_in == "fp32"


def test_drafts_that_are_verified_are_no_prefill() -> None:
    assert not Step(1, 1 + 7, 100).is_prefill
    assert Step(1, 9, 100).is_prefill
