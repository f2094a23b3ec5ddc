"""Every number of every section, and every word, against values of all other kinds: generated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from fretsaw.errors import RecipeError
from fretsaw.recipe import resolve_recipe
from fretsaw.recipe.sections import SECTIONS, Recipe, Section

NUMBERS = (True, False, "fast", "1e-3", "", [1], {"a": 1}, math.nan, math.inf, -math.inf, -1, 1e40)
TEXTS = (True, 5, 1.5, ["a"], {"a": 1}, "", " ", "a\0b", None)
OF_PYDANTIC = ("Input should", " valid ", "pydantic", "type=", "input_", "instance of")
FAST = {"hardware": "8xB200", "workload": "8k/64k", "user_tokens_per_s": 100, "speedup": 2}


def _numbers(model: type[BaseModel], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Places of all fields that hold an int or a float, lists of them with their index."""
    for name, field in model.model_fields.items():
        inner = (field.annotation, *get_args(field.annotation))
        section = next((t for t in inner if isinstance(t, type) and issubclass(t, Section)), None)
        if section is not None:
            index = ("1",) if tuple in (getattr(field.annotation, "__origin__", None),) else ()
            yield from _numbers(section, (*place, name, *index))
        elif {int, float} & _kinds(field.annotation):
            is_list = getattr(field.annotation, "__origin__", None) is tuple
            yield (*place, name, *(("1",) if is_list else ()))


def _kinds(annotation: Any) -> set[Any]:
    """All types that an annotation is made of."""
    return {str(annotation), annotation}.union(*map(_kinds, get_args(annotation)))


OF_THE_RUN: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Recipe.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
ROOTS: dict[str, type[BaseModel]] = {**SECTIONS, **OF_THE_RUN}
PLACES = [("seed",), *(p for name, model in ROOTS.items() for p in _numbers(model, (name,)))]


