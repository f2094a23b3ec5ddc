"""The package as its users meet it: names, help, what goes in and how results look."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

import fretsaw
from fretsaw.reports.shown import Shown
from fretsaw.reports.verification import Verified
from tests.pico import write_pico_checkpoint
from tests.shapes import CONFIGS

FUNCTIONS = [n for n in fretsaw.__all__ if inspect.isfunction(getattr(fretsaw, n))]
RECIPE = {"parent": "p", "data": {"path": "d"}, "search": {"budget": {"params": "80%"}}}


@pytest.fixture
def pico(tmp_path: Path) -> Path:
    write_pico_checkpoint(tmp_path / "pico", seed=1)
    return tmp_path / "pico"


def test_u3_every_name_is_there_and_listed() -> None:
    assert set(fretsaw.__all__) == set(fretsaw.PLACES)
    assert set(fretsaw.__all__) <= set(dir(fretsaw))
    for name in fretsaw.__all__:
        assert callable(getattr(fretsaw, name)), name
    assert {"quantize", "cost", "report" if "report" in FUNCTIONS else "plan"} <= set(FUNCTIONS)
    with pytest.raises(AttributeError, match="has no attribute 'comprss'"):
        fretsaw.comprss  # noqa: B018


def test_u3_help_lists_every_function_with_a_line() -> None:
    told = inspect.getdoc(fretsaw) or ""
    assert [name for name in FUNCTIONS if name not in told] == []
    for name in FUNCTIONS:
        text = inspect.getdoc(getattr(fretsaw, name)) or ""
        for parameter in inspect.signature(getattr(fretsaw, name)).parameters:
            assert name in ("estimate", "version") or f"{parameter}: " in text, (name, parameter)


@pytest.mark.parametrize(
    ("name", "keyword", "nearest"),
    [
        ("plan", "hardwear", "hardware"),
        ("compress", "outt", "out"),
        ("quantize", "seqences", "sequences"),
        ("score", "round_numbr", "round_number"),
    ],
)
def test_u3_an_unknown_keyword_names_the_nearest(name: str, keyword: str, nearest: str) -> None:
    with pytest.raises(
        TypeError, match=rf"{name}\(\) got .* '{keyword}': did you mean '{nearest}'"
    ):
        getattr(fretsaw, name)("x", **{keyword: 1})
    with pytest.raises(TypeError, match="it takes "):
        getattr(fretsaw, name)("x", xyzzy=1)


def test_u3_models_are_paths_strings_mappings_or_shipped() -> None:
    config = json.loads((CONFIGS / "super.json").read_text())
    given = ["@super", "@SUPER", str(CONFIGS / "super.json"), CONFIGS / "super.json", config]
    assert len({fretsaw.describe(model).params for model in given}) == 1
    plans = [fretsaw.plan(m, "@puzzle", hardware="8xH100", context=128_000) for m in given]
    held = {p.models[0].outlook.capacity.max_concurrency for p in plans}
    assert len(held) == 1
    assert [p.models[0].name for p in plans] == ["super"] * 4 + ["model"]
    again = fretsaw.plan("@super", "@puzzle", hardware="8xH100", context="128k", memory="80GB")
    assert again.to_json()["assumptions"]["memory_bytes_per_gpu"] == 80 * 10**9


def test_u3_recipes_are_paths_strings_mappings_or_recipes(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(json.dumps(RECIPE))
    loaded = fretsaw.load_recipe(str(file))
    assert isinstance(loaded, fretsaw.Recipe)
    assert fretsaw.load_recipe(file) == fretsaw.load_recipe(RECIPE) == fretsaw.load_recipe(loaded)
    for overrides in (["seed=7", "distill.tokens=2000"], {"seed": 7, "distill.tokens": 2000}):
        for recipe in (file, RECIPE, loaded):
            changed = fretsaw.load_recipe(recipe, overrides)
            assert (changed.seed, changed.rounds[0].distill.tokens) == (7, 2000)
    with pytest.raises(fretsaw.RecipeError, match="'distil'"):
        fretsaw.compress(RECIPE | {"distil": {}}, out=tmp_path / "run")
    with pytest.raises(fretsaw.CheckpointError, match="p"):
        fretsaw.compress(RECIPE, out=str(tmp_path / "run"))


def test_an_empty_path_is_not_the_folder_one_is_in(pico: Path) -> None:
    for call in (
        lambda: fretsaw.describe(""),
        lambda: fretsaw.compress("", out="x"),
        lambda: fretsaw.compress(RECIPE, out=""),
        lambda: fretsaw.rank(RECIPE, out=""),
        lambda: fretsaw.quantize(pico, out="", to="nvfp4"),
        lambda: fretsaw.export(pico, engine="vllm", out=""),
        lambda: fretsaw.serve(pico, engine="vllm", workload="8/8", against=""),
    ):
        with pytest.raises(fretsaw.RecipeError, match="is an empty path"):
            call()
    with pytest.raises(fretsaw.RecipeError, match="unknown number format ''"):
        fretsaw.plan("@nano", hardware="H100", context="8k", state_dtype="")
    for length in (0.5, float("nan"), float("inf")):
        with pytest.raises(fretsaw.RecipeError, match="is not 1 or more"):
            fretsaw.plan("@nano", hardware="H100", context="8k", acceptance_length=length)


def test_u3_a_result_is_a_line_a_table_and_html(pico: Path) -> None:
    results: list[Shown] = [
        fretsaw.describe(pico),
        fretsaw.plan("@super", "@puzzle", hardware="8xH100", context="128k"),
        fretsaw.verify(str(pico), generate=False),
    ]
    assert isinstance(results[2], Verified)
    for result in results:
        line = repr(result)
        assert line.startswith(f"<{type(result).__name__} ")
        assert len(line) < 300
        assert "\n" not in line
        table = str(result)
        assert "│" in table
        assert "\x1b" not in table
        html = result._repr_html_()
        assert html.startswith("<pre")
        assert all(word in html for word in table.splitlines()[-1].split()[:3])


def test_u22_an_engine_has_one_name_however_it_is_asked_for() -> None:
    for word in ("llama.cpp", "llamacpp", "GGUF"):
        plan = fretsaw.plan("@nano", hardware="H100", context="8k", to="bf16", engine=word)
        assert plan.engine == "llama.cpp"


def test_u3_a_call_without_need_of_torch_says_what_is_wrong() -> None:
    with pytest.raises(fretsaw.CheckpointError, match="config alone"):
        fretsaw.verify("@super")
    with pytest.raises(fretsaw.RecipeError, match="unknown engine"):
        fretsaw.plan("@super", hardware="H100", context="8k", engine="vlm")
