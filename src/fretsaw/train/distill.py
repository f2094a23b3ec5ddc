"""Healing: the student learns from the original parent's logits, and the cut is never lost."""

from __future__ import annotations

import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fretsaw.errors import RunError
from fretsaw.train.journal import Journal, Tally, fingerprint_of, hash_of
from fretsaw.train.metrics import HeldOut
from fretsaw.train.objective import Objective
from fretsaw.train.plan import DistillResult, DistillSettings, HistoryRow, ProbeRow, Schedule
from fretsaw.train.probe import find_rate, middle_rate, probe_steps
from fretsaw.train.storage import StoredDtypes, as_stored, round_weights
from fretsaw.train.trainer import DistillTrainer, OnProgress, ShuffledEpochs, Watch

__all__ = ["DistillResult", "DistillSettings", "distill"]


def distill(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    *,
    train_ids: Tensor,
    validation_ids: Tensor,
    settings: DistillSettings,
    folder: Path,
    seed: int,
    dtypes: StoredDtypes | None = None,
    on_progress: OnProgress | None = None,
    on_trial: OnProgress | None = None,
) -> DistillResult:
    """Train the student towards the teacher's distribution, and leave it with its best weights.

    Held-out KL is measured before the first step, at even distances, and after the last; the
    student ends with the weights of the best of these, the cut itself included: if no step made it
    better, it is what it was. All parameters learn, the router among them; its correction bias is
    a buffer and stays as it is. A step whose loss or gradient is not finite changes nothing and is
    named. Killed and started again with the same arguments it goes on from its last checkpoint and
    ends in the same weights.

    The student may have blocks of unequal sizes. Weights of half precision are trained in float32,
    bfloat16 with autocast around them. One process, one device.

    Args:
        student: What is healed, in place.
        teacher: The original parent, with the same tokens (`packing.shared_vocab`).
        train_ids: (sequences, tokens) int64, no padding; gone through as often as it takes.
        validation_ids: Held-out text, (sequences, tokens) int64.
        settings: How.
        folder: Of this training alone; holds checkpoints, history and best weights.
        seed: Of the order of the training text.
        dtypes: Dtype that each tensor will be stored in, by running name: held-out KL is measured
            on weights rounded so, and those are kept. Default: as they are.
        on_progress: Told how many tokens are done; not of those of the probe.
        on_trial: Told how many trials of the probe are done, at most `MAX_TRIALS`.

    Returns:
        What was lost and what came back, with every evaluation and trial.

    Raises:
        RunError: the folder belongs to another training, or the models are not finite from the
            start.

    Source: Puzzle, arXiv:2411.19146, section 5; Iterative Puzzle, arXiv:2607.04371, section 2.1.2.
        The choice of the rate and of what is kept: own.
    """
    autocast = torch.bfloat16 if student.dtype == torch.bfloat16 else torch.float32
    nn.Module.float(student).requires_grad_(True)
    round_weights(student, dtypes or {})
    teacher.requires_grad_(False).train(False)
    journal = Journal(
        folder,
        {
            "settings": asdict(settings) | {"checkpoint_s": None},
            "seed": seed,
            "dtypes": {name: str(dtype) for name, dtype in (dtypes or {}).items()},
            "training text": hash_of(train_ids),
            "held-out text": hash_of(validation_ids),
            "student": fingerprint_of(student),
            "teacher": fingerprint_of(teacher),
        },
    )
    if result := journal.finished():
        journal.load_best(student)
        return result
    healing = _Healing(
        student=student,
        objective=Objective(teacher, settings, autocast=autocast),
        held_out=HeldOut(teacher, validation_ids, batch_size=settings.batch_size),
        train_ids=train_ids,
        settings=settings,
        journal=journal,
        seed=seed,
        dtypes=dtypes or {},
    )
    healing.measure_cut(teacher)
    rate = healing.learning_rate(on_trial)
    return healing.run(rate, on_progress)


