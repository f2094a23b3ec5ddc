"""Engines that a recipe names refuse or warn before work begins."""

import pytest

from fretsaw.errors import RecipeError
from fretsaw.recipe import resolve_recipe
from fretsaw.recipe.sections import Granularity, Library
from fretsaw.stages.check import check_engines
from tests.shapes import published_shape

SUPER = published_shape("super")


def library(**settings: object) -> Library:
    return Library.model_validate(settings)


def test_a_grid_that_an_engine_refuses_stops_the_run_and_names_engine_and_sizes() -> None:
    settings = library(
        moe={"ffn": [1288]}, granularity={"ffn": 8}, engines=["vllm"], precision="nvfp4"
    )
    with pytest.raises(RecipeError, match="vLLM: ffn 1288 in 40 blocks") as caught:
        check_engines(SUPER, settings)
    assert "nearest: 1280 or 1296" in caught.value.message
    assert "leave vllm out of library.engines" in caught.value.hint


def test_what_is_slow_or_untested_is_said_and_notes_are_not() -> None:
    settings = library(
        moe={"top_k": [9, 12, 22]},
        mamba={"state": [80]},
        granularity={"state": 16},
        engines=["vllm", "tensorrt-llm"],
    )
    warnings = check_engines(SUPER, settings)
    assert [text.split(" in ")[0] for text in warnings] == [
        "vLLM: state 80",
        "TensorRT-LLM: state 80",
        "TensorRT-LLM: top_k 9, 12",
    ]


def test_the_papers_grid_suits_the_engines_of_a_recipe_that_names_none() -> None:
    settings = library(moe={"ffn": [1280, 1792], "top_k": [4, 18]}, mamba={"state": ["75%"]})
    assert check_engines(SUPER, settings) == []
    assert check_engines(SUPER, settings.model_copy(update={"precision": "nvfp4"})) == []


def test_an_engine_that_dequantises_a_format_is_a_warning() -> None:
    settings = library(moe={"ffn": [1280]}, engines=["transformers"], precision="nvfp4")
    [warning] = check_engines(SUPER, settings)
    assert "dequantises the weights on loading" in warning


def test_granularity_comes_from_the_engines_where_the_recipe_gives_none() -> None:
    assert library().granularity == Granularity(ffn=128, state=32)
    assert library(engines=["llama.cpp"]).granularity == Granularity(ffn=64, state=1)
    assert library(granularity={"ffn": 8}).granularity == Granularity(ffn=8, state=32)
    assert library(engines=[]).granularity == Granularity(ffn=1, state=1)


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"engines": ["vlm"]}, "unknown engine 'vlm'", "did you mean 'vllm'?"),
        ({"precision": "nvpf4"}, "unknown precision 'nvpf4'", "did you mean 'nvfp4'?"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(
    settings: dict[str, object], message: str, hint: str
) -> None:
    data = {"parent": "p", "data": {"path": "d"}, "library": settings}
    with pytest.raises(RecipeError, match=message) as caught:
        resolve_recipe(data)
    assert hint in caught.value.hint
