"""What callers give: recipes, models and keywords; checked before anything heavy is imported."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from fretsaw.core.shipped import MARK, shipped_config
from fretsaw.errors import CheckpointError, RecipeError, nearest

if TYPE_CHECKING:
    from fretsaw.recipe import Recipe

RecipeLike: TypeAlias = "Recipe | Mapping[str, Any] | str | Path"
"""A recipe, its keys as a mapping, or the path of its YAML file."""

ModelLike: TypeAlias = str | Path | Mapping[str, Any]
"""A checkpoint folder, a config.json, a config as a mapping, or one that ships: ``@super``."""

Overrides: TypeAlias = Iterable[str] | Mapping[str, Any]
"""``["distill.tokens=1000"]`` or ``{"distill.tokens": 1000}``."""

P = ParamSpec("P")
R = TypeVar("R")


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with an unknown keyword refused by the name of the nearest known one."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                guess = nearest(name, known)
                hint = f"did you mean {guess!r}?" if guess else f"it takes {', '.join(known)}"
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}: {hint}"
                )
        return function(*args, **kwargs)

    return checked


def recipe_of(recipe: RecipeLike, overrides: Overrides = ()) -> Recipe:
    """A recipe from whatever is given for one.

    Raises:
        RecipeError: as `fretsaw.recipe.load_recipe`.
    """
    from fretsaw.recipe import Recipe, load_recipe, resolve_recipe  # noqa: PLC0415

    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    if isinstance(recipe, Recipe):
        return resolve_recipe(json.loads(recipe.to_json()), overrides) if overrides else recipe
    if isinstance(recipe, Mapping):
        return resolve_recipe(dict(recipe), overrides)
    return load_recipe(some_path(recipe, "recipe"), overrides)


def some_path(path: str | Path, what: str) -> Path:
    """A path that says something: an empty string would be the folder one is in.

    Raises:
        RecipeError: it is empty.
    """
    if not str(path):
        raise RecipeError(f"{what} is an empty path", 'give ".", if this folder is meant')
    return Path(path)


def model_path(model: str | Path) -> Path:
    """Where a model lies: a folder, a config file, or a config that comes with fretsaw.

    Raises:
        CheckpointError: nothing is there, or no config of that name.
    """
    path = some_path(model, "model")
    if not path.exists() and str(model).startswith(MARK):
        return shipped_config(str(model))
    if not path.exists():
        raise CheckpointError(
            f"{path} does not exist; a checkpoint folder in Hugging Face layout was expected",
            "give the folder that holds config.json and *.safetensors, or a config.json itself",
        )
    return path


def checkpoint_path(model: str | Path) -> Path:
    """Where a model with weights lies.

    Raises:
        CheckpointError: nothing is there, or no folder.
    """
    path = model_path(model)
    if not path.is_dir():
        raise CheckpointError(
            f"{model} is a config alone; a folder with weights was expected",
            "give the folder that holds config.json and *.safetensors",
        )
    return path


def model_of(model: ModelLike) -> Path | Mapping[str, Any]:
    """A config as it is, or where the model lies.

    Raises:
        CheckpointError: as `model_path`.
    """
    return model if isinstance(model, Mapping) else model_path(model)


def optional_path(path: str | Path | None) -> Path | None:
    """A path, where one is given."""
    return None if path is None else some_path(path, "a file")