@dataclass(frozen=True)
class _Healing:
    """One call of `distill`: what its parts share."""

    student: PreTrainedModel
    objective: Objective
    held_out: HeldOut
    train_ids: Tensor
    settings: DistillSettings
    journal: Journal
    seed: int
    dtypes: StoredDtypes

    def measure_cut(self, teacher: PreTrainedModel) -> None:
        """Evaluation 0, and the cut as the first best weights."""
        if self.journal.best_file_step() is not None and self.journal.rows:
            return
        metrics = self.held_out.measure(self.student)
        if not math.isfinite(metrics.kl):
            raise RunError(
                f"{_not_finite(self.student, teacher)} not finite: held-out KL is {metrics.kl}",
                "check the checkpoints with `fretsaw describe`; a damaged file, or an overflow in "
                "half precision, gives such values",
            )
        row = HistoryRow(0, 0, 0.0, None, metrics)
        self.journal.save_best(self.student, row)
        self.journal.add_row(row)

    def learning_rate(self, on_trial: OnProgress | None) -> float:
        """The rate that was given, or the probe's."""
        given = self.settings.learning_rate
        if given != "auto":
            return given
        kl = self.journal.rows[0].held_out.kl
        steps = probe_steps(self.settings.num_steps)
        if steps == 0:
            return middle_rate(kl)

        def trial(rate: float) -> ProbeRow:
            if on_trial is not None:
                on_trial(len(self.journal.probe), f"{rate:.1e}")
            row = self._trial(rate, steps)
            self.journal.add_probe(row)
            return row

        return find_rate(kl, trial, done=tuple(self.journal.probe))

    def _trial(self, rate: float, steps: int) -> ProbeRow:
        with tempfile.TemporaryDirectory(dir=self.journal.folder) as folder:
            trainer = self._trainer(rate, steps=steps, folder=Path(folder), tally=Tally())
            trainer.train()
        with as_stored(self.student, self.dtypes):
            kl = self.held_out.measure(self.student).kl
        self.journal.load_best(self.student)
        return ProbeRow(rate, kl, steps * self.settings.step_tokens)

    def run(self, rate: float, on_progress: OnProgress | None) -> DistillResult:
        """The training itself, from the cut or from the last checkpoint."""
        journal, settings = self.journal, self.settings
        checkpoint, tally = journal.resume()
        watch = Watch(
            journal=journal,
            held_out=self.held_out,
            settings=settings,
            tally=tally,
            dtypes=self.dtypes,
            on_progress=on_progress,
        )
        trainer = self._trainer(
            rate, steps=settings.num_steps, folder=journal.folder, tally=tally, watch=watch
        )
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        best = journal.best_row()
        journal.load_best(self.student)
        self.student.train(False)
        result = DistillResult(
            before=journal.rows[0].held_out,
            after=best.held_out,
            teacher_loss=best.held_out.teacher_loss,
            best_step=best.step,
            tokens=journal.rows[-1].tokens,
            probe_tokens=sum(row.tokens for row in journal.probe),
            num_steps=journal.rows[-1].step,
            learning_rate=rate,
            probe=tuple(journal.probe),
            history=tuple(journal.rows),
            skipped=tuple(tally.skipped),
            stop_reason=watch.stop_reason,
        )
        journal.finish(result)
        return result

    def _trainer(
        self, rate: float, *, steps: int, folder: Path, tally: Tally, watch: Watch | None = None
    ) -> DistillTrainer:
        settings = self.settings
        length = steps * settings.batch_size
        return DistillTrainer(
            self.student,
            self.objective,
            schedule=Schedule(rate, steps, settings.warmup_fraction, settings.final_fraction),
            settings=settings,
            data=ShuffledEpochs(self.train_ids, length=length, seed=self.seed),
            folder=folder,
            tally=tally,
            watch=watch,
        )


def _not_finite(student: nn.Module, teacher: nn.Module) -> str:
    for role, model in (("student", student), ("teacher", teacher)):
        for name, parameter in model.named_parameters():
            if not parameter.isfinite().all():
                return f"{role} weight {name} is"
    return "the logits are"
