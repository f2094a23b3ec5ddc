"""Estimate a run before it starts: checks that need no weights, then time, memory and disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.recipe import Recipe
from fretsaw.reports.estimate import Estimate, EstimateLine
from fretsaw.runtime.resident import resident_bytes
from fretsaw.stages.check import check, peak_disk_bytes
from fretsaw.stages.compress import stages_of
from fretsaw.stages.folders import check_folder
from fretsaw.stages.forecast import Piece, forecast
from fretsaw.stages.outline import measure_machine, outline_rounds
from fretsaw.stages.progress import Reporter
from fretsaw.stages.run import MARKER, Run, RunRound, Stage
from fretsaw.stages.standing import TO_DO, Standing, standing
from fretsaw.stages.text import found_texts

REPORT_S = 2.0
"""Of tables, figures and pages; hardly depends on the model."""


def estimate_run(recipe: Recipe, *, out: Path) -> Estimate:
    """Check everything that needs no weights, and estimate the run.

    Raises:
        FretsawError: whatever would stop the run before its first weight is read.
    """
    check_folder(out, recipe)
    run = Run(out.resolve(), recipe, Reporter(is_quiet=True))
    started = time.perf_counter()
    with run.reporter.collect() as warnings:
        check(run)
    check_s = time.perf_counter() - started
    parent = Checkpoint(run.parent)
    machine = measure_machine(parent, recipe, base_bytes=resident_bytes())
    outlines = outline_rounds(parent.shape, recipe, machine=machine)
    lines = [
        line
        for round_, outline in zip(run.rounds(), outlines, strict=True)
        for line in _lines(round_, stages_of(round_), pieces=forecast(outline))
    ]
    return Estimate(
        tuple(lines),
        check_s=check_s,
        report_s=REPORT_S,
        memory_bytes=_memory_bytes(recipe.compute.device),
        peak_disk_bytes=peak_disk_bytes(parent, recipe),
        text=found_texts(run),
        warnings=tuple(warnings),
    )


def _lines(
    round_: RunRound, stages: Iterable[Stage], *, pieces: Iterable[Piece]
) -> Iterator[EstimateLine]:
    """The stages of a round, each with where it stands."""
    changed: set[str] = set()
    is_run = (round_.run.folder / MARKER).is_file()
    for stage, piece in zip(stages, pieces, strict=True):
        assert stage.word == piece.stage
        where = _where(stage, round_, changed=changed) if is_run else TO_DO
        if where.state != "done":
            changed.add(stage.name)
        yield EstimateLine(
            round_.number,
            piece.stage,
            where.state,
            where.why,
            piece.what,
            0.0 if where.state == "done" else piece.seconds,
            piece.peak_bytes,
            piece.disk_bytes,
        )


def _where(stage: Stage, round_: RunRound, *, changed: set[str]) -> Standing:
    """Where a stage stands; one that reads what will be made anew may have to be, too."""
    found = standing(stage, round_)
    if found.state == "done" and not changed.isdisjoint(stage.needs):
        return Standing("again", "unless what it reads comes out as before")
    return found


def _memory_bytes(device: str) -> int:
    """Of the device that the run uses."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
