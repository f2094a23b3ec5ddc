"""The variants of every block: a few integers each, no weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.shape import ModelShape
from fretsaw.core.variant import Variant
from fretsaw.recipe.sections import Library
from fretsaw.solver.library import Grid, build_library
from fretsaw.stages.describe import read_shape
from fretsaw.stages.run import RunRound, Stage

VARIANTS = "variants.json"


def variants_of(shape: ModelShape, *, original: ModelShape, settings: Library) -> list[Variant]:
    """The library of a round: variants around `shape`, sizes in terms of the original parent."""
    values = {**settings.moe.model_dump(), **settings.mamba.model_dump()}
    grid = Grid(values, none=settings.none, granularity=settings.granularity.model_dump())
    return build_library(shape, original, grid=grid)


def _body(round_: RunRound, folder: Path) -> None:
    variants = variants_of(
        read_shape(round_.result("00-describe")),
        original=Checkpoint(round_.run.parent).shape,
        settings=round_.settings.library,
    )
    write_json(folder / VARIANTS, [v.to_json() for v in variants])


LIBRARY = Stage("03-library", needs=("00-describe",), settings=("library",), body=_body)


def read_library(folder: Path) -> Mapping[int, list[Variant]]:
    """Variants by block that a finished `library` wrote."""
    data = json.loads((folder / VARIANTS).read_text(encoding="utf-8"))
    return by_block(Variant.from_json(one) for one in data)


def by_block(variants: Iterable[Variant]) -> dict[int, list[Variant]]:
    """Variants grouped by their block."""
    grouped: dict[int, list[Variant]] = {}
    for variant in variants:
        grouped.setdefault(variant.block, []).append(variant)
    return grouped
