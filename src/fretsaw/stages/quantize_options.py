"""How a checkpoint is quantised: plain settings, refused where they cannot be meant."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from fretsaw.core.precision import (
    AUTO,
    WRITTEN,
    Precision,
    check_written,
    is_file_name,
    precision_from,
    preset,
)
from fretsaw.errors import RecipeError
from fretsaw.families.quantised import LAYOUTS, LayoutName
from fretsaw.quant.scales import Method

Dtype = Literal["float32", "bfloat16"]
HEAL_TOKENS = 1_000_000


@dataclass(frozen=True)
class QuantizeOptions:
    """How a checkpoint is quantised.

    Attributes:
        to: Name of a precision, a YAML file with one's own (kind of weight: format), or ``auto``:
            for each block and kind what costs least at an average of `bits`.
        bits: Per weight of the blocks' linear maps, for ``auto``.
        judge_sequences: Calibration text that ``auto`` judges on, beside that of `sequences`.
        text: What activations are measured on: a file, a folder of files, or a data set.
        text_key: Column that holds the text.
        method: Scales of weights: ``max`` meets the largest magnitude, ``mse`` takes the block
            scales of least squared error, ``lsq`` learns them from there, and the scales of FP8
            weights and inputs with them, and goes with `teacher`.
        layout: Whose names and keys.
        kv: Format of the KV cache in place of the precision's.
        is_power_of_two_cache: KV scales are rounded up to powers of two.
        sequences: Of calibration text, at most.
        sequence_length: Tokens in each.
        batch_sequences: Sequences that run at a time.
        min_tokens: Routed tokens that an expert needs for a scale of its own.
        percentile: Share of magnitudes, in percent, that input scales cover; all if not given.
        dtype: Of the running blocks.
        shard_bytes: Size of a file.
        seed: Of the order of text.
        teacher: Checkpoint in full precision that the weights learn from under rounding, before
            they are written; none: they are rounded as they are.
        heal_tokens: Of that learning; goes with `teacher`, 1,000,000 if not given.
        heal_sequence_length: Tokens in each sequence of it.
        heal_batch_size: Sequences in each of its steps.
        learning_rate: Its peak rate; found by a probe if not given.
        is_evaluated: Loss and divergence are measured on held-out text, if there is text.
        evaluation_sequences: Of held-out text, each of `heal_sequence_length` tokens.
    """

    to: str = "nvfp4"
    bits: float | None = None
    judge_sequences: int = 16
    text: Path | None = None
    text_key: str = "text"
    method: Method = "max"
    layout: LayoutName = "modelopt"
    kv: str | None = None
    is_power_of_two_cache: bool = False
    sequences: int = 256
    sequence_length: int = 4096
    batch_sequences: int = 1
    min_tokens: int = 32
    percentile: float | None = None
    dtype: Dtype = "float32"
    shard_bytes: int | str = "5GB"
    seed: int = 0
    teacher: Path | None = None
    heal_tokens: int | None = None
    heal_sequence_length: int = 1024
    heal_batch_size: int = 8
    learning_rate: float | None = None
    is_evaluated: bool = True
    evaluation_sequences: int = 32

    def __post_init__(self) -> None:
        """Refuse words that mean nothing, and shares that are none."""
        for name, value, known in (
            ("method", self.method, get_args(Method)),
            ("layout", self.layout, LAYOUTS),
            ("dtype", self.dtype, get_args(Dtype)),
            ("kv", self.kv, (None, "fp8", "bf16", "fp16")),
        ):
            if value not in known:
                options = ", ".join(k for k in known if k)
                raise RecipeError(f"{name} is {value!r}", f"one of {options} was expected")
        if self.percentile is not None and not 0 < self.percentile <= 100:  # noqa: PLR2004
            raise RecipeError(f"percentile is {self.percentile}", "give one in (0, 100]")
        self._check_auto()
        self._check_healing()

    def _check_auto(self) -> None:
        if self.to == AUTO and self.bits is None:
            raise RecipeError(
                "to is 'auto', and bits are not given", "say how many per weight, such as 4.75"
            )
        if self.to == AUTO and self.text is None:
            raise RecipeError("to is 'auto', which judges formats on text", "give text")
        if self.to != AUTO and self.bits is not None:
            raise RecipeError(
                f"bits is {self.bits}, but to is {self.to!r}, which has its own number of them",
                "bits go with `auto` alone: take that, or leave bits out",
            )

    def _check_healing(self) -> None:
        given = {"heal_tokens": self.heal_tokens, "learning_rate": self.learning_rate}
        if self.teacher is None and (idle := [n for n, v in given.items() if v is not None]):
            raise RecipeError(
                f"{idle[0]} is {given[idle[0]]}, and there is no teacher to learn from",
                f"give a teacher (the original parent, or the model itself), or no {idle[0]}",
            )
        if self.teacher is not None and self.text is None:
            raise RecipeError("a teacher needs text to teach on", "give text")
        if self.method == "lsq" and self.teacher is None:
            raise RecipeError(
                "method 'lsq' learns scales, and there is no teacher",
                "give a teacher and text, or take method mse",
            )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}


def precision_of(options: QuantizeOptions) -> Precision:
    """The precision that the options name.

    Raises:
        RecipeError: there is none of that name, or the file does not hold one.
    """
    return named_precision(options.to).with_caches(kv=options.kv)


def named_precision(name: str) -> Precision:
    """A precision that can be written, by its name or the name of a YAML file that holds one's own.

    Raises:
        RecipeError: there is none of that name, or the file does not hold one.
    """
    check_written(name)
    if not is_file_name(name):
        return preset(name)
    file = Path(name)
    if not file.is_file():
        hint = "give the path of a YAML file"
        raise RecipeError(f"{file} does not exist", f"{hint}, or one of {', '.join(WRITTEN)}")
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise RecipeError(f"{file} holds no precision", "e.g. one line: `experts: nvfp4`")
    return precision_from(data, name=file.stem)
