"""The recipe: strict, merged round by round, overridable, and the same again when resolved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fretsaw.errors import RecipeError
from fretsaw.recipe import Recipe, load_recipe, resolve_recipe

ROOT = Path(__file__).parents[2]


def _data(**more: Any) -> dict[str, Any]:
    return {"parent": "p", "data": {"path": "d"}, **more}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        yaml.safe_dump(
            _data(
                distill={"tokens": 100, "learning_rate": 0.5},
                search={"budget": {"params": "90%", "moe_params": "80%"}, "n_best": 2},
                rounds=[{}, {"distill": {"tokens": 200}, "search": {"budget": {"params": "50%"}}}],
            )
        )
    )
    return path


def test_the_shipped_recipe_is_in_order() -> None:
    recipe = load_recipe(ROOT / "recipes" / "demo.yaml")
    assert len(recipe.rounds) == 3


def test_a_recipe_needs_a_parent_and_text_and_has_one_round() -> None:
    recipe = resolve_recipe(_data())
    assert (recipe.parent, recipe.data.path, len(recipe.rounds)) == ("p", "d", 1)
    assert recipe.data.splits.validation == "validation"
    for key in ("parent", "data"):
        with pytest.raises(RecipeError, match=f"recipe key '{key}' is missing"):
            resolve_recipe({k: v for k, v in _data().items() if k != key})


def test_a_round_overrides_key_by_key_but_a_budget_whole(file: Path) -> None:
    first, second = load_recipe(file).rounds

    assert first.distill.tokens == 100
    assert (second.distill.tokens, second.distill.learning_rate) == (200, 0.5)
    assert first.search.budget.costs == {"params": "90%", "moe_params": "80%"}
    assert second.search.budget.costs == {"params": "50%"}
    assert second.search.n_best == 2


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("seed=7", {"seed": 7}),
        ("data.path=elsewhere", {"path": "elsewhere"}),
        ("distill.tokens=300", {"first": 300, "second": 300}),
        ("rounds.1.distill.tokens=300", {"first": 300, "second": 200}),
        ("rounds.2.distill.tokens=300", {"first": 100, "second": 300}),
        (
            "search.budget.params=40%",
            {"budget": [{"params": "40%", "moe_params": "80%"}, {"params": "40%"}]},
        ),
        ("search.budget={params: 10%}", {"budget": [{"params": "10%"}] * 2}),
        ("distill.learning_rate=1e-3", {"rate": 1e-3}),
        ("compute.threads=null", {"threads": None}),
    ],
)
def test_an_override_reaches_its_place(file: Path, override: str, found: dict[str, Any]) -> None:
    recipe = load_recipe(file, [override])
    first, second = recipe.rounds
    values = {
        "seed": recipe.seed,
        "path": recipe.data.path,
        "first": first.distill.tokens,
        "second": second.distill.tokens,
        "budget": [r.search.budget.costs for r in recipe.rounds],
        "rate": first.distill.learning_rate,
        "threads": recipe.compute.threads,
    }
    assert {key: values[key] for key in found} == found


def test_an_override_of_one_round_wins_over_one_of_all(file: Path) -> None:
    for sets in (["rounds.2.distill.tokens=7", "distill.tokens=6"],) * 2:
        recipe = load_recipe(file, sets[::-1])
        assert [r.distill.tokens for r in recipe.rounds] == [6, 7]


def test_the_resolved_recipe_is_a_recipe_of_the_same_meaning(file: Path) -> None:
    recipe = load_recipe(file, ["seed=3"])
    assert resolve_recipe(json.loads(recipe.to_json())) == recipe
    assert resolve_recipe(yaml.safe_load(recipe.to_json())) == recipe


def test_the_data_given_is_not_changed() -> None:
    data = _data(distill={"tokens": 1}, rounds=[{"distill": {"batch_size": 2}}])
    before = json.dumps(data)
    resolve_recipe(data, ["distill.tokens=9", "seed=4"])
    assert json.dumps(data) == before


@pytest.mark.parametrize(
    ("data", "place", "hint"),
    [
        (_data(sed=1), "'sed'", "did you mean 'seed'?"),
        (_data(scoring={}), "'scoring'", "did you mean 'score'?"),
        (_data(data={"path": "d", "textkey": "t"}), "'data.textkey'", "'text_key'"),
        (
            _data(data={"path": "d", "splits": {"valid": "v"}}),
            "'data.splits.valid'",
            "'validation'",
        ),
        (_data(library={"mo": {}}), "'library.mo'", "'moe'"),
        (_data(rounds=[{}, {"heal": {}}]), "'rounds.2.heal'", "known here: build, calibrate"),
        (_data(library={"moe": {"width": [1]}}), "'library.moe.width'", "ffn, top_k"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(
    data: dict[str, Any], place: str, hint: str
) -> None:
    with pytest.raises(RecipeError, match=f"unknown recipe key {place}") as error:
        resolve_recipe(data)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (_data(seed=-1), "'seed' is -1"),
        (_data(compute={"threads": 0}), "'compute.threads' is 0"),
        (_data(compute={"dtype": "int4"}), "'compute.dtype' is 'int4'"),
        (_data(distill={"warmup_fraction": 1.5}), "'distill.warmup_fraction' is 1.5"),
        (_data(distill={"learning_rate": "fast"}), "'distill.learning_rate' is 'fast'"),
        (_data(library={"none": ["norm"]}), r"'library.none.1' is 'norm'"),
        (_data(search={"time_limit_s": float("inf")}), "'search.time_limit_s' is .inf"),
        (_data(data="d"), "'data' is 'd'"),
        (_data(rounds=[1]), "rounds: entry 1 is 1, not a section"),
        (_data(rounds={"a": 1}), "rounds is {.a.: 1}: expected a list"),
        ([1], "a recipe is a mapping of keys to values, not a list"),
        (None, "the recipe is empty"),
    ],
)
def test_a_value_that_does_not_fit_is_named(data: object, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        resolve_recipe(data)


def test_sections_are_frozen() -> None:
    recipe = resolve_recipe(_data())
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 2
    assert isinstance(recipe, Recipe)


FAST = {"hardware": "8xB200", "workload": "8k/64k", "user_tokens_per_s": 100, "speedup": 2}
LONG = {"hardware": "H100", "context": "1M", "concurrency": 8}


def _serving(*entries: dict[str, Any], **budget: Any) -> dict[str, Any]:
    return _data(search={"budget": {**budget, "serve": list(entries)}})


def test_serving_terms_stand_beside_plain_budgets() -> None:
    recipe = resolve_recipe(_serving(FAST, LONG, params="75%"))
    budget = recipe.rounds[0].search.budget
    assert budget.costs == {"params": "75%"}
    assert [str(one) for one in budget.serve] == [
        "speedup 2, user_tokens_per_s 100, 8k/64k, 8xB200",
        "concurrency 8, context 1M, H100",
    ]
    assert resolve_recipe(json.loads(recipe.to_json())) == recipe


@pytest.mark.parametrize(
    ("entry", "said", "hint"),
    [
        (FAST | {"hardware": "8xB20"}, "unknown hardware 'B20'", "did you mean 'B200'?"),
        (FAST | {"hardware": "eight"}, "unknown hardware 'eight'", "this-machine"),
        (FAST | {"hardware": "0xB200"}, "'0xB200' is no hardware", "8xB200"),
        (FAST | {"workload": "8k"}, "'8k' is no workload", "8k/64k"),
        (FAST | {"workload": "8k/0"}, "has no tokens", "8k/64k"),
        (FAST | {"layout": "tp2 tp4"}, "is no layout", "tp2 ep2"),
        (FAST | {"format": "nvfp5"}, "unknown precision 'nvfp5'", "'nvfp4'"),
        (FAST | {"engine": "vlm"}, "unknown engine 'vlm'", "'vllm'"),
        (FAST | {"server_tokens_per_s": 9}, "one of speedup and", "speedup: 2"),
        (FAST | {"concurrency": 9}, "one of user_tokens_per_s and concurrency", "speedup: 2"),
        (FAST | {"context": "1M"}, "and no context; given: speedup", "speedup: 2"),
        ({"hardware": "H100", "workload": "1k/1k"}, "given: none of them", "speedup: 2"),
        ({"hardware": "H100"}, "neither a workload, nor a context", "context: 1M"),
        (LONG | {"speedup": 2}, "neither a workload, nor a context", "context: 1M"),
        (LONG | {"joules_per_token": 2}, "for a workload on hardware", "8xB200"),
        (FAST | {"hardware": "this-machine", "layout": "tp2"}, "those of the run", "compute.dtype"),
    ],
)
def test_serving_terms_that_make_no_sense_are_refused(
    entry: dict[str, Any], said: str, hint: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        resolve_recipe(_serving(entry))
    assert caught.value.message.startswith("search.budget.serve (")
    assert said in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (FAST | {"speedup": 0}, "serve.1.speedup' is 0"),
        (FAST | {"user_tokens_per_s": -100}, "serve.1.user_tokens_per_s' is -100"),
        (LONG | {"context": "many"}, "serve.1.context' is 'many'"),
        (LONG | {"concurrency": 0}, "serve.1.concurrency' is 0"),
        (FAST | {"memory_fraction": -1}, "serve.1.memory_fraction' is -1"),
        ({"workload": "8k/64k"}, "serve.1.hardware' is missing"),
    ],
)
def test_numbers_of_serving_terms_are_above_zero(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        resolve_recipe(_serving(entry))


def test_an_unknown_serving_key_is_named_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"'search\.budget\.serve\.1\.speed'") as error:
        resolve_recipe(_serving(FAST | {"speed": 3}))
    assert "'speedup'" in error.value.hint
