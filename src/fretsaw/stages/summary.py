"""Collect what the stages of a finished run have measured."""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping
from typing import Any

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.pricing.memory import model_costs
from fretsaw.reports.summary import Summary, SummaryLine
from fretsaw.stages.build import CHILD
from fretsaw.stages.distill import RESULT
from fretsaw.stages.run import Run, RunRound, read_manifest
from fretsaw.stages.speedup import read_speedups

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
    parent_costs = model_costs(Checkpoint(run.parent).shape)
    lines: list[SummaryLine] = []
    child = run.parent
    for round_ in run.rounds():
        result = read_result(round_)
        child = round_.result("08-distill") / CHILD
        costs = model_costs(Checkpoint(child).shape)
        if not lines:
            lines.append(SummaryLine("parent", parent_costs, result["teacher_loss"], 0.0, 1.0, 0.0))
        cut_s = sum(_seconds(round_, name) for name in (*STAGES, "07-build"))
        lines.append(
            _line(f"round {round_.number} cut", costs, measured=result["before"], seconds=cut_s)
        )
        healed_s = _seconds(round_, "08-distill")
        lines.append(
            _line(
                f"round {round_.number} healed",
                costs,
                measured=result["after"],
                seconds=healed_s,
                tokens=result["tokens"],
            )
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    served = read_speedups(round_.result("07-build"))
    return Summary(tuple(lines), child, run.folder, peak, tuple(served))


def read_result(round_: RunRound) -> dict[str, Any]:
    """What a finished healing measured."""
    text = (round_.result("08-distill") / RESULT).read_text(encoding="utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


def _line(
    name: str,
    costs: Mapping[str, float],
    *,
    measured: Mapping[str, float],
    seconds: float,
    tokens: int = 0,
) -> SummaryLine:
    return SummaryLine(
        name, costs, measured["loss"], measured["kl"], measured["agreement"], seconds, tokens
    )


def _seconds(round_: RunRound, stage: str) -> float:
    return float(read_manifest(round_.result(stage))["seconds"])
