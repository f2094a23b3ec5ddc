"""The sections of a recipe: every key with its type, its default, and the checks of its words."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fretsaw.core.engines import common_granularity, engine_named
from fretsaw.core.hardware import THIS_MACHINE, parse_layout, parse_node, parse_workload
from fretsaw.core.precision import AUTO, check_written, is_file_name, preset
from fretsaw.core.units import format_count, parse_bytes, parse_count, parse_fraction
from fretsaw.errors import FretsawError, RecipeError
from fretsaw.recipe.values import (
    AboveZero,
    AsList,
    FileBytes,
    Fraction,
    Natural,
    NotNegative,
    Positive,
    Rate,
    Seed,
    Share,
    Size,
    Text,
    Threads,
    refused,
)

MetricName = Literal["kl", "loss", "hidden"]
Repair = Literal["none", "experts", "output", "both"]


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys; the kinds of values are in `values`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Splits(Section):
    """Names of the splits in the data set."""

    train: Text = "train"
    calibration: Text = "calibration"
    validation: Text = "validation"


class Data(Section):
    """Where the text comes from: a folder with splits, or one file or folder to be split."""

    path: Text
    text_key: Text = "text"
    chat_key: Text | None = None
    splits: Splits = Splits()


class Compute(Section):
    """Device, working dtype and threads of the running model."""

    device: Text = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Threads | None = None
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

    ffn: Annotated[tuple[Size, ...], AsList] = ()
    top_k: Annotated[tuple[Size, ...], AsList] = ()


class MambaGrid(Section):
    """Sizes that all Mamba blocks may take."""

    state: Annotated[tuple[Size, ...], AsList] = ()


class Granularity(Section):
    """Sizes are multiples of these; what is not given follows from the engines."""

    ffn: Positive | None = None
    state: Positive | None = None


class Library(Section):
    """Which variants of each block compete."""

    moe: MoeGrid = MoeGrid()
    mamba: MambaGrid = MambaGrid()
    none: Annotated[tuple[Literal["mamba", "attention", "moe", "mlp"], ...], AsList] = ()
    engines: Annotated[tuple[Text, ...], AsList] = ("vllm",)
    precision: Text = "bf16"
    granularity: Granularity = Granularity()
    repair: Repair = "both"
    repair_sequences: Positive = 32

    @model_validator(mode="after")
    def _granularity_of_engines(self) -> Self:
        """Check the names, and fill in the granularity, so that a resolved recipe shows it."""
        _named(preset, self.precision, key="precision")
        engines = [_named(engine_named, name, key="engines") for name in self.engines]
        steps = {dim: n or common_granularity(dim, engines) for dim, n in self.granularity}
        object.__setattr__(self, "granularity", Granularity(**steps))
        return self


Found = TypeVar("Found")


def _named(find: Callable[[str], Found], name: str, *, key: str) -> Found:
    """What a name stands for.

    Raises:
        PydanticCustomError: nothing; it names the key.
    """
    try:
        return find(name)
    except FretsawError as error:
        raise refused(error.message, error.hint, key=key, value=name) from error


class Score(Section):
    """Replace-one scoring, on calibration text that nothing was fitted on."""

    metric: MetricName = "kl"
    sequences: Positive = 32
    variants_per_pass: Positive = 4


class Serve(Section):
    """What the child should do for its users on some hardware.

    With a workload a rate, at a speed for each user or with so many requests in flight; without
    one, memory for so many requests of a context.
    """

    hardware: Text
    workload: Text | None = None
    user_tokens_per_s: AboveZero | None = None
    concurrency: Positive | None = None
    speedup: AboveZero | None = None
    server_tokens_per_s: AboveZero | None = None
    joules_per_token: AboveZero | None = None
    context: Positive | None = None
    format: Text | None = None
    engine: Text | None = None
    layout: Text | None = None
    acceptance_length: AboveZero = 1.0
    memory_fraction: Share = 0.9

    @property
    def is_here(self) -> bool:
        """Whether it speaks of the machine that the run is on."""
        return self.hardware.strip().lower() == THIS_MACHINE

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        """Check what needs no model."""
        try:
            self._check_words()
            self._check_together()
        except RecipeError as error:
            message = f"search.budget.serve ({self}): {error.message}"
            raise RecipeError(message, error.hint) from error
        return self

    def _check_words(self) -> None:
        if not self.is_here:
            parse_node(self.hardware)
        if self.workload is not None:
            parse_workload(self.workload)
        if self.layout is not None:
            parse_layout(self.layout)
        if self.format is not None:
            preset(self.format)
        if self.engine is not None:
            engine_named(self.engine)

    def _check_together(self) -> None:
        if self.is_here and (self.format or self.engine or self.layout):
            raise RecipeError(
                "format, engine and layout are those of the run on this machine",
                "remove them; compute.dtype is the format",
            )
        if self.joules_per_token and (self.is_here or self.workload is None):
            raise RecipeError(
                "joules_per_token is for a workload on hardware whose power is known",
                "remove it, or give a workload and hardware such as 8xB200",
            )
        rates, loads = self._given("speedup", "server_tokens_per_s"), self._given(*LOADS)
        if self.workload is None:
            if rates or loads != ["concurrency"] or self.context is None:
                raise RecipeError(
                    "neither a workload, nor a context and the requests that memory should hold",
                    "give workload: 8k/64k with a rate, or context: 1M and concurrency: 8",
                )
        elif len(rates) != 1 or len(loads) != 1 or self.context is not None:
            raise RecipeError(
                "a workload takes one of speedup and server_tokens_per_s, one of "
                f"{' and '.join(LOADS)}, and no context; given: "
                f"{', '.join([*rates, *loads, *self._given('context')]) or 'none of them'}",
                "for example {user_tokens_per_s: 100, speedup: 2}",
            )

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def __str__(self) -> str:
        """As in messages: ``speedup 2, user_tokens_per_s 100, 8k/64k, 8xB200, nvfp4``."""
        numbers = ("speedup", "server_tokens_per_s", "joules_per_token", *LOADS)
        words = (f"{name} {getattr(self, name):g}" for name in self._given(*numbers))
        context = self.context and f"context {format_count(self.context)}"
        plain = (self.workload, context, self.hardware)
        return ", ".join(str(word) for word in (*words, *plain, self.format) if word)


LOADS = ("user_tokens_per_s", "concurrency")


class Budget(Section):
    """Upper bounds: cost -> limit, and what the child should do for its users."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any] = Field(init=False)

    serve: Annotated[tuple[Serve, ...], AsList] = ()

    @model_validator(mode="after")
    def _limits_are_quantities(self) -> Self:
        """Make plain numbers of all but percentages."""
        for name, value in self.__pydantic_extra__.items():
            self.__pydantic_extra__[name] = limit_of(name, value)
        return self

    @property
    def costs(self) -> dict[str, int | str]:
        """Cost -> limit: a number, or a percentage of the original parent."""
        return dict(self.__pydantic_extra__)


