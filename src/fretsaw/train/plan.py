"""What a distillation is asked to do, and what came of it: plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fretsaw.train.metrics import Metrics

StopReason = Literal["tokens", "recovery", "patience", "not finite"]


@dataclass(frozen=True)
class DistillSettings:
    """How to heal.

    Attributes:
        tokens: Training tokens, rounded up to whole steps.
        sequence_length: Tokens per sequence of the training text.
        batch_size: Sequences per step.
        learning_rate: Peak rate of AdamW, or "auto": found by a short probe (`probe.py`).
        warmup_fraction: Share of the steps over which the rate rises from zero.
        final_fraction: Share of the peak rate that the cosine ends at.
        weight_decay: Of matrices; vectors (norms, A_log, D, biases) never decay.
        clip_norm: Largest gradient norm.
        cosine_weight: Of the cosine distance of hidden states.
        label_weight: Of the next-token loss on the text itself.
        balance_weight: Of the load-balance loss of the routers.
        evaluations: How often held-out KL is measured, evenly over the steps.
        validation_sequences: Sequences of held-out text.
        patience: Stop after this many evaluations without a new best.
        recovery: Stop once held-out KL is at most this share of what it was right after the cut.
        checkpoint_s: Seconds between checkpoints to resume from.
    """

    tokens: int
    sequence_length: int
    batch_size: int
    learning_rate: float | Literal["auto"] = "auto"
    warmup_fraction: float = 0.1
    final_fraction: float = 0.1
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    cosine_weight: float = 0.0
    label_weight: float = 0.0
    balance_weight: float = 0.0
    evaluations: int = 10
    validation_sequences: int = 32
    patience: int | None = None
    recovery: float | None = None
    checkpoint_s: float = 60.0

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.batch_size * self.sequence_length

    @property
    def num_steps(self) -> int:
        """Steps that go through all tokens."""
        return max(1, math.ceil(self.tokens / self.step_tokens))

    @property
    def evaluate_every(self) -> int:
        """Steps between two evaluations."""
        return math.ceil(self.num_steps / self.evaluations)


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to the peak rate, then a cosine down to a share of it.

    Attributes:
        peak_rate: Largest learning rate.
        num_steps: Length.
        warmup_fraction: Share of the steps with a rising rate.
        final_fraction: Share of the peak at the last step.
    """

    peak_rate: float
    num_steps: int
    warmup_fraction: float
    final_fraction: float

    def factor(self, step: int) -> float:
        """Share of the peak rate at a step, counted from 0; never 0, no step is wasted."""
        warmup = math.floor(self.warmup_fraction * self.num_steps)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = min(1.0, (step - warmup) / max(1, self.num_steps - 1 - warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.final_fraction + (1 - self.final_fraction) * cosine


@dataclass(frozen=True)
class HistoryRow:
    """One evaluation.

    Attributes:
        step: Steps done.
        tokens: Training tokens seen.
        rate: Learning rate of the last step.
        train_kl: Mean KL of the training steps since the row before, nats per token.
        held_out: Student against teacher on held-out text.
    """

    step: int
    tokens: int
    rate: float
    train_kl: float | None
    held_out: Metrics


@dataclass(frozen=True)
class ProbeRow:
    """One trial of the learning-rate probe: held-out KL after a few steps at a peak rate."""

    rate: float
    kl: float
    tokens: int


@dataclass(frozen=True)
class SkippedStep:
    """A step that changed nothing, because its loss or gradient was not finite."""

    step: int
    tensor: str


@dataclass(frozen=True)
class DistillResult:
    """What healing did.

    Attributes:
        before: The cut, before any step.
        after: The weights that were kept: the best evaluation, the cut itself included.
        teacher_loss: Next-token loss of the teacher on the same text, nats.
        best_step: Steps behind the kept weights; 0 if no step made the cut better.
        tokens: Training tokens seen.
        probe_tokens: Tokens that the probe trained on, beside them.
        num_steps: Steps done.
        learning_rate: Peak rate used.
        probe: Trials of the probe, in order; empty if the rate was given.
        history: Evaluations, step 0 first.
        skipped: Steps without a finite gradient.
        stop_reason: Why it ended.
    """

    before: Metrics
    after: Metrics
    teacher_loss: float
    best_step: int
    tokens: int
    probe_tokens: int
    num_steps: int
    learning_rate: float
    probe: tuple[ProbeRow, ...]
    history: tuple[HistoryRow, ...]
    skipped: tuple[SkippedStep, ...]
    stop_reason: StopReason

    @property
    def is_improved(self) -> bool:
        """Whether the kept weights are nearer to the teacher than the cut was."""
        return self.best_step > 0


def row_from_json(data: Mapping[str, Any]) -> HistoryRow:
    """A history row from plain data."""
    return HistoryRow(**{**data, "held_out": Metrics.from_json(data["held_out"])})


def result_from_json(data: Mapping[str, Any]) -> DistillResult:
    """A result from plain data."""
    return DistillResult(
        **{
            **data,
            "before": Metrics.from_json(data["before"]),
            "after": Metrics.from_json(data["after"]),
            "probe": tuple(ProbeRow(**row) for row in data["probe"]),
            "history": tuple(row_from_json(row) for row in data["history"]),
            "skipped": tuple(SkippedStep(**row) for row in data["skipped"]),
        }
    )
