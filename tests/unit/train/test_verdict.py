"""What is said of a healing: whether it helped, what explains its figures, and what to try."""

from __future__ import annotations

import math
from dataclasses import replace

from fretsaw.train.metrics import Metrics
from fretsaw.train.plan import DistillResult, HistoryRow, ProbeRow, SkippedStep
from fretsaw.train.verdict import judge


def _result(*kls: float, losses: tuple[float, ...] = (), probed: bool = False) -> DistillResult:
    """A healing of 1,000 tokens a step and an evaluation after each."""
    rows = tuple(
        HistoryRow(
            step,
            1000 * step,
            1e-3,
            None,
            Metrics.from_json(
                {
                    "loss": losses[step] if losses else 2.0,
                    "kl": kl,
                    "agreement": 0.9,
                    "teacher_loss": 1.9,
                    "tokens": 10,
                }
            ),
        )
        for step, kl in enumerate(kls)
    )
    best = min(rows, key=lambda row: row.held_out.kl)
    return DistillResult(
        before=rows[0].held_out,
        after=best.held_out,
        teacher_loss=1.9,
        best_step=best.step,
        tokens=rows[-1].tokens,
        probe_tokens=0,
        num_steps=rows[-1].step,
        learning_rate=2e-2,
        probe=(ProbeRow(2e-2, 0.1, 100),) if probed else (),
        history=rows,
        skipped=(),
        stop_reason="tokens",
    )


def test_f6_healing_that_did_not_help_is_said_with_what_to_try() -> None:
    verdict = judge(_result(0.02, 0.5, 0.4))
    assert verdict.kept == "kept the cut: no step was better"
    assert verdict.kept_tokens == 0
    (warning,) = verdict.warnings
    assert "held-out KL was 0.02 after the cut and at best 0.4 later" in warning
    assert "try distill.learning_rate: auto, or less than 2.0e-02" in warning
    assert "below the probe's 2.0e-02" in judge(_result(0.02, 0.5, probed=True)).warnings[0]


def test_f6_healing_whose_every_evaluation_is_not_finite_is_said() -> None:
    verdict = judge(replace(_result(0.02, math.inf), best_step=0))
    assert "at best nan later, so the cut was kept" in verdict.warnings[0]


def test_f6_healing_that_helped_says_where() -> None:
    verdict = judge(_result(0.5, 0.2, 0.1, 0.101))
    assert (verdict.kept, verdict.kept_tokens) == ("best at 2k of 3k tokens", 2000)
    assert (verdict.notes, verdict.warnings) == ((), ())


def test_f6_a_kl_that_still_falls_at_the_end_is_a_note() -> None:
    assert judge(_result(0.5, 0.2, 0.1)).notes == (
        "KL was still falling at the end: more tokens may help",
    )
    stopped = replace(_result(0.5, 0.2, 0.1), stop_reason="recovery")
    assert judge(stopped).notes == ("stopped early: the asked recovery was reached",)


def test_f6_a_kl_that_rises_after_its_best_is_a_warning() -> None:
    (warning,) = judge(_result(0.5, 0.1, 0.3)).warnings
    assert "rose from 0.1 at its best to 0.3 at the end" in warning
    (warning,) = judge(replace(_result(0.5, 0.1, math.nan), best_step=1)).warnings
    assert "to nan at the end" in warning


def test_f6_a_loss_that_rises_while_kl_falls_is_explained() -> None:
    (note,) = judge(_result(0.5, 0.1, 0.2 - 0.0999, losses=(2.0, 2.01, 2.02))).notes
    assert "loss rose by 0.0100 while KL fell from 0.5000 to 0.1000" in note
    assert "chosen by KL to it, not by loss" in note


def test_f6_steps_that_are_not_finite_are_warned_about() -> None:
    bad = (SkippedStep(2, "gradient of model.norm.weight"),)
    found = judge(replace(_result(0.5, 0.1), skipped=bad, stop_reason="not finite")).warnings
    assert "1 of 1 steps changed nothing, the first of them step 2: gradient of" in found[0]
    assert "healing stopped at step 1: no step was finite any more" in found[1]
