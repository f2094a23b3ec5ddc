"""Collect what the stages of a finished run have measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.pricing.memory import model_costs
from fretsaw.reports.summary import RunWarning, Summary, SummaryLine
from fretsaw.stages.describe import read_shape
from fretsaw.stages.distill import RESULT
from fretsaw.stages.manifest import CHILD, read_manifest
from fretsaw.stages.quantized_child import read_quantized
from fretsaw.stages.run import CHECK, Run, RunRound, word_of
from fretsaw.stages.search import read_choice
from fretsaw.stages.speedup import read_speedups
from fretsaw.train.found import FoundText, by_split
from fretsaw.train.plan import result_from_json
from fretsaw.train.verdict import Verdict, judge

STAGES = (
    "00-describe",
    "01-calibrate",
    "02-rank",
    "03-library",
    "04-score",
    "05-cost",
    "06-search",
)


def summarize(run: Run) -> Summary:
    """Collect what the stages of a finished run have measured."""
    parent_costs = model_costs(read_shape(run.round(1).result("00-describe")))
    lines: list[SummaryLine] = []
    child = run.parent
    for round_ in run.rounds():
        result = read_result(round_)
        child = round_.result("08-distill") / CHILD
        costs = model_costs(Checkpoint(child).shape)
        if not lines:
            lines.append(SummaryLine("parent", parent_costs, result["teacher_loss"], 0.0, 1.0, 0.0))
        lines += [
            _cut_line(round_, costs, result=result),
            _healed_line(round_, costs, result=result),
        ]
    accounts = read_accounts(run)
    return Summary(
        lines=tuple(lines),
        child=child,
        run=run.folder,
        peaks={place: account.get("peak_bytes", 0) for place, account in accounts.items()},
        quantized=read_quantized(run),
        serving=tuple(read_speedups(round_.result("07-build"))),
        warnings=tuple(
            RunWarning(place, text)
            for place, account in accounts.items()
            for text in account.get("warnings", ())
        ),
        text=by_split(
            FoundText.from_json(found)
            for account in accounts.values()
            for found in account.get("texts", {}).values()
        ),
    )


def read_accounts(run: Run) -> dict[str, dict[str, Any]]:
    """What was kept of the making of each result: ``check``, ``round 1 score``, … in order."""
    accounts: dict[str, dict[str, Any]] = {}
    check = run.folder / CHECK
    if check.is_file():
        accounts["check"] = json.loads(check.read_text(encoding="utf-8"))
    for round_ in run.rounds():
        for folder in round_.finished():
            accounts[f"round {round_.number} {word_of(folder.name)}"] = read_manifest(folder)
    return accounts


def read_result(round_: RunRound) -> dict[str, Any]:
    """What a finished healing measured."""
    text = (round_.result("08-distill") / RESULT).read_text(encoding="utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


def _cut_line(
    round_: RunRound, costs: Mapping[str, float], *, result: Mapping[str, Any]
) -> SummaryLine:
    choice = read_choice(round_.result("06-search"))
    seconds = sum(_seconds(round_, name) for name in (*STAGES, "07-build"))
    return replace(
        _line(f"round {round_.number} cut", costs, measured=result["before"], seconds=seconds),
        status=choice.status,
        gap=choice.gap,
        note=choice.told(),
    )


def _healed_line(
    round_: RunRound, costs: Mapping[str, float], *, result: Mapping[str, Any]
) -> SummaryLine:
    seconds = _seconds(round_, "08-distill")
    verdict = verdict_of(result)
    return replace(
        _line(f"round {round_.number} healed", costs, measured=result["after"], seconds=seconds),
        tokens=result["tokens"],
        kept_tokens=verdict.kept_tokens,
        note=verdict.kept,
        notes=tuple(verdict.notes),
    )


def verdict_of(result: Mapping[str, Any]) -> Verdict:
    """What a healing was worth; judged anew where an old run has not kept it."""
    kept = result.get("verdict")
    return Verdict(**kept) if kept else judge(result_from_json(result))


def _line(
    name: str, costs: Mapping[str, float], *, measured: Mapping[str, float], seconds: float
) -> SummaryLine:
    return SummaryLine(
        name, costs, measured["loss"], measured["kl"], measured["agreement"], seconds
    )


def _seconds(round_: RunRound, stage: str) -> float:
    return float(read_manifest(round_.result(stage))["seconds"])
