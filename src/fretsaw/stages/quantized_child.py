"""The last stages of a run: its child in each number format that the recipe asks for, measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.precision import AUTO, kind_of
from fretsaw.core.shape import Block, ModelShape
from fretsaw.errors import FretsawError
from fretsaw.families import family_named
from fretsaw.pricing.memory import model_costs
from fretsaw.quant.plan import check_rows, plan_export
from fretsaw.recipe import Recipe, Round
from fretsaw.reports.quantized import Quantized
from fretsaw.stages.library import variants_of
from fretsaw.stages.manifest import CHILD, read_manifest
from fretsaw.stages.quantize_options import QuantizeOptions, named_precision
from fretsaw.stages.quantized_writing import Job, Texts, tidy
from fretsaw.stages.run import Run, RunRound, Stage, known_text
from fretsaw.stages.text import (
    calibration_ids,
    calibration_text,
    quantize_text,
    score_ids,
    score_text,
    validation_ids,
    validation_text,
)

RESULT = "result.json"
PREFIX = "09-quantize-"
HEALED = "08-distill"

TRAINING_BYTES = 3 * 12 + 3 * 4
"""Bytes a parameter while healing: see `check.TRAINING_BYTES`; and the healed weights."""


def quantize_stages(recipe: Recipe) -> tuple[Stage, ...]:
    """A stage of the last round for each number format; what one changes leaves the others."""
    asked = recipe.quantize
    return tuple(
        _stage(recipe, to, name=name) for to, name in zip(asked.to, asked.names, strict=True)
    )


def _stage(recipe: Recipe, to: str, *, name: str) -> Stage:
    texts = [calibration_text, validation_text]
    texts += [score_text] if to == AUTO else []
    texts += [quantize_text] if recipe.quantize.heal_tokens else []
    return Stage(
        PREFIX + name,
        needs=(HEALED,),
        settings=("build", *(("distill",) if recipe.quantize.heal_tokens else ())),
        body=partial(_body, to=to),
        texts=tuple(texts),
        copies=lambda round_: round_.result(HEALED) / CHILD,
        inputs={"recipe.quantize": _asked(recipe, to)},
    )


def _asked(recipe: Recipe, to: str) -> dict[str, Any]:
    """All that decides how one child is quantised; a file by what it says."""
    section = recipe.quantize.model_dump(mode="json", exclude={"to"})
    if to != AUTO:
        precision = named_precision(to)
        section |= {"bits": None, "weights": dict(precision.weights), "kv": precision.kv}
        section["weight_only"] = list(precision.weight_only)
    return section | {"min_tokens": recipe.rounds[-1].rank.min_tokens}


def _body(round_: RunRound, folder: Path, *, to: str) -> None:
    child = folder / CHILD
    if not (folder / RESULT).is_file():
        if (threads := round_.run.recipe.compute.threads) is not None:
            torch.set_num_threads(threads)
        child.mkdir(exist_ok=True)
        found = _job(round_, to).write(child)
        data = replace(found, folder=Path(CHILD)).to_json()
        write_json(folder / RESULT, data)
    tidy(child)


def _job(round_: RunRound, to: str) -> Job:
    run, asked, healing = round_.run, round_.run.recipe.quantize, round_.settings.distill
    is_half = run.recipe.compute.dtype == "bfloat16"
    options = QuantizeOptions(
        to=to,
        bits=asked.bits if to == AUTO else None,
        text=Path(run.recipe.data.path),
        method=asked.method,
        layout=asked.file_layout,
        kv=asked.kv_dtype,
        batch_sequences=run.recipe.compute.batch_sequences,
        min_tokens=round_.settings.rank.min_tokens,
        dtype="bfloat16" if is_half else "float32",
        shard_bytes=round_.settings.build.shard_bytes,
        seed=round_.seed,
        teacher=run.parent if asked.heal_tokens else None,
        heal_tokens=asked.heal_tokens or None,
        heal_sequence_length=healing.sequence_length,
        heal_batch_size=healing.batch_size,
        learning_rate=_rate(asked.learning_rate) if asked.heal_tokens else None,
    )
    texts = Texts(
        fit=lambda: calibration_ids(round_),
        judge=lambda: score_ids(round_),
        train=lambda: quantize_text(round_).ids,
        held_out=lambda: validation_ids(round_),
    )
    source = Checkpoint(round_.result(HEALED) / CHILD)
    return Job(source, options, texts, run.reporter, parent=run.parent)


def _rate(rate: float | str) -> float | None:
    return rate if isinstance(rate, float) else None


def read_quantized(run: Run) -> tuple[Quantized, ...]:
    """What the finished ones of these stages have left, in the order of the recipe."""
    last = run.round(len(run.recipe.rounds))
    names = [PREFIX + name for name in run.recipe.quantize.names]
    done = {folder.name: folder for folder in last.finished()}
    return tuple(_read(done[name]) for name in names if name in done)


def _read(folder: Path) -> Quantized:
    data = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    found = Quantized.from_json(data)
    seconds = float(read_manifest(folder)["seconds"])
    return replace(found, folder=folder / found.folder, seconds=seconds)


def check_quantize(run: Run) -> None:
    """Check, before the first weight is read, that every child that may come out can be quantised.

    Raises:
        FretsawError: of the kind that quantising would raise at the end.
    """
    recipe = run.recipe
    shape = Checkpoint(run.parent).shape
    for to in recipe.quantize.to:
        if to == AUTO:
            continue  # takes what fits
        precision = named_precision(to)
        precision.check_kinds(_kinds(shape))
        for what, one in _forms(shape, recipe.rounds):
            try:
                check_rows(family_named(one.family).rows(one), precision)
            except FretsawError as error:
                message = f"quantize.to {to}: {what}: {error.message}"
                raise type(error)(message, f"{error.hint}; or leave {to} out") from error
    if recipe.quantize.to and recipe.quantize.heal_tokens:
        known_text(quantize_text, run.round(len(recipe.rounds)))


def _kinds(shape: ModelShape) -> set[Any]:
    rows = family_named(shape.family).rows(shape)
    return {kind_of(row.tensor, part=row.part) for row in rows}


def _forms(shape: ModelShape, rounds: tuple[Round, ...]) -> Iterator[tuple[str, ModelShape]]:
    """The model, and one with a single block for each form that a block may come to have."""
    yield "the parent", shape
    seen: list[Block] = []
    for settings in rounds:
        for variant in variants_of(shape, original=shape, settings=settings.library):
            block = variant.apply(shape.blocks[variant.block])
            if block.mixer == "none" or block in seen:
                continue
            seen.append(block)
            yield f"block {variant.block} as {variant.key}", shape.with_blocks((block,))


def quantize_disk_bytes(recipe: Recipe, parent: Checkpoint) -> int:
    """What these stages take at most: a child each, and one training under way."""
    children = sum(_child_bytes(to, parent) for to in recipe.quantize.to)
    is_healed = recipe.quantize.to and recipe.quantize.heal_tokens
    params = int(model_costs(parent.shape)["params"])
    return children + (params * TRAINING_BYTES if is_healed else 0)


def _child_bytes(to: str, parent: Checkpoint) -> int:
    """Of a child that is as large as the parent; for ``auto`` as if nothing were rounded."""
    if to == AUTO:
        return int(model_costs(parent.shape)["bytes_bf16"])
    return plan_export(parent, named_precision(to)).num_bytes