def _data(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A recipe whose value at a place is this one."""
    inner: Any = value
    if place == ("data", "text_key"):
        return {"parent": "p", "data": {"path": "d", "text_key": value}}
    for part in reversed(place[1:]):
        inner = [inner] if part == "1" else {part: inner}
        if part == "serve":
            inner = {"serve": [FAST | inner["serve"][0]]}
    data: dict[str, Any] = {"parent": "p", "data": {"path": "d"}}
    return data | {place[0]: inner}


def test_all_numbers_are_found() -> None:
    names = {".".join(place) for place in PLACES}
    assert {"library.moe.ffn.1", "search.budget.serve.1.speedup", "distill.recovery"} <= names
    assert len(names) >= 40


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_f2_a_number_is_a_number_and_the_error_names_its_key(place: tuple[str, ...]) -> None:
    for value in NUMBERS:
        name = ".".join(place)
        with pytest.raises(RecipeError) as caught:
            resolve_recipe(_data(place, value))
        assert f"recipe key '{name}' is " in caught.value.message, value
        _is_in_our_words(caught.value)


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_f2_zero_half_and_absurd_are_taken_as_they_are_or_refused(place: tuple[str, ...]) -> None:
    for value in (0, 0.5, 1, 1.0, 10**18, 1e18):
        try:
            recipe = resolve_recipe(_data(place, value))
        except RecipeError as error:
            _is_in_our_words(error)
            continue
        found: Any = json.loads(recipe.to_json())
        for part in place if place[0] in ("seed", *OF_THE_RUN) else ("rounds", "1", *place):
            found = found[int(part) - 1] if part.isdecimal() else found[part]
        assert found == value, "nothing is rounded or cut off without a word"


@pytest.mark.parametrize(
    "place",
    [("parent",), ("data", "path"), ("data", "text_key"), ("library", "precision")],
    ids=str,
)
@pytest.mark.parametrize("value", TEXTS, ids=repr)
def test_f2_text_is_text(place: tuple[str, ...], value: Any) -> None:
    with pytest.raises(RecipeError, match=f"recipe key '{'.'.join(place)}' is") as caught:
        resolve_recipe(
            {"parent": "p", **_data(place, value)}
            | ({"parent": value} if place[0] == "parent" else {})
        )
    _is_in_our_words(caught.value)


@pytest.mark.parametrize("name", list(ROOTS))
@pytest.mark.parametrize("value", [None, True, 5, "a", [], [1]], ids=repr)
def test_u20_a_section_is_a_section(name: str, value: Any) -> None:
    with pytest.raises(RecipeError, match=f"recipe key '{name}' is .*expected a section") as caught:
        resolve_recipe({"parent": "p", "data": {"path": "d"}, name: value})
    _is_in_our_words(caught.value)


def _is_in_our_words(error: RecipeError) -> None:
    text = f"{error.message} {error.hint}"
    assert not [word for word in OF_PYDANTIC if word in text], text
    assert "rounds.0" not in text
    assert error.hint


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("distill.tokens", "10M", 10_000_000),
        ("distill.tokens", "1e6", 1_000_000),
        ("distill.tokens", "1_000", 1000),
        ("distill.tokens", "'1,000,000'", 1_000_000),
        ("distill.tokens", "1.5k", 1500),
        ("distill.sequence_length", "4k", 4000),
        ("calibrate.sequences", "2k", 2000),
        ("library.repair_sequences", "1k", 1000),
        ("build.shard_bytes", "128KiB", 131_072),
        ("distill.warmup_fraction", "5%", 0.05),
        ("distill.recovery", "50%", 0.5),
    ],
)
def test_u12_quantities_are_read_wherever_one_is_meant(key: str, text: str, value: float) -> None:
    recipe = resolve_recipe({"parent": "p", "data": {"path": "d"}}, [f"{key}={text}"])
    section, name = key.split(".")
    found = getattr(getattr(recipe.rounds[0], section), name)
    assert (found, type(found)) == (value, type(value)), "the resolved recipe has plain numbers"


def test_u12_budgets_and_contexts_are_plain_numbers_when_resolved() -> None:
    budget = {"params": "70B", "bytes_bf16": "5GiB", "moe_params": "62%"}
    long = {"hardware": "H100", "context": "1M", "concurrency": "1k"}
    recipe = resolve_recipe(
        {"parent": "p", "data": {"path": "d"}, "search": {"budget": {**budget, "serve": [long]}}}
    )
    found = recipe.rounds[0].search.budget
    assert found.costs == {"params": 70 * 10**9, "bytes_bf16": 5 * 2**30, "moe_params": "62%"}
    assert (found.serve[0].context, found.serve[0].concurrency) == (1_000_000, 1000)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("distill.tokens", "1,5", "--resolved"),
        ("distill.tokens", "10 ells", "--resolved"),
        ("distill.warmup_fraction", 10, "did you mean 10%?"),
        ("build.shard_bytes", 5, 'did you mean "5GB"?'),
        ("library.moe.ffn.1", 0.75, "did you mean 75%?"),
        ("search.budget.moe_params", 0.6, '"60%"'),
        ("search.budget.moe_params", "150%", "no child is larger"),
        ("search.budget.moe_params", True, "--resolved"),
        ("search.budget.moe_params", math.nan, "--resolved"),
        ("search.budget.moe_params", -5, "--resolved"),
    ],
)
def test_u12_what_was_probably_meant_is_said(key: str, value: Any, hint: str) -> None:
    with pytest.raises(RecipeError, match=f"'{key}' is") as caught:
        resolve_recipe(_data(tuple(key.split(".")), value))
    assert hint in caught.value.hint


def test_f12_an_override_given_twice_is_refused() -> None:
    data = {"parent": "p", "data": {"path": "d"}}
    for sets in (["seed=1", "seed=2"], ["distill={tokens: 1}", "distill.tokens=2"]):
        with pytest.raises(RecipeError, match="give one place two values"):
            resolve_recipe(data, sets)
