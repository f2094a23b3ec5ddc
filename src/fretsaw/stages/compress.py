"""The whole loop: cut a little, heal, and again around the healed child."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fretsaw.checkpoint.writer import write_json
from fretsaw.recipe import Recipe
from fretsaw.reports.summary import Summary
from fretsaw.stages.build import BUILD
from fretsaw.stages.calibrate import CALIBRATE
from fretsaw.stages.check import check
from fretsaw.stages.cost import COST
from fretsaw.stages.describe import DESCRIBE
from fretsaw.stages.distill import DISTILL
from fretsaw.stages.folders import open_run
from fretsaw.stages.library import LIBRARY
from fretsaw.stages.manifest import digest
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantized_child import quantize_stages
from fretsaw.stages.rank import RANK
from fretsaw.stages.report import collect_findings, write_report
from fretsaw.stages.run import (
    CHECK,
    Run,
    RunRound,
    Stage,
    accounted,
    known_text,
    read_json,
    run_stage,
)
from fretsaw.stages.score import SCORE
from fretsaw.stages.search import SEARCH
from fretsaw.stages.summary import summarize
from fretsaw.stages.text import tell_texts

ROUND: tuple[Stage, ...] = (DESCRIBE, CALIBRATE, RANK, LIBRARY, SCORE, COST, SEARCH, BUILD, DISTILL)
"""A round, in order; each stage reads what earlier ones have written."""


def compress(recipe: Recipe, *, out: Path, reporter: Reporter | None = None) -> Summary:
    """Compress the recipe's parent in rounds; skips what is done, resumes what was killed.

    Args:
        recipe: What to do.
        out: Run folder: new, or one that an earlier run has left.
        reporter: Where progress goes; stderr by default.

    Returns:
        Parent and every round before and after healing, in figures.

    Raises:
        FretsawError: something that the user can mend; all that can be checked is checked first.
    """
    reporter = reporter or Reporter()
    with open_run(recipe, out, reporter=reporter) as run:
        _check(run)
        for round_ in run.rounds():
            for stage in stages_of(round_):
                run_stage(stage, round_)
        summary = summarize(run)
        write_report(run, collect_findings(run, summary))
    return summary


def stages_of(round_: RunRound) -> tuple[Stage, ...]:
    """All stages of a round, in order: the last one ends with the child in fewer bits."""
    recipe = round_.run.recipe
    is_last = round_.number == len(recipe.rounds)
    return ROUND + quantize_stages(recipe) if is_last else ROUND


def _check(run: Run) -> None:
    """Check, and keep what it warned about; seconds and memory are those of the first time."""
    with accounted(run.reporter) as account:
        check(run)
    kept = asdict(account()) | {"recipe": digest(run.recipe.model_dump(mode="json"))}
    before = read_json(run.folder / CHECK)
    if isinstance(before, dict) and before.get("recipe") == kept["recipe"]:
        kept |= {name: before[name] for name in ("seconds", "peak_bytes")}
    write_json(run.folder / CHECK, kept)


def run_one(
    word: str, recipe: Recipe, *, out: Path, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """Run one stage of one round; those that it reads must be there, their checksums right.

    Args:
        word: The stage's word, such as ``score``.
        recipe: What to do.
        out: Run folder.
        round_number: Which round, from 1.
        reporter: Where progress goes; stderr by default.

    Returns:
        The stage's folder.

    Raises:
        RunError: a stage that it needs has not been run, or is damaged.
        FretsawError: whatever the stage raises.
    """
    stage = next(stage for stage in ROUND if stage.word == word)
    with open_run(recipe, out, reporter=reporter or Reporter()) as run:
        round_ = run.round(round_number)
        if stage is not DESCRIBE:
            run_stage(DESCRIBE, round_)
        for name in stage.needs:
            round_.checked(name)
        tell_texts((known_text(t, round_).found for t in stage.texts), reporter=run.reporter)
        return run_stage(stage, round_)
