"""Healing of what rounding costs: a checkpoint learns from its teacher while it is rounded."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fretsaw.checkpoint.assets import copy_assets
from fretsaw.checkpoint.lineage import LINEAGE_NAME
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import TORCH_DTYPES, write_json
from fretsaw.core.precision import Precision
from fretsaw.quant.calibrate import Activations
from fretsaw.runtime.fake import planned_roundings, rounded
from fretsaw.runtime.load import load_model, running_tensors, save_weights
from fretsaw.stages.progress import Reporter
from fretsaw.train.data import Split, load_split
from fretsaw.train.distill import DistillSettings, distill
from fretsaw.train.packing import load_tokenizer, pack

HEALED, TRAINING = "healed", "training"


@dataclass(frozen=True)
class HealingOptions:
    """How long, and on what.

    Attributes:
        teacher: Checkpoint in full precision that is learned from.
        tokens: Of training text.
        sequence_length: Tokens in each sequence.
        batch_size: Sequences of a step.
        learning_rate: Peak rate; found by a probe if not given.
        validation_sequences: Of held-out text.
        seed: Of the order of the text.
    """

    teacher: Path
    tokens: int
    sequence_length: int = 1024
    batch_size: int = 8
    learning_rate: float | None = None
    validation_sequences: int = 32
    seed: int = 0


def heal_quantized(
    source: Checkpoint,
    precision: Precision,
    *,
    activations: Activations,
    options: HealingOptions,
    text: Path,
    text_key: str,
    folder: Path,
    reporter: Reporter,
) -> Checkpoint:
    """A checkpoint like `source` that was healed around the rounding of a precision.

    Its weights are in the dtypes of `source`: quantised by largest magnitudes and with the same
    activation maxima they are what was learned.

    Args:
        source: What will be quantised.
        precision: How.
        activations: Maxima that input scales come from, which do not change.
        options: See there.
        text: Data with splits for training and validation.
        text_key: Column that holds the text.
        folder: Private; a killed run goes on from what it left there.
        reporter: Where progress goes.

    Raises:
        DataError: the text is missing or too short.
        RunError: the models are not finite.
    """
    healed = folder / HEALED
    if healed.is_dir():
        return Checkpoint(healed)
    student, teacher = load_model(source), load_model(Checkpoint(options.teacher))
    dtypes = {
        running: TORCH_DTYPES[source.dtype_of(next(row.names())[0])]
        for running, _, row in running_tensors(source.shape)
    }
    ids = _Text(source, options, text, text_key)
    roundings = planned_roundings(source.shape, precision, activations=activations)
    settings = DistillSettings(
        tokens=options.tokens,
        sequence_length=options.sequence_length,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate or "auto",
    )
    with (
        rounded(student, source.shape, roundings=roundings),
        reporter.progress("healing tokens", options.tokens) as advance,
    ):
        distill(
            student,
            teacher,
            train_ids=ids.packed("train", -(-options.tokens // options.sequence_length)),
            validation_ids=ids.packed("validation", options.validation_sequences),
            settings=settings,
            folder=folder / TRAINING,
            seed=options.seed,
            dtypes=dtypes,
            on_progress=lambda done, words="": advance(done, words),
        )
    _save(student, source, folder=healed)
    shutil.rmtree(folder / TRAINING)
    return Checkpoint(healed)


@dataclass(frozen=True)
class _Text:
    source: Checkpoint
    options: HealingOptions
    path: Path
    key: str

    def packed(self, split: Split, sequences: int) -> Tensor:
        """At most so many sequences of a split; shorter text is gone through several times."""
        return pack(
            load_split(self.path, split, text_key=self.key),
            load_tokenizer(self.source.folder),
            num_sequences=sequences,
            sequence_length=self.options.sequence_length,
            seed=self.options.seed,
            vocab_size=self.source.shape.sizes["vocab"],
            min_sequences=min(sequences, self.options.batch_size),
        )


def _save(student: torch.nn.Module, source: Checkpoint, *, folder: Path) -> None:
    aside = folder.with_name(folder.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    save_weights(student, source, folder=aside)  # type: ignore[arg-type]
    write_json(aside / "config.json", source.config)
    copy_assets(source.folder, aside)
    if (source.folder / LINEAGE_NAME).is_file():
        shutil.copyfile(source.folder / LINEAGE_NAME, aside / LINEAGE_NAME)
    aside.rename(folder)
