"""How many sequences memory holds: the published arithmetic, and what it turns on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fretsaw.core.engines import engine_named
from fretsaw.core.hardware import Hardware, Layout, Node, parse_node
from fretsaw.core.precision import preset
from fretsaw.errors import RecipeError
from fretsaw.pricing.footprint import footprint
from fretsaw.pricing.memory import mtp_bytes
from fretsaw.serving.capacity import Assumptions, Capacity, capacity, usable_bytes
from tests.shapes import hybrid_shape, published_shape

SUPER, PUZZLE = (published_shape(name) for name in ("super", "puzzle"))
GIB = 2**30
NVFP4 = preset("nvfp4")
MILLION, BINARY_MILLION = 1_000_000, 1_048_576


def toy(*, memory_bytes: int, count: int = 1) -> Node:
    return Node(Hardware("toy", memory_bytes, 1.0, {"bf16": 1.0}), count)


def held(shape, node, *, context=MILLION, layout=Layout(), **assumed) -> Capacity:  # noqa: B008
    return capacity(
        shape,
        node,
        context=context,
        precision=NVFP4,
        layout=layout,
        assumptions=Assumptions(**assumed),
    )


@pytest.mark.parametrize(
    ("weights", "context", "fraction", "expected"),
    [
        ((70 * GIB, 44.5 * GIB), MILLION, 0.97, (1, 8)),
        ((70 * GIB, 44.5 * GIB), BINARY_MILLION, 0.97, (1, 7)),
        ((70 * GIB, 44.5 * GIB), MILLION, 0.9, (0, 6)),
        ((None, None), MILLION, 0.97, (2, 8)),
        ((70e9, 44.5e9), MILLION, 0.97, (3, 9)),
    ],
)
def test_a_million_tokens_on_one_h100_as_published(
    weights: tuple[float | None, float | None],
    context: int,
    fraction: float,
    expected: tuple[int, int],
) -> None:
    """arXiv:2607.04371: 1 and 8 requests on one card; NVFP4 weights, FP8 KV, FP32 state."""
    for shape, size, most in zip((SUPER, PUZZLE), weights, expected, strict=True):
        given = None if size is None else int(size)
        found = held(
            shape,
            parse_node("H100"),
            context=context,
            memory_fraction=fraction,
            weights_bytes=given,
        )
        assert found.max_concurrency == most
        assert found.fits


@pytest.mark.parametrize(
    ("gib", "expected"), [(75.96, (1, 7)), (75.98, (1, 8)), (77.94, (1, 8)), (77.96, (2, 8))]
)
def test_the_range_of_usable_memory_that_gives_1_and_8(
    gib: float, expected: tuple[int, int]
) -> None:
    node = toy(memory_bytes=round(gib * GIB))
    for shape, size, most in zip((SUPER, PUZZLE), (70, 44.5), expected, strict=True):
        found = held(shape, node, memory_fraction=1.0, weights_bytes=int(size * GIB))
        assert found.max_concurrency == most


def test_by_hand_to_the_byte() -> None:
    shape = hybrid_shape("*M")
    total = footprint(shape, NVFP4)
    each = total.kv_bytes_per_token * 100 + total.state_bytes
    memory = total.weights_bytes + 3 * each
    for size, most in ((memory, 3), (memory - 1, 2), (total.weights_bytes, 0), (1, 0)):
        found = held(shape, toy(memory_bytes=size), context=100, memory_fraction=1.0)
        assert found.max_concurrency == most
        assert found.fits == (size >= total.weights_bytes)


def test_headroom_is_kept_beside_everything() -> None:
    node = parse_node("H100")
    for headroom in (0, GIB, 20 * GIB):
        assumed = Assumptions(headroom_bytes=headroom)
        assert usable_bytes(node, assumed) == int(0.9 * node.hardware.memory_bytes) - headroom
    # 3.93 GiB a request: a head-room of 4 GiB costs one or two of them.
    more, less = held(PUZZLE, node), held(PUZZLE, node, headroom_bytes=4 * GIB)
    assert 1 <= more.max_concurrency - less.max_concurrency <= 2


def test_the_prediction_head_takes_memory_and_kv() -> None:
    without, loaded = (held(SUPER, parse_node("B200"), has_mtp=mtp) for mtp in (False, True))
    weights = loaded.footprint.weights_bytes - without.footprint.weights_bytes
    assert weights == mtp_bytes(SUPER) > 5e9
    assert loaded.footprint.kv_bytes_per_token == 4096 + 512
    assert loaded.max_concurrency < without.max_concurrency


def test_tensor_parallelism_beyond_the_kv_heads_copies_them() -> None:
    """Two KV heads on eight GPUs: KV of a sequence is 8 times 2,048 bytes, not 4,096."""
    node = parse_node("8xH100")
    one, two, eight = (held(SUPER, node, layout=Layout(tp)) for tp in (1, 2, 8))
    assert eight.footprint.kv_bytes_per_token == two.footprint.kv_bytes_per_token == 2048
    assert one.footprint.kv_bytes_per_token == 4096
    assert eight.max_concurrency == eight.sequences_per_group
    assert two.max_concurrency == 4 * two.sequences_per_group
    assert two.max_concurrency > eight.max_concurrency


def test_groups_of_a_replica_hold_sequences_of_their_own() -> None:
    node = parse_node("8xB200")
    found = held(SUPER, node, context=9000, layout=Layout(2, 4, 8))
    assert found.max_concurrency == 4 * found.sequences_per_group
    pairs = held(SUPER, node, context=9000, layout=Layout(1, 2, 2))
    assert pairs.max_concurrency == 8 * pairs.sequences_per_group


def test_less_per_sequence_holds_more() -> None:
    contexts = [
        held(PUZZLE, parse_node("8xB200"), context=n).max_concurrency for n in (1, 10**4, 10**6)
    ]
    assert contexts == sorted(contexts, reverse=True)
    halved = capacity(
        PUZZLE, parse_node("B200"), context=1, precision=NVFP4.with_caches(state="fp16")
    )
    assert (
        halved.max_concurrency > 1.9 * held(PUZZLE, parse_node("B200"), context=1).max_concurrency
    )


@pytest.mark.parametrize(
    ("assumed", "said"),
    [
        ({"memory_fraction": 0.0}, "memory fraction of 0 "),
        ({"memory_fraction": -0.1}, "memory fraction of -0.1"),
        ({"memory_fraction": 1.01}, "memory fraction of 1.01"),
        ({"memory_fraction": float("nan")}, "memory fraction of nan"),
        ({"headroom_bytes": -1}, "head-room of -1"),
        ({"weights_bytes": 0}, "weights of 0 bytes"),
        ({"weights_bytes": -5}, "weights of -5 bytes"),
        ({"headroom_bytes": 72 * GIB}, "nothing is left"),
    ],
)
def test_assumptions_that_no_gpu_meets(assumed: dict[str, float], said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        held(SUPER, parse_node("H100"), **assumed)
    assert caught.value.hint


@pytest.mark.parametrize("context", [0, -5])
def test_a_context_is_above_0(context: int) -> None:
    with pytest.raises(RecipeError, match=f"context of {context} tokens"):
        held(SUPER, parse_node("H100"), context=context)


def test_a_model_that_keeps_nothing_of_a_sequence_is_told_so() -> None:
    with pytest.raises(RecipeError, match="neither attention nor Mamba") as caught:
        held(hybrid_shape("-E"), parse_node("H100"))
    assert "one of them" in caught.value.hint


@pytest.mark.parametrize("states", [1, 2])
def test_f3_the_published_millions_of_tokens_hold_in_pages_too(states: int) -> None:
    """arXiv:2607.04371: 1 and 8 requests on one card, with and without a cache of prefixes."""
    cache = replace(engine_named("vllm").cache, states=states)
    for shape, weights, most in ((SUPER, 70 * GIB, 1), (PUZZLE, 44.5 * GIB, 8)):
        found = held(
            shape,
            parse_node("H100"),
            memory_fraction=0.97,
            weights_bytes=int(weights),
            cache=cache,
        )
        assert found.max_concurrency == most
