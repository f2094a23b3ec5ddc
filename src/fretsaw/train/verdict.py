"""What a healing came to, in words: what was kept and why, and what to try if it did not help."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fretsaw.core.units import format_count
from fretsaw.train.plan import DistillResult

WORSE = 1.05
"""Held-out KL that ends so far above the best one has risen, and not by chance."""

RISEN = 0.002
"""Loss in nats that is worth a word; the figures of a table are in steps of 0.0001."""


@dataclass(frozen=True)
class Verdict:
    """On one healing.

    Attributes:
        kept: Whose weights were kept, in a few words.
        kept_tokens: Training tokens behind them; 0 is the cut itself.
        notes: What explains the figures.
        warnings: What went wrong, each with what to try.
    """

    kept: str
    kept_tokens: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def judge(result: DistillResult) -> Verdict:
    """The verdict on a healing, by held-out KL to the teacher, which the weights are chosen by."""
    best = next(row for row in result.history if row.step == result.best_step)
    kept = f"best at {format_count(best.tokens)} of {format_count(result.tokens)} tokens"
    if not result.is_improved:
        kept = "kept the cut: no step was better"
    return Verdict(kept, best.tokens, tuple(_notes(result)), tuple(_warnings(result)))


def _notes(result: DistillResult) -> list[str]:
    notes = []
    if result.is_improved and result.best_step == result.num_steps:
        if result.stop_reason == "tokens":
            notes.append("KL was still falling at the end: more tokens may help")
        elif result.stop_reason == "recovery":
            notes.append("stopped early: the asked recovery was reached")
    rise = result.after.loss - result.before.loss
    if result.is_improved and rise > RISEN:
        notes.append(
            f"loss rose by {rise:.4f} while KL fell from {result.before.kl:.4f} to "
            f"{result.after.kl:.4f}: healing learns the parent's distribution, and the weights are "
            "chosen by KL to it, not by loss"
        )
    return notes


def _warnings(result: DistillResult) -> list[str]:
    warnings = []
    if result.skipped:
        first = result.skipped[0]
        warnings.append(
            f"{len(result.skipped)} of {result.num_steps} steps changed nothing, the first "
            f"of them step {first.step}: {first.tensor} is not finite; {_lower(result)}"
        )
    if result.stop_reason == "not finite":
        warnings.append(f"healing stopped at step {result.num_steps}: no step was finite any more")
    later = [row.held_out.kl for row in result.history[1:]]
    if not result.is_improved:
        nearest = min((kl for kl in later if math.isfinite(kl)), default=math.nan)
        warnings.append(
            f"healing did not help: held-out KL was {result.before.kl:.4g} after the cut and at "
            f"best {nearest:.4g} later, so the cut was kept; {_lower(result)}, or give text of "
            "more kinds in the train split"
        )
    elif not later[-1] <= WORSE * result.after.kl:
        warnings.append(
            f"held-out KL rose from {result.after.kl:.4g} at its best to {later[-1]:.4g} at the "
            f"end; {_lower(result)}, or give more text in the train split"
        )
    return warnings


def _lower(result: DistillResult) -> str:
    """What to try with the rate."""
    if result.probe:
        return f"try a distill.learning_rate below the probe's {result.learning_rate:.1e}"
    return f"try distill.learning_rate: auto, or less than {result.learning_rate:.1e}"
