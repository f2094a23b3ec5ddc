"""transformers' Trainer with a teacher: schedule, skipped steps, evaluations, checkpoints."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_callback import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from typing_extensions import override

from fretsaw.train.journal import Journal, Tally, save_parameters
from fretsaw.train.metrics import HeldOut
from fretsaw.train.objective import Objective
from fretsaw.train.plan import DistillSettings, HistoryRow, Schedule, SkippedStep, StopReason
from fretsaw.train.storage import StoredDtypes, as_stored

BETAS = (0.9, 0.95)
"""Of AdamW, as in Nemotron 3 Super's pre-training (arXiv:2604.12374)."""

MAX_SKIPPED_IN_A_ROW = 10
NUM_NAMES = 3


class OnProgress(Protocol):
    """Told how many training tokens are done, and in a few words how it goes."""

    def __call__(self, done: int, text: str = "") -> None:
        """Report progress."""


class ShuffledEpochs(Dataset[dict[str, Tensor]]):
    """Sequences in a new random order each time they have all been seen.

    Args:
        ids: (sequences, tokens) int64.
        length: How many sequences to give in all.
        seed: Of the orders.
    """

    def __init__(self, ids: Tensor, *, length: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.seed = seed
        num_epochs = -(-length // len(ids))
        orders = [torch.randperm(len(ids), generator=generator) for _ in range(num_epochs)]
        self._ids = ids
        self._order = torch.cat(orders)[:length]

    def __len__(self) -> int:
        """Sequences in all epochs."""
        return len(self._order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One sequence, in the words of a transformers batch."""
        return {"input_ids": self._ids[self._order[index]]}


class DistillTrainer(Trainer):
    """Trains a student by an objective along a schedule; a step that is not finite does nothing.

    Own optimizer and schedule objects are handed to the base class, so that nothing here depends
    on names of schedules that differ between versions of transformers. Weights of checkpoints are
    stored under running names: the base class would save a nemotron_h in its converted on-disk
    names and then, loading with strict=False, silently find none of them.

    Args:
        student: In float32.
        objective: Gives the loss of a batch.
        schedule: Learning rates and number of steps.
        settings: Batch size, decay and clipping.
        data: What to train on, in order.
        folder: For checkpoints.
        tally: Counts; shared with `watch`.
        watch: Evaluates and keeps; None in the probe.
    """

    def __init__(
        self,
        student: PreTrainedModel,
        objective: Objective,
        *,
        schedule: Schedule,
        settings: DistillSettings,
        data: ShuffledEpochs,
        folder: Path,
        tally: Tally,
        watch: Watch | None = None,
    ) -> None:
        optimizer = torch.optim.AdamW(
            _groups(student, settings.weight_decay), lr=schedule.peak_rate, betas=BETAS, fused=True
        )
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=schedule.num_steps,
            per_device_train_batch_size=settings.batch_size,
            max_grad_norm=settings.clip_norm,
            seed=data.seed,
            use_cpu=student.device.type == "cpu",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            eval_strategy="no",
            save_strategy="no",
            save_total_limit=2,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
        )
        arguments._n_gpu = min(1, arguments.n_gpu)  # one device: no DataParallel around the student
        super().__init__(
            model=student,
            args=arguments,
            optimizers=(optimizer, LambdaLR(optimizer, schedule.factor)),
            callbacks=[watch] if watch else [],
        )
        self.remove_callback(PrinterCallback)
        self._objective = objective
        self._tally = tally
        self._data = data

    @override
    def get_train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """Batches in the order of the data set, which is shuffled already."""
        size = self.args.per_device_train_batch_size
        loader = DataLoader(self._data, batch_size=size, generator=torch.Generator())
        prepared: DataLoader[dict[str, Tensor]] = self.accelerator.prepare(loader)
        return prepared

    @override
    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The objective's loss."""
        return self._objective(model, inputs["input_ids"])

    @override
    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward; without a finite gradient there is none, and AdamW stands still."""
        loss = super().training_step(model, *args, **kwargs)
        culprit = self._objective.suspect or _not_finite_gradients(model)
        if culprit is None:
            self._tally.kl_sum += self._objective.last_kl
            self._tally.kl_count += 1
            self._tally.num_in_a_row = 0
            return loss
        model.zero_grad(set_to_none=True)
        step = self.state.global_step + 1
        self._tally.skipped.append(SkippedStep(step, culprit))
        self._tally.num_in_a_row += 1
        warnings.warn(f"step {step} skipped: {culprit} is not finite", RuntimeWarning, stacklevel=2)
        return torch.zeros_like(loss)

    @override
    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: the base class's estimate walks over all parameters each step."""
        return 0

    @override
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        assert output_dir is not None
        assert isinstance(self.model, nn.Module)
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_parameters(self.model, folder / "model.safetensors")


def _groups(student: PreTrainedModel, weight_decay: float) -> list[dict[str, Any]]:
    parameters = [p for p in student.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _not_finite_gradients(model: nn.Module) -> str | None:
    """Names of the first parameters whose gradient, or its norm, is not finite."""
    pairs = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    norms = torch.stack([grad.norm() for _, grad in pairs])
    if norms.isfinite().all():
        return None
    names = [n for (n, _), norm in zip(pairs, norms.tolist(), strict=True) if not _is_finite(norm)]
    return "gradient of " + ", ".join(names[:NUM_NAMES]) + (" …" if names[NUM_NAMES:] else "")


def _is_finite(value: float) -> bool:
    return abs(value) < float("inf")


class Watch(TrainerCallback):
    """Evaluates on held-out text, keeps the best weights, stops, and says when to checkpoint.

    Args:
        journal: Where history and weights go.
        held_out: What to measure on.
        settings: When to evaluate, stop and checkpoint.
        tally: Shared with the trainer.
        dtypes: In which the kept weights will be stored; they are measured, and kept, as such.
        on_progress: Told of every step.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        held_out: HeldOut,
        settings: DistillSettings,
        tally: Tally,
        dtypes: StoredDtypes,
        on_progress: OnProgress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._held_out = held_out
        self._settings = settings
        self._tally = tally
        self._dtypes = dtypes
        self._on_progress = on_progress
        self._clock = clock
        self._last_checkpoint = clock()
        self.stop_reason: StopReason = "tokens"

    @override
    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """After each step."""
        step = state.global_step
        is_last = step >= self._settings.num_steps
        if self._tally.num_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            self.stop_reason = "not finite"
            control.should_training_stop = True
        if step % self._settings.evaluate_every == 0 or is_last or control.should_training_stop:
            rate = kwargs["lr_scheduler"].get_last_lr()[0]
            self._evaluate(kwargs["model"], step=step, rate=rate)
            if not is_last and self._should_stop():
                control.should_training_stop = True
        self._report(step)
        is_due = self._clock() - self._last_checkpoint >= self._settings.checkpoint_s
        control.should_save = is_due and not is_last and not control.should_training_stop

    @override
    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """After a checkpoint was written."""
        self._journal.mark_checkpoint(state.global_step, self._tally)
        self._last_checkpoint = self._clock()

    def _evaluate(self, model: PreTrainedModel, *, step: int, rate: float) -> None:
        tally = self._tally
        train_kl = tally.kl_sum / tally.kl_count if tally.kl_count else None
        tally.kl_sum, tally.kl_count = 0.0, 0
        with as_stored(model, self._dtypes):
            metrics = self._held_out.measure(model)
            row = HistoryRow(step, step * self._settings.step_tokens, rate, train_kl, metrics)
            if metrics.kl < self._journal.best_row().held_out.kl:
                self._journal.save_best(model, row)
        self._journal.add_row(row)

    def _should_stop(self) -> bool:
        rows, best = self._journal.rows, self._journal.best_row()
        start = rows[0].held_out.kl
        settings = self._settings
        if settings.recovery is not None and best.held_out.kl <= settings.recovery * start:
            self.stop_reason = "recovery"
            return True
        waited = len(rows) - 1 - rows.index(best)
        if settings.patience is not None and waited >= settings.patience:
            self.stop_reason = "patience"
            return True
        return False

    def _report(self, step: int) -> None:
        if self._on_progress is None:
            return
        start, now = self._journal.rows[0].held_out.kl, self._journal.rows[-1].held_out.kl
        done = min(step * self._settings.step_tokens, self._settings.tokens)
        self._on_progress(done, f"KL {now:.4f}, after the cut {start:.4f}")
