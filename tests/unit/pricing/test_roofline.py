"""Seconds from physics: bytes, FLOPs, floors and links by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fretsaw.core.hardware import Hardware
from fretsaw.pricing.kernels import Kernel, all_reduce, all_to_all, gemm
from fretsaw.pricing.roofline import Constants, RooflineTimer

HARDWARE = Hardware(
    "round", 10**9, 1e12, {"bf16": 1e14, "fp8": 2e14, "fp32": 1e13}, link_bytes_per_s=1e11
)
PERFECT = Constants(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
HALF = replace(PERFECT, memory_efficiency=0.5, compute_efficiency=0.25)


def experts(**fields: float) -> Kernel:
    sizes = {"tokens": 10, "top_k": 4, "expert": 8, "experts": 16, "hidden": 1, "ffn": 1}
    return Kernel("experts", "experts", sizes=sizes, **fields)


def seconds(kernel: Kernel, constants: Constants = PERFECT) -> float:
    return RooflineTimer(HARDWARE, constants).time(kernel).seconds


@pytest.mark.parametrize(
    ("kernel", "perfect", "half", "bound"),
    [
        (Kernel("gemm", "", weight_bytes=1e6), 1e-6, 2e-6, "weights"),
        (Kernel("attention", "attention", cache_bytes=3e6), 3e-6, 6e-6, "KV"),
        (Kernel("stream", "", activation_bytes=1e6), 1e-6, 2e-6, "activations"),
        (Kernel("gemm", "", flops=1e8), 1e-6, 4e-6, "compute"),
        (Kernel("gemm", "", flops=1e8, number_format="fp8"), 0.5e-6, 2e-6, "compute"),
        # No FP4 units: widened to BF16; attention's units are BF16, element-wise ones FP32.
        (Kernel("gemm", "", flops=1e8, number_format="nvfp4"), 1e-6, 4e-6, "compute"),
        (Kernel("prefill_attention", "", flops=1e8, number_format="fp8"), 1e-6, 4e-6, "compute"),
        (Kernel("conv", "", flops=1e7), 1e-6, 4e-6, "compute"),
    ],
)
def test_the_slower_of_bytes_and_flops(
    kernel: Kernel, perfect: float, half: float, bound: str
) -> None:
    assert seconds(kernel) == pytest.approx(perfect)
    assert seconds(kernel, HALF) == pytest.approx(half)
    timing = RooflineTimer(HARDWARE, PERFECT).time(kernel)
    assert (timing.bound, timing.provider) == (bound, "roofline")


def test_bytes_and_flops_overlap() -> None:
    assert seconds(Kernel("gemm", "", weight_bytes=2e6, flops=1e8)) == pytest.approx(2e-6)
    assert seconds(Kernel("gemm", "", weight_bytes=1e6, flops=3e8)) == pytest.approx(3e-6)


def test_state_and_scan_have_efficiencies_of_their_own() -> None:
    constants = replace(PERFECT, state_efficiency=0.5, scan_efficiency=0.1)
    assert seconds(Kernel("state_update", "state", cache_bytes=1e6), constants) == 2e-6
    scan = Kernel("scan", "state", flops=1e8)
    assert seconds(scan, constants) == pytest.approx(1e-5)


def test_a_launch_is_the_least() -> None:
    constants = replace(PERFECT, kernel_s=2e-6)
    timing = RooflineTimer(HARDWARE, constants).time(Kernel("gemm", "", weight_bytes=1, launches=3))
    assert (timing.seconds, timing.bound) == (6e-6, "launch")
    assert seconds(Kernel("gemm", "", weight_bytes=1e9), constants) == pytest.approx(1e-3)


def test_experts_pay_for_sorting_and_for_each_pair_of_this_gpu() -> None:
    constants = replace(PERFECT, experts_s=1e-5, pair_s=1e-6)
    # 10 tokens x 4 experts, of which this GPU has half.
    timing = RooflineTimer(HARDWARE, constants).time(experts(weight_bytes=1e6))
    assert timing.seconds == pytest.approx(1e-6 + 1e-5 + 20e-6)
    assert timing.bound == "launch"
    assert RooflineTimer(HARDWARE, constants).time(experts(weight_bytes=1e9)).bound == "weights"


def test_a_ring_sends_a_sum_twice_and_a_swap_once() -> None:
    (reduce,), (swap,) = all_reduce(500, 1000, gpus=4), all_to_all(500, 1000, gpus=4)
    assert seconds(reduce) == pytest.approx(2 * 3 / 4 * 1e6 / 1e11)
    assert seconds(swap) == pytest.approx(seconds(reduce) / 2)
    slow = replace(PERFECT, link_efficiency=0.5, link_s=1e-5)
    assert seconds(reduce, slow) == pytest.approx(1e-5 + 2 * seconds(reduce))
    assert RooflineTimer(HARDWARE, PERFECT).time(reduce).bound == "link"


def test_without_a_link_nothing_arrives() -> None:
    (kernel,) = all_reduce(1, 1, gpus=2)
    assert RooflineTimer(replace(HARDWARE, link_bytes_per_s=0.0)).time(kernel).seconds == float(
        "inf"
    )


def test_more_work_never_takes_less() -> None:
    timer = RooflineTimer(HARDWARE)
    times = [
        timer.time(gemm(2.0**n, outputs=512, inputs=512, fmt="bf16", group="")).seconds
        for n in range(20)
    ]
    assert times == sorted(times)
