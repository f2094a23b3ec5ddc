"""A step is the sum over its blocks and what is no block, and its account adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from fretsaw.core.hardware import ONE_GPU, Layout, hardware_named
from fretsaw.core.precision import preset
from fretsaw.pricing.blocks import block_kernels, head_kernels
from fretsaw.pricing.kernels import Kernel, Step, Timing
from fretsaw.pricing.provider import pricers
from fretsaw.pricing.step import OVERLAP_TOKENS, Pricer
from tests.shapes import hybrid_shape, published_shape

PUZZLE = "puzzle"
BF16 = preset("bf16")
DECODE, PROMPT = Step(4, 1, 100.0), Step(1, 640, 0.0)


@dataclass
class ByGroup:
    """Seconds of each kernel group, 1 where none is named; counts what it is asked."""

    seconds: dict[str, float] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def time(self, kernel: Kernel) -> Timing:
        self.asked[kernel.group] += 1
        return Timing(self.seconds.get(kernel.group, 1.0), f"of {kernel.operation}", "clock")


def test_a_step_is_a_second_per_kernel_and_the_host() -> None:
    shape = hybrid_shape("MEM*E-E")
    kernels = [
        kernel
        for block in shape.blocks
        for kernel in block_kernels(block, step=DECODE, layout=ONE_GPU, precision=BF16)
    ]
    head = head_kernels(shape, step=DECODE, layout=ONE_GPU, precision=BF16)
    pricer = Pricer(ByGroup(), ONE_GPU, BF16, host_s=0.5)
    assert pricer.step_seconds(shape, step=DECODE) == len(kernels) + len(head) + 0.5
    assert pricer.fixed_seconds(shape, step=DECODE) == len(head) + 0.5


def test_the_search_may_add_blocks() -> None:
    shape = published_shape(PUZZLE)
    of = pricers(hardware_named("B200"), engine="vllm", precision=preset("nvfp4"))
    for layout in (Layout(), Layout(2, 1, 2)):
        pricer = of(layout)
        for step in (Step(37.5, 1, 8000.0), Step(1, 2048, 0.0)):
            blocks = [pricer.block_seconds(block, step=step) for block in shape.blocks]
            summed = sum(blocks) + pricer.fixed_seconds(shape, step=step)
            assert summed == pytest.approx(pricer.step_seconds(shape, step=step))


@pytest.mark.parametrize("step", [DECODE, PROMPT])
@pytest.mark.parametrize("name", ["B200", "A100"])
def test_an_account_adds_up_three_ways(name: str, step: Step) -> None:
    shape = published_shape(PUZZLE)
    of = pricers(hardware_named(name), engine="vllm", precision=preset("nvfp4"))
    account = of(Layout(2)).account(shape, step=step)
    assert account.seconds == pytest.approx(of(Layout(2)).step_seconds(shape, step=step))
    for parts in (account.by_group, account.by_bound, account.by_provider):
        assert sum(parts.values()) == pytest.approx(account.seconds)
        assert min(parts.values()) >= 0
    assert account.by_provider["constant"] == account.by_bound["host"] == of(Layout(2)).host_s
    assert ("table" in account.by_provider) == (name == "B200")


def test_equal_blocks_are_priced_once() -> None:
    timer = ByGroup()
    pricer = Pricer(timer, ONE_GPU, BF16)
    for _ in range(3):
        pricer.step_seconds(hybrid_shape("MMMM"), step=DECODE)
    assert timer.asked["convolution"] == 1
    pricer.step_seconds(hybrid_shape("MM", ssm_state_size=16), step=DECODE)
    pricer.step_seconds(hybrid_shape("MM"), step=PROMPT)
    assert timer.asked["convolution"] == 3


@pytest.mark.parametrize(
    ("experts_s", "overlap", "left"),
    [(6.0, 1.0, 0.0), (3.0, 1.0, 3.0), (1.5, 1.0, 4.5), (6.0, 0.5, 3.0), (6.0, 0.0, 6.0)],
)
def test_shared_experts_hide_behind_the_routed_ones(
    experts_s: float, overlap: float, left: float
) -> None:
    """Three kernels of two seconds are shared; as much as the routed ones take is hidden."""
    timer = ByGroup({"experts": experts_s, "shared experts": 2.0})
    pricer = Pricer(timer, ONE_GPU, BF16, shared_overlap=overlap)
    shape = hybrid_shape("E")
    account = pricer.account(shape, step=DECODE)
    assert account.by_group["shared experts"] == pytest.approx(left)
    assert pricer.step_seconds(shape, step=DECODE) == pytest.approx(account.seconds)
    many = Step(OVERLAP_TOKENS + 1, 1, 0.0)
    assert pricer.account(shape, step=many).by_group["shared experts"] == 6.0


def test_who_says_so_is_named() -> None:
    shape = published_shape(PUZZLE)
    b200 = pricers(hardware_named("B200"), engine="vllm", precision=preset("nvfp4"))(ONE_GPU)
    assert "roofline" in b200.provider(shape, step=DECODE)
    assert "table" in b200.provider(shape, step=DECODE)
    assert Pricer(ByGroup(), ONE_GPU, BF16).provider(shape, step=DECODE) == "clock"
    assert Pricer(ByGroup(), ONE_GPU, BF16).provider(shape.with_blocks(()), step=DECODE) == "clock"
