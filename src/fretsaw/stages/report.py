"""The report of a finished run: a page, figures and tables, from what the stages have left."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.assets import has_tokenizer
from fretsaw.checkpoint.reader import Checkpoint, read_config
from fretsaw.core.tables import metric_values, read_rows
from fretsaw.core.variant import Choice
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
from fretsaw.stages.manifest import read_manifest
from fretsaw.stages.run import Run, RunRound, word_of
from fretsaw.stages.score import SCORES
from fretsaw.stages.search import ADDITIVITY, read_choice
from fretsaw.stages.summary import read_result

REPORT = "report"


def write_report(run: Run, summary: Summary) -> Path:
    """Write ``RUN/report``: ``index.html``, three SVG figures, the summary as JSON and CSV.

    Each file is written aside and renamed over its own earlier version.

    Args:
        run: All its rounds are finished.
        summary: Of this run.

    Returns:
        The page.

    Raises:
        RunError: a stage is missing, or its table is damaged.
    """
    findings = collect_findings(run, summary)
    choice = choice_svg(findings.blocks, num_rounds=len(findings.rounds))
    folder = run.folder / REPORT
    folder.mkdir(exist_ok=True)
    contents = {
        "choice.svg": choice,
        "healing.svg": healing_svg(findings.rounds, parent_loss=findings.parent_loss),
        "additivity.svg": additivity_svg(findings.rounds),
        "summary.json": json.dumps(summary.to_json(), indent=1) + "\n",
        "summary.csv": summary_csv(summary),
        "index.html": report_page(findings, choice=choice),
    }
    for name, content in contents.items():
        aside = folder / f"{name}.new"
        aside.write_text(content, encoding="utf-8")
        aside.replace(folder / name)
    return folder / "index.html"


def collect_findings(run: Run, summary: Summary) -> Findings:
    """What a finished run has to show, from its stage folders.

    Raises:
        RunError: a stage is missing, or its table is damaged.
    """
    original = Checkpoint(run.parent).shape
    rounds = list(run.rounds())
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
