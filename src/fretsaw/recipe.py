"""The recipe: one strict YAML file that says everything a run does.

Top-level sections hold the defaults of all rounds; each entry of `rounds` overrides what differs.
Every unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fretsaw.core.engines import common_granularity, engine_named
from fretsaw.core.precision import preset
from fretsaw.errors import RecipeError, nearest

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
MetricName = Literal["kl", "loss", "hidden"]
Repair = Literal["none", "experts", "output", "both"]


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys; numbers may be text, as YAML reads 1e-3."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Splits(Section):
    """Names of the splits in the data set."""

    train: str = "train"
    calibration: str = "calibration"
    validation: str = "validation"


class Data(Section):
    """Where the text comes from: a folder with splits, or one file or folder to be split."""

    path: str
    text_key: str = "text"
    splits: Splits = Splits()


class Compute(Section):
    """Device, working dtype and threads of the running model."""

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Positive | None = None
    batch_sequences: Positive = 8


class Calibrate(Section):
    """Text for the statistics of expert channels and Mamba state."""

    sequences: Positive = 128
    sequence_length: Positive = 1024


class Rank(Section):
    """How statistics become an order of units."""

    min_tokens: Positive = 32


class MoeGrid(Section):
    """Sizes that a MoE block may take: numbers, or fractions of the parent such as "75%"."""

    ffn: tuple[int | str, ...] = ()
    top_k: tuple[int | str, ...] = ()


class MambaGrid(Section):
    """Sizes that all Mamba blocks may take."""

    state: tuple[int | str, ...] = ()


class Granularity(Section):
    """Sizes are multiples of these; what is not given follows from the engines."""

    ffn: Positive | None = None
    state: Positive | None = None


class Library(Section):
    """Which variants of each block compete."""

    moe: MoeGrid = MoeGrid()
    mamba: MambaGrid = MambaGrid()
    none: tuple[Literal["mamba", "attention", "moe", "mlp"], ...] = ()
    engines: tuple[str, ...] = ("vllm",)
    precision: str = "bf16"
    granularity: Granularity = Granularity()
    repair: Repair = "both"
    repair_sequences: Positive = 32

    @model_validator(mode="after")
    def _granularity_of_engines(self) -> Self:
        """Check the names, and fill in the granularity, so that a resolved recipe shows it."""
        preset(self.precision)
        engines = [engine_named(name) for name in self.engines]
        steps = {dim: n or common_granularity(dim, engines) for dim, n in self.granularity}
        object.__setattr__(self, "granularity", Granularity(**steps))
        return self


class Score(Section):
    """Replace-one scoring, on calibration text that nothing was fitted on."""

    metric: MetricName = "kl"
    sequences: Positive = 32
    variants_per_pass: Positive = 4


class Search(Section):
    """Budgets and the mixed-integer program."""

    budget: Mapping[str, int | float | str] = {}
    n_best: Positive = 3
    min_distance: Positive = 2
    time_limit_s: Annotated[float, Field(gt=0)] = 60.0
    strategy: Literal["best", "uniform", "random"] = "best"
    random_choices: Annotated[int, Field(ge=0)] = 0


class Build(Section):
    """How the child is written."""

    shard_bytes: int | str = "5GB"


class Distill(Section):
    """The healing of a round."""

    tokens: Positive = 1_000_000
    sequence_length: Positive = 1024
    batch_size: Positive = 8
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    warmup_fraction: Fraction = 0.1
    final_fraction: Fraction = 0.1
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    cosine_weight: Annotated[float, Field(ge=0)] = 0.0
    label_weight: Annotated[float, Field(ge=0)] = 0.0
    balance_weight: Annotated[float, Field(ge=0)] = 0.0
    evaluations: Positive = 10
    validation_sequences: Positive = 32
    patience: Positive | None = None
    recovery: Fraction | None = None


UNION_MEMBER = re.compile(r"int|float|str|constrained-\w+|literal\[.*\]")
"""What pydantic appends to the place of an error in a value of several possible types."""

SECTIONS: dict[str, type[Section]] = {
    "calibrate": Calibrate,
    "rank": Rank,
    "library": Library,
    "score": Score,
    "search": Search,
    "build": Build,
    "distill": Distill,
}
"""Sections that a round may override, by the name of their stage."""


class Round(Section):
    """All settings of one round, defaults filled in."""

    calibrate: Calibrate = Calibrate()
    rank: Rank = Rank()
    library: Library = Library()
    score: Score = Score()
    search: Search = Search()
    build: Build = Build()
    distill: Distill = Distill()


class Recipe(Section):
    """A resolved recipe."""

    parent: str
    seed: Annotated[int, Field(ge=0)] = 0
    data: Data
    compute: Compute = Compute()
    rounds: Annotated[tuple[Round, ...], Field(min_length=1)]

    def to_json(self) -> str:
        """The resolved recipe as JSON text."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"


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
        if part == "rounds" or isinstance(part, int):
            model = Round
            continue
        field = model.model_fields.get(part)
        inner = field.annotation if field else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    known = set(model.model_fields)
    return known | (set(SECTIONS) if model is Recipe else set())