def limit_of(name: str, value: object) -> int | str:
    """The limit of a cost: a number, or a percentage of the original parent.

    Raises:
        PydanticCustomError: something else.
    """
    parse = parse_bytes if "bytes" in name else parse_count
    unit = "78GiB" if "bytes" in name else "70B"
    expected = f"expected a quantity such as {unit}, or a share of the parent such as 62%"
    wrong = partial(refused, expected, key=name, value=value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong()
    if isinstance(value, float) and 0 < value <= 1:
        raise wrong(hint=f'for a share of the parent write "{100 * value:g}%"')
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            share = parse_fraction(value)
            if share > 1:
                raise wrong(hint="no child is larger than its parent: nothing would be cut")
            return value.strip()
        return parse(value)
    except RecipeError as error:
        raise wrong() from error


class Search(Section):
    """Budgets and the mixed-integer program."""

    budget: Budget = Budget()
    n_best: Positive = 3
    min_distance: Positive = 2
    time_limit_s: AboveZero = 60.0
    strategy: Literal["best", "uniform", "random"] = "best"
    random_choices: Natural = 0


class Build(Section):
    """How the child is written."""

    shard_bytes: FileBytes = 5 * 10**9
    dtype: Literal["stored", "bfloat16", "float16", "float32"] = "stored"


class Distill(Section):
    """The healing of a round."""

    tokens: Positive = 1_000_000
    sequence_length: Positive = 1024
    batch_size: Positive = 8
    learning_rate: Rate = "auto"
    warmup_fraction: Fraction = 0.1
    final_fraction: Fraction = 0.1
    weight_decay: NotNegative = 0.0
    clip_norm: AboveZero = 1.0
    cosine_weight: NotNegative = 0.0
    label_weight: NotNegative = 0.0
    balance_weight: NotNegative = 0.0
    evaluations: Positive = 10
    validation_sequences: Positive = 32
    patience: Positive | None = None
    recovery: Fraction | None = None


class Quantize(Section):
    """The last child in fewer bits, after the last round: a checkpoint for each entry of `to`."""

    to: Annotated[tuple[Text, ...], AsList] = ()
    bits: AboveZero | None = None
    kv_dtype: Literal["fp8", "bf16", "fp16"] | None = None
    method: Literal["max", "mse", "lsq"] = "max"
    file_layout: Literal["modelopt", "compressed-tensors"] = "modelopt"
    heal_tokens: Natural = 0
    learning_rate: Rate = "auto"

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        """Check what needs no model."""
        for name in self.to:
            try:
                check_written(name)
            except RecipeError as error:
                raise refused(f"{error.message}", error.hint, key="to", value=name) from error
        if twice := [n for n in self.names if self.names.count(n) > 1]:
            raise refused(
                f"{twice[0]} is there twice", "give each once", key="to", value=list(self.to)
            )
        if (AUTO in self.to) != (self.bits is not None):
            hint = "write both, such as to: [auto] and bits: 4.75, or neither"
            raise refused("auto and bits go together", hint, key="bits", value=self.bits)
        if self.method == "lsq" and not self.heal_tokens:
            hint = "give quantize.heal_tokens, such as 1M, or take mse"
            raise refused("scales are learned while healing", hint, key="method", value="lsq")
        return self

    @property
    def names(self) -> list[str]:
        """Name of each child: that of its format, or of the file without its ending."""
        return [PurePath(name).stem if is_file_name(name) else name for name in self.to]


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

    parent: Text
    seed: Seed = 0
    data: Data
    compute: Compute = Compute()
    quantize: Quantize = Quantize()
    rounds: Annotated[tuple[Round, ...], Field(min_length=1)]

    def to_json(self) -> str:
        """The resolved recipe as JSON text."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"
