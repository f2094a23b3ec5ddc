"""The recipe: one strict YAML file that says everything a run does.

Top-level sections hold the defaults of all rounds; each entry of `rounds` overrides what differs.
Every unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, get_args

import yaml
from pydantic import BaseModel, ValidationError

from fretsaw.errors import RecipeError, nearest
from fretsaw.recipe.sections import SECTIONS, Recipe, Round

__all__ = ["Recipe", "Round", "load_recipe", "resolve_recipe"]

UNION_MEMBER = re.compile(r"int|float|str|constrained-\w+|literal\[.*\]")
"""What pydantic appends to the place of an error in a value of several possible types."""


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a YAML recipe, apply `a.b=value` overrides, resolve and check it.

    An override whose path begins with a section's name applies to every round;
    ``rounds.0.distill.tokens=1000`` to one.

    Raises:
        RecipeError: missing or unreadable file, unknown key, or a value that does not fit.
    """
    if not path.is_file():
        raise RecipeError(f"{path} does not exist", "give the path of a recipe (a YAML file)")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise RecipeError(f"{path} is not valid YAML: {why}", "see recipes/demo.yaml") from error
    return resolve_recipe(data, overrides)


def resolve_recipe(data: object, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from plain data: overrides applied, defaults of all rounds merged into each.

    Raises:
        RecipeError: as `load_recipe`.
    """
    if not isinstance(data, dict):
        raise RecipeError("the recipe is empty", "see recipes/demo.yaml for a complete one")
    data = copy.deepcopy(data)
    common: dict[str, Any] = {}
    for override in overrides:
        _apply_override(data, override, common=common)
    defaults = {name: data.pop(name) for name in SECTIONS if name in data}
    rounds = data.get("rounds") or [{}]
    if not isinstance(rounds, list) or not all(isinstance(r, dict) for r in rounds):
        raise RecipeError("rounds: a list of sections was expected", "see recipes/demo.yaml")
    data["rounds"] = [_merge(_merge(defaults, r), common) for r in rounds]
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise _recipe_error(error) from error


def _apply_override(data: dict[str, Any], override: str, *, common: dict[str, Any]) -> None:
    path, separator, text = override.partition("=")
    if not separator or not path.strip():
        raise RecipeError(f"--set {override!r}: a.b=value was expected", "e.g. --set seed=1")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {override!r}: the value is not valid YAML", "quote it") from error
    keys = path.strip().split(".")
    target: Any = common if keys[0] in SECTIONS else data
    try:
        for key in keys[:-1]:
            target = target[int(key)] if isinstance(target, list) else target.setdefault(key, {})
        target[int(keys[-1]) if isinstance(target, list) else keys[-1]] = value
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"--set {override!r}: the recipe has no place {path!r}",
            "see `fretsaw recipe RECIPE --resolved` for all places",
        ) from error


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`: mappings are merged key by key, a budget is replaced whole."""
    merged = copy.deepcopy(dict(base))
    for key, value in top.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and key != "budget":
            merged[key] = _merge(old, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _recipe_error(error: ValidationError) -> RecipeError:
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    place = ".".join(str(part) for part in first["loc"] if not UNION_MEMBER.fullmatch(str(part)))
    if first["type"] == "extra_forbidden":
        known = _known_keys(first["loc"])
        guess = nearest(str(first["loc"][-1]), known)
        hint = f"did you mean {guess!r}?" if guess else f"known here: {', '.join(sorted(known))}"
        return RecipeError(f"unknown recipe key {place!r}", hint)
    if first["type"] == "missing":
        return RecipeError(f"recipe key {place!r} is missing", "see recipes/demo.yaml")
    value = first.get("input")
    return RecipeError(
        f"recipe key {place!r} is {value!r}: {first['msg']}",
        "see `fretsaw recipe RECIPE --resolved` and docs/recipe.md",
    )


def _known_keys(place: tuple[int | str, ...]) -> set[str]:
    model: type[BaseModel] = Recipe
    for part in place[:-1]:
        field = model.model_fields.get(str(part))
        inner = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next((t for t in inner if _is_section(t)), model)
    known = set(model.model_fields)
    return known | (set(SECTIONS) if model is Recipe else set())


def _is_section(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
