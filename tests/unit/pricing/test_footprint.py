"""Pages as engines cut them, against sizes that vLLM's logs and public measurements state."""

from __future__ import annotations

import math

import pytest

from fretsaw.core.engines import BY_THE_BYTE, engine_named
from fretsaw.core.precision import Precision, preset
from fretsaw.core.shape import Block
from fretsaw.pricing.footprint import Footprint, Pages, footprint, padding, pages_of
from tests.shapes import hybrid_shape, published_shape

VLLM = engine_named("vllm").cache


def attention(kv_head: int, head_dim: int) -> Block:
    sizes = {"hidden": 1024, "kv_head": kv_head, "q_per_kv": 4, "head_dim": head_dim}
    return Block("attention", sizes)


def mamba(heads: int, dim: int, *, state: int, groups: int) -> Block:
    sizes = {"hidden": 1024, "mamba_head": heads, "mamba_dim": dim, "state": state}
    return Block("mamba", {**sizes, "group": groups, "kernel": 4})


def sixteen(kv: str) -> Precision:
    return Precision("test", kv=kv, state="bf16")


FALCON_H1 = (attention(2, 128), mamba(48, 64, state=256, groups=1))
NANO_9B = (attention(8, 128), mamba(128, 80, state=128, groups=8))


def test_f3_the_page_of_nemotron_nano_9b_has_the_published_672_tokens() -> None:
    """https://github.com/vllm-project/vllm/issues/24280: 672 tokens, with a 16-bit state."""
    assert pages_of(NANO_9B, sixteen("bf16"), rule=VLLM).tokens == 672


def test_f3_fp8_gains_what_was_measured() -> None:
    """https://github.com/vllm-project/vllm/issues/55196: 1.84 times at 32k, 1.00 at short."""

    def held(context: int, kv: str) -> float:
        pages = pages_of(FALCON_H1, sixteen(kv), rule=VLLM)
        return 1 / ((math.ceil(context / pages.tokens) + 1) * pages.page_bytes)

    assert held(32_768, "fp8") / held(32_768, "bf16") == pytest.approx(1.84, abs=0.005)
    assert held(1000, "fp8") / held(1000, "bf16") == pytest.approx(1.0, abs=0.01)


def test_f3_a_state_is_padded_to_the_page_of_attention() -> None:
    shape = published_shape("super")
    for kv in ("bf16", "fp8"):
        precision = preset("nvfp4").with_caches(kv=kv)
        pages = pages_of(shape.blocks, precision, rule=VLLM)
        whole = footprint(shape, precision, rule=VLLM)
        assert whole.state_bytes == 40 * pages.page_bytes
        assert whole.sequence_bytes(4000) == 48 * pages.page_bytes
        exact = footprint(shape, precision)
        assert exact.state_bytes < whole.state_bytes < 1.01 * exact.state_bytes


@pytest.mark.parametrize(
    ("pattern", "extra_attention", "extra_mamba"),
    [
        ("M" * 40 + "*" * 8, 0, 0),
        ("M" * 23 + "*" * 6, 0, 1),  # Nano-30B: four groups of six, one page of them empty
        ("M" * 10 + "*" * 8, 2, 0),  # nearly as many: groups of ten
        ("MMM", 0, 0),
        ("***", 0, 0),
    ],
)
def test_f3_groups_that_are_not_full_take_whole_ones(
    pattern: str, extra_attention: int, extra_mamba: int
) -> None:
    pages = Pages(4160, 16_384, 1024)
    blocks = hybrid_shape(pattern).blocks
    expected = Footprint(0, extra_attention * 1024, extra_mamba * pages.page_bytes)
    assert padding(blocks, pages=pages) == expected


def test_f3_pools_of_their_own_round_tokens_alone() -> None:
    rule = engine_named("tensorrt-llm").cache
    shape = hybrid_shape("MM*")
    paged, exact = (footprint(shape, preset("bf16"), rule=r) for r in (rule, BY_THE_BYTE))
    assert paged.state_bytes == exact.state_bytes
    assert paged.sequence_bytes(33) == exact.sequence_bytes(64)
    assert paged.sequence_bytes(64) == exact.sequence_bytes(64)


def test_f3_without_mamba_a_page_is_what_the_engine_starts_with() -> None:
    assert pages_of([attention(2, 128)], preset("bf16"), rule=VLLM).tokens == 16
