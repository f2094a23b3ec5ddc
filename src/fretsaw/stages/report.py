"""The report of a finished run: a page, figures and tables, from what the stages have left."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.assets import has_tokenizer
from fretsaw.checkpoint.lineage import hash_file
from fretsaw.checkpoint.reader import read_config
from fretsaw.core.tables import metric_values, read_rows
from fretsaw.core.variant import Choice
from fretsaw.errors import RunError
from fretsaw.reports.comparison import (
    COMPARISON,
    ComparedRun,
    Report,
    comparison_page,
    unique_names,
)
from fretsaw.reports.figures import additivity_svg, healing_svg
from fretsaw.reports.findings import (
    Evaluation,
    Findings,
    RoundFindings,
    SwappedModel,
    VariantScore,
    block_forms,
    trace_blocks,
)
from fretsaw.reports.heatmap import choice_svg
from fretsaw.reports.page import report_page, summary_csv
from fretsaw.reports.summary import Summary
from fretsaw.stages.describe import read_shape
from fretsaw.stages.distill import RESULT
from fretsaw.stages.evidence import collect_evidence
from fretsaw.stages.folders import read_run
from fretsaw.stages.manifest import MANIFEST, read_manifest
from fretsaw.stages.run import Run, RunRound, word_of
from fretsaw.stages.samples import SAMPLES
from fretsaw.stages.score import SCORES
from fretsaw.stages.search import ADDITIVITY, CHOICE, read_choice
from fretsaw.stages.summary import read_result, summarize

REPORT = "report"
PAGE = "index.html"
READ = {
    "00-describe": {"shape.json"},
    "04-score": {SCORES},
    "06-search": {CHOICE, ADDITIVITY},
    "08-distill": {RESULT, SAMPLES},
}
"""What a page is made of: stage -> its tables."""

REMAKE_HINT = "run `fretsaw compress` with its recipe: it finds what is damaged and makes it again"


def write_report(run: Run, findings: Findings) -> Path:
    """Write ``RUN/report``: ``index.html``, three SVG figures, the findings as JSON and CSV.

    Each file is written aside and renamed over its own earlier version.

    Args:
        run: Whose folder.
        findings: Of it.

    Returns:
        The page.
    """
    rounds = findings.rounds
    folder = run.folder / REPORT
    folder.mkdir(exist_ok=True)
    contents = {
        "choice.svg": choice_svg(findings.blocks, num_rounds=len(rounds)),
        "healing.svg": healing_svg(rounds, parent_loss=findings.parent_loss),
        "additivity.svg": additivity_svg(rounds),
        "summary.json": json.dumps(findings.to_json(), indent=1) + "\n",
        "summary.csv": summary_csv(findings.summary),
        PAGE: report_page(findings),
    }
    for name, content in contents.items():
        write_whole(folder / name, content)
    return folder / PAGE


def write_whole(file: Path, content: str) -> None:
    """Write a file aside, then rename it: a reader never meets half of it."""
    aside = file.with_name(file.name + ".new")
    aside.write_text(content, encoding="utf-8")
    aside.replace(file)


def collect_findings(run: Run, summary: Summary, *, num_planned: int | None = None) -> Findings:
    """What a run has to show, from its stage folders.

    Raises:
        RunError: a stage is missing, or its table is damaged.
    """
    rounds = list(run.rounds())
    original = read_shape(rounds[0].result("00-describe"))
    choices = [read_choice(round_.result("06-search")) for round_ in rounds]
    states = trace_blocks(original, choices)
    last = read_manifest(rounds[-1].result("08-distill"))
    return Findings(
        summary=summary,
        blocks=block_forms(original, states[-1]),
        rounds=tuple(
            _round_findings(round_, choice, origins=list(state))
            for round_, choice, state in zip(rounds, choices, states[:-1], strict=True)
        ),
        parent=run.recipe.parent,
        recipe=run.recipe.to_json(),
        needs_remote_code="auto_map" in read_config(summary.child),
        has_tokenizer=has_tokenizer(summary.child),
        versions=last["versions"],
        finished=last["finished"],
        num_planned=num_planned or len(rounds),
        evidence=collect_evidence(run, summary, shape=original),
    )


def _round_findings(round_: RunRound, choice: Choice, *, origins: list[int]) -> RoundFindings:
    result = read_result(round_)
    text = (round_.result("06-search") / ADDITIVITY).read_text(encoding="utf-8")
    additivity = json.loads(text)
    kept = next(row for row in result["history"] if row["step"] == result["best_step"])
    return RoundFindings(
        number=round_.number,
        budget=round_.settings.search.budget.costs,
        status=choice.status,
        gap=choice.gap,
        metric=round_.settings.score.metric,
        scores=_scores(round_, choice, origins=origins),
        evaluations=tuple(_evaluation(row) for row in result["history"] if _is_measured(row)),
        kept_tokens=kept["tokens"],
        swapped=tuple(SwappedModel(**row) for row in additivity["rows"]),
        spearman=additivity["spearman"],
        seconds=_seconds(round_),
        serving=tuple(map(str, round_.settings.search.budget.serve)),
    )


def _scores(round_: RunRound, choice: Choice, *, origins: list[int]) -> tuple[VariantScore, ...]:
    rows = read_rows(round_.result("04-score") / SCORES)
    chosen = {(variant.block, variant.key) for variant in choice.variants}
    return tuple(
        VariantScore(origins[block], key, score, (block, key) in chosen)
        for (block, key), score in metric_values(rows, round_.settings.score.metric).items()
    )


def _is_measured(row: Mapping[str, Any]) -> bool:
    held_out = row["held_out"]
    return math.isfinite(held_out["kl"]) and math.isfinite(held_out["loss"])


def _evaluation(row: Mapping[str, Any]) -> Evaluation:
    train_kl = row["train_kl"]
    if train_kl is not None and not math.isfinite(train_kl):
        train_kl = None
    return Evaluation(row["tokens"], row["held_out"]["loss"], row["held_out"]["kl"], train_kl)


def _seconds(round_: RunRound) -> dict[str, float]:
    """Time of each finished stage by its word, in the order of the walk."""
    return {word_of(f.name): float(read_manifest(f)["seconds"]) for f in round_.finished()}


def report(folders: Sequence[Path], *, out: Path | None = None) -> Report:
    """Write the page of a run anew, or one page that compares several; no stage is run.

    Args:
        folders: Run folders; a run that is still going on is shown as far as it is.
        out: The comparison's file; ``comparison.html`` beside the first run by default. Of a single
            run the page is ``RUN/report/index.html``.

    Raises:
        RunError: no run, a run without a finished round, a damaged table, or a name that is taken.
        RecipeError: a run's recipe cannot be read.
    """
    runs = [read_run(folder) for folder in folders]
    if len(runs) == 1:
        return _report_one(runs[0], out)
    if not runs:
        raise RunError("no run was given", "give the folder of a run, or of several to compare")
    page = _comparison_file(out or runs[0].folder.with_name("comparison.html"))
    names = unique_names([run.folder for run in runs])
    compared = tuple(_compared(run, name) for run, name in zip(runs, names, strict=True))
    write_whole(page, comparison_page(compared))
    return Report(page, compared)


def _report_one(run: Run, out: Path | None) -> Report:
    if out is not None:
        raise RunError(
            "--out is for a comparison of several runs; one run was given",
            f"leave it out: the page is {run.folder / REPORT / PAGE}",
        )
    compared = _compared(run, run.folder.name)
    return Report(write_report(run, compared.findings), (compared,))


def _compared(run: Run, name: str) -> ComparedRun:
    """What a run has to show, as far as its rounds are finished."""
    done = _done(run)
    for round_ in done.rounds():
        _check_tables(round_)
    try:
        findings = collect_findings(done, summarize(done), num_planned=len(run.recipe.rounds))
        inputs = read_manifest(done.round(1).result("08-distill"))["inputs"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise RunError(
            f"{run.folder}: a result cannot be read ({type(error).__name__}: {error})",
            REMAKE_HINT,
        ) from error
    return ComparedRun(
        name, replace(findings, recipe=run.recipe.to_json()), parent_digest=inputs["parent"]
    )


def _check_tables(round_: RunRound) -> None:
    """Compare what the page is made of with the checksums; weights are left alone."""
    for stage, names in READ.items():
        folder = round_.result(stage)
        results = read_manifest(folder)["results"]
        for name in names & results.keys():
            file = folder / name
            if not file.is_file() or hash_file(file) != results[name]:
                raise RunError(f"{file} is missing or does not match its checksum", REMAKE_HINT)


def _done(run: Run) -> Run:
    """The run as far as its rounds are finished."""
    finished = list(itertools.takewhile(_is_healed, run.rounds()))
    if not finished:
        raise RunError(
            f"no round of {run.folder} is finished yet",
            "run `fretsaw compress` with its recipe: it goes on where it stopped",
        )
    rounds = run.recipe.rounds[: len(finished)]
    return replace(run, recipe=run.recipe.model_copy(update={"rounds": rounds}))


def _is_healed(round_: RunRound) -> bool:
    return (round_.folder / "08-distill" / MANIFEST).is_file()


def _comparison_file(file: Path) -> Path:
    """Checked: nothing but an earlier page is overwritten."""
    if file.is_dir() or not file.parent.is_dir():
        raise RunError(f"{file} cannot be written", "give --out a file in a folder that exists")
    if file.is_file() and COMPARISON not in file.read_text(encoding="utf-8", errors="replace"):
        raise RunError(f"{file} is no comparison of runs", "give --out another name")
    return file
