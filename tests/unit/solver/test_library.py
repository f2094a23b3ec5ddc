"""The grid becomes variants: what competes, what is left out, what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fretsaw.core.shape import Mixer, ModelShape
from fretsaw.core.variant import Variant
from fretsaw.errors import RecipeError
from fretsaw.solver.library import Grid, build_library, size_of
from tests.shapes import hybrid_shape, published_shape

STEPS = {"ffn": 16, "state": 8}


def library(
    shape: ModelShape,
    original: ModelShape | None = None,
    *,
    none: Sequence[Mixer] = (),
    **values: Sequence[int | str],
) -> list[Variant]:
    return build_library(shape, original or shape, grid=Grid(values, none, STEPS))


def keys(variants: list[Variant], block: int) -> list[str]:
    return [v.key for v in variants if v.block == block]


def test_moe_blocks_take_the_product_and_mamba_blocks_each_state() -> None:
    variants = library(hybrid_shape("ME*"), ffn=[16, 32], top_k=[2], state=[24])
    assert keys(variants, 0) == ["state=32", "state=24"]
    assert keys(variants, 1) == [
        f"ffn={ffn},top_k={top_k}" for ffn in (48, 32, 16) for top_k in (6, 2)
    ]
    assert keys(variants, 2) == ["same"]


def test_without_a_grid_every_block_competes_with_nothing() -> None:
    shape = hybrid_shape("ME*-")
    variants = library(shape)
    assert [v.block for v in variants] == [0, 1, 2, 3]
    assert all(v.apply(shape.blocks[v.block]) == shape.blocks[v.block] for v in variants)


def test_none_competes_where_it_is_allowed() -> None:
    variants = library(hybrid_shape("ME*-"), none=["attention", "moe"])
    assert [v.block for v in variants if v.is_none] == [1, 2]


def test_a_later_round_never_asks_for_what_is_already_cut() -> None:
    parent = hybrid_shape("EE*")
    narrow = parent.blocks[0].with_values({"ffn": 32, "top_k": 4})
    child = parent.with_blocks([narrow, *parent.blocks[1:]])
    variants = library(child, parent, ffn=[16, "100%", 32], top_k=[5])
    assert keys(variants, 0) == ["ffn=32,top_k=4", "ffn=16,top_k=4"]
    assert keys(variants, 1)[-1] == "ffn=16,top_k=5"
    assert len(keys(variants, 1)) == 6


def test_fractions_are_of_the_original_parent() -> None:
    parent = hybrid_shape("E*")
    child = parent.with_blocks([parent.blocks[0].with_values({"ffn": 32}), parent.blocks[1]])
    variants = library(child, parent, ffn=["34%", "66%"])
    assert keys(variants, 0) == ["ffn=32,top_k=6", "ffn=16,top_k=6"]


def test_blocks_that_an_earlier_round_removed_do_not_shift_the_rest() -> None:
    parent = hybrid_shape("EME*")
    child = parent.with_blocks(parent.blocks[1:])
    variants = library(child, parent, ffn=["67%"], state=["75%"])
    assert keys(variants, 0) == ["state=32", "state=24"]
    assert keys(variants, 1) == ["ffn=48,top_k=6", "ffn=32,top_k=6"]


@pytest.mark.parametrize(
    ("fraction", "size"),
    [("75%", 2048), ("60%", 1664), ("100%", 2688), ("1%", 128), ("99%", 2688), ("50%", 1280)],
)
def test_fractions_round_to_the_granularity(fraction: str, size: int) -> None:
    assert size_of(fraction, largest=2688, step=128) == size


def test_the_size_of_the_parent_need_not_be_a_multiple() -> None:
    shape = hybrid_shape("E*", moe_intermediate_size=56)
    assert keys(library(shape, ffn=[56, 48]), 0) == ["ffn=56,top_k=6", "ffn=48,top_k=6"]


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        ({"top_k": [9]}, "top_k 9 is not allowed: above the 8 experts", "5 or 6"),
        ({"top_k": [7]}, "above the 6 of the parent", "5 or 6"),
        ({"ffn": [64]}, "ffn 64 is not allowed: above the 48", "32 or 48"),
        ({"ffn": [40]}, "no positive multiple of 16", "32 or 48; or set library.granularity.ffn"),
        ({"state": [20]}, "state 20 is not allowed: no positive multiple of 8", "16 or 24"),
        ({"state": [40]}, "above the 32 of the parent", "24 or 32"),
        ({"ffn": [0]}, "ffn 0 is not allowed", "16 or 32"),
        ({"ffn": [-16]}, "ffn -16 is not allowed", "16 or 32"),
        ({"ffn": ["150%"]}, "150%", "at most"),
        ({"ffn": ["0%"]}, "0%", "above"),
        ({"ffn": ["many"]}, "many", "62%"),
    ],
)
def test_impossible_values_are_refused(
    values: dict[str, Sequence[int | str]], message: str, hint: str
) -> None:
    shape = hybrid_shape("ME*")
    with pytest.raises(RecipeError) as caught:
        build_library(shape, shape, grid=Grid(values, (), STEPS))
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("state", [80, 100])
def test_r28_states_that_kernels_do_not_have_are_refused(state: int) -> None:
    grid = Grid({"state": [state]}, (), {"state": 32})
    shape = published_shape("super")
    with pytest.raises(RecipeError, match=f"state {state} is not allowed") as caught:
        build_library(shape, shape, grid=grid)
    assert "96" in caught.value.hint


def test_a_grid_for_blocks_that_the_parent_lacks_is_refused() -> None:
    with pytest.raises(RecipeError, match="has no moe blocks"):
        library(hybrid_shape("M*"), ffn=[16])
    with pytest.raises(RecipeError, match="has no mlp blocks"):
        library(hybrid_shape("M*"), none=["mlp"])


def test_the_paper_grid_has_its_size() -> None:
    shape = published_shape("super")
    grid = Grid(
        {"ffn": range(1280, 2689, 256), "top_k": range(4, 23, 2), "state": ["75%"]},
        (),
        {"ffn": 128, "state": 32},
    )
    variants = build_library(shape, shape, grid=grid)
    # Widths 1280, 1536, ... 2560 and the parent's 2688; top-k 4, 6, ... 22.
    assert len(variants) == 40 * 7 * 10 + 40 * 2 + 8
    assert {v.values["state"] for v in variants if "state" in v.values} == {128, 96}
