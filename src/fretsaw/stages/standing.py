"""Where a stage stands before a run: what would be kept, made, or put aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fretsaw.errors import RunError
from fretsaw.stages.manifest import STARTED
from fretsaw.stages.recopy import have_only_files_changed
from fretsaw.stages.run import RunRound, Stage, inputs_of, problem_with, read_json


@dataclass(frozen=True)
class Standing:
    """Where a stage stands.

    Attributes:
        state: ``done``; ``to do``; ``goes on``: begun, and not finished; ``again``: what is there
            would be put aside.
        why: Of ``again``.
    """

    state: Literal["done", "to do", "goes on", "again"]
    why: str = ""


TO_DO = Standing("to do")


def standing(stage: Stage, round_: RunRound) -> Standing:
    """Where a stage stands, by what `run_stage` would compare; nothing is run or moved."""
    final = round_.folder / stage.name
    partial = final.with_name(final.name + ".partial")
    if not (final.exists() or partial.exists()):
        return TO_DO
    try:
        inputs = inputs_of(stage, round_)
    except RunError:
        return Standing("again", "a stage that it reads is missing") if final.exists() else TO_DO
    if final.exists() and stage.copies and have_only_files_changed(final, inputs):
        return Standing("done")  # but for files beside the weights, which are copied in no time
    if final.exists():
        problem = problem_with(final, inputs)
        return Standing("again", problem) if problem else Standing("done")
    if read_json(partial / STARTED) == inputs:
        return Standing("goes on")
    return Standing("again", "what an earlier run left had other inputs")
