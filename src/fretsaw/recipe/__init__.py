"""The recipe: one strict YAML file that says everything a run does.

Top-level sections hold the defaults of all rounds; each entry of `rounds` overrides what differs.
Every unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from fretsaw.errors import RecipeError
from fretsaw.recipe.origin import ROUNDS, Origin
from fretsaw.recipe.overrides import Parts, merge, parse_overrides
from fretsaw.recipe.reading import EXAMPLE, Place, read_document
from fretsaw.recipe.refusals import recipe_error, shown
from fretsaw.recipe.sections import SECTIONS, Recipe, Round

__all__ = ["Recipe", "Round", "load_recipe", "resolve_recipe"]


def load_recipe(path: Path | str, overrides: Iterable[str] | None = None) -> Recipe:
    """Read a YAML recipe, apply `a.b=value` overrides, resolve and check it.

    An override whose path begins with a section's name applies to every round, whatever the round
    itself says; ``rounds.1.distill.tokens=1000`` to the first, before one of all rounds.

    Raises:
        RecipeError: missing or unreadable file, unknown key, a key given twice, or a value that
            does not fit.
    """
    document = read_document(Path(path))
    lines = {place: f"line {line} of {path}" for place, line in document.lines.items()}
    return resolve_recipe(document.data, overrides, lines=lines)


def resolve_recipe(
    data: object,
    overrides: Iterable[str] | None = None,
    *,
    lines: Mapping[Place, str] | None = None,
) -> Recipe:
    """A recipe from plain data: overrides applied, defaults of all rounds merged into each.

    Args:
        data: A mapping, as YAML or JSON gives it.
        overrides: ``a.b=value``, as `load_recipe`.
        lines: Where each value was read, ``line 7 of FILE``, for messages.

    Raises:
        RecipeError: as `load_recipe`.
    """
    if data is None:
        raise RecipeError("the recipe is empty", EXAMPLE)
    if not isinstance(data, Mapping):
        what = "a list" if isinstance(data, list) else shown(data)
        raise RecipeError(f"a recipe is a mapping of keys to values, not {what}", EXAMPLE)
    data = copy.deepcopy(dict(data))
    sets = parse_overrides(overrides or ())
    written = data.pop(ROUNDS, [{}])
    if not isinstance(written, list) or not written:
        raise RecipeError(
            f"rounds is {shown(written)}: expected a list with an entry for each round",
            "remove `rounds` for a single round",
        )
    if odd := [i for i, one in enumerate(written, start=1) if not isinstance(one, dict)]:
        raise RecipeError(
            f"rounds: entry {odd[0]} is {shown(written[odd[0] - 1])}, not a section",
            "write {} for a round that changes nothing",
        )
    defaults = {name: data.pop(name) for name in SECTIONS if name in data}
    rounds = [merge(defaults, one) for one in written]
    parts = Parts(data, rounds, shared=SECTIONS)
    for override in sets:
        parts.apply(override)
    origin = Origin(written, tuple(SECTIONS), lines or {}, {one.place: one.text for one in sets})
    try:
        return Recipe.model_validate({**data, ROUNDS: rounds})
    except ValidationError as error:
        raise recipe_error(error, origin=origin, top=Recipe) from error
