"""What is wrong with a recipe, in our words: which key, where it stands, what was expected."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, get_args

from pydantic import BaseModel, ValidationError

from fretsaw.errors import RecipeError, nearest
from fretsaw.recipe.origin import Origin
from fretsaw.recipe.reading import EXAMPLE
from fretsaw.recipe.values import REFUSED

LONGEST = 60
SEE = "see `fretsaw recipe RECIPE --resolved` and docs/recipe.md"

EXPECTED: Mapping[str, str] = {
    "model_type": "expected a section with keys",
    "model_attributes_type": "expected a section with keys",
    "dict_type": "expected a section with keys",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "too_short": "expected at least one entry",
    "literal_error": "expected {expected}",
}
"""What was expected, by the type of pydantic's error; `{}` are filled from its context."""


def recipe_error(error: ValidationError, *, origin: Origin, top: type[BaseModel]) -> RecipeError:
    """The first fault of a recipe, as its writer can find and mend it.

    Args:
        error: What pydantic found.
        origin: Where each value stands.
        top: The whole recipe.
    """
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    kind, context = first["type"], first.get("ctx", {})
    place = (*first["loc"], context["key"]) if "key" in context else first["loc"]
    name, where = origin.name(place), origin.where(place)
    if kind == "extra_forbidden":
        known = known_keys(top, first["loc"][:-1], also=origin.sections)
        guess = nearest(str(place[-1]), known)
        hint = f"did you mean {guess!r}?" if guess else f"known here: {', '.join(sorted(known))}"
        return RecipeError(f"unknown recipe key {name!r}{where}", hint)
    if kind == "invalid_key":
        inside = origin.name(place[:-1]) or "the recipe"
        return RecipeError(f"a key of {inside} is {shown(place[-1])}: expected text", EXAMPLE)
    if kind == "missing":
        return RecipeError(f"recipe key {name!r} is missing", "see recipes/demo.yaml")
    value = context.get("value", first.get("input"))
    if kind == REFUSED:
        expected, hint = context["expected"], context["hint"]
    else:
        words = {key: _options(str(part)) for key, part in context.items()}
        expected = EXPECTED.get(kind, "expected a value of another kind").format(**words)
        hint = ""
    if value is None:
        message = f"recipe key {name!r}{where} is empty: {expected}"
        return RecipeError(message, hint or "give it a value, or remove the line")
    return RecipeError(f"recipe key {name!r}{where} is {shown(value)}: {expected}", hint or SEE)


def shown(value: object) -> str:
    """A value as YAML has it, cut where it is long."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    text = json.dumps(value, default=str, ensure_ascii=False)
    if isinstance(value, str):
        text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _options(text: str) -> str:
    """Pydantic's `'a', 'b' or 'c'` without the quotes."""
    return text.replace("'", "")


def known_keys(
    top: type[BaseModel], place: Iterable[int | str], *, also: Iterable[str]
) -> set[str]:
    """Keys that may stand in a section; at the top also the sections of all rounds."""
    model = top
    for part in place:
        field = model.model_fields.get(str(part))
        inner = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next((t for t in inner if _is_section(t)), model)
    return set(model.model_fields) | (set(also) if model is top else set())


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
