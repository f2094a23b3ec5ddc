"""Healing of what rounding costs: a checkpoint learns from its teacher while it is rounded."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fretsaw.checkpoint.assets import copy_assets
from fretsaw.checkpoint.contents import LINEAGE_NAME
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import TORCH_DTYPES, write_json
from fretsaw.core.precision import Precision
from fretsaw.quant.calibrate import Activations
from fretsaw.quant.scales import GivenScales, Method
from fretsaw.runtime.fake import PlannedRounding, rounded
from fretsaw.runtime.load import load_model, running_tensors, save_weights
from fretsaw.stages.progress import Reporter
from fretsaw.stages.text import tell_texts
from fretsaw.train.data import load_split
from fretsaw.train.distill import DistillSettings, distill
from fretsaw.train.packing import Wanted, load_tokenizer, read_text
from fretsaw.train.splits import Split

HEALED, TRAINING = "healed", "training"
SCALES = "scales/given.safetensors"
"""In a folder of its own: what lies beside weights is read as weights."""
ROUNDING = "rounding"
"""What the scales are called as a part of the student."""


@dataclass(frozen=True)
class HealingOptions:
    """How long, and on what.

    Attributes:
        teacher: Checkpoint in full precision that is learned from.
        tokens: Of training text.
        sequence_length: Tokens in each sequence.
        batch_size: Sequences of a step.
        learning_rate: Peak rate; found by a probe if not given.
        method: Where scales come from.
        validation_sequences: Of held-out text.
        seed: Of the order of the text.
    """

    teacher: Path
    tokens: int
    sequence_length: int = 1024
    batch_size: int = 8
    learning_rate: float | None = None
    method: Method = "max"
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
) -> tuple[Checkpoint, GivenScales]:
    """A checkpoint like `source` that was healed around the rounding of a precision.

    Its weights are in the dtypes of `source`: quantised with the scales that come with it, by the
    same method and with the same activation maxima, they are what was learned.

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
        return Checkpoint(healed), GivenScales.from_tensors(load_file(healed / SCALES))
    student, teacher = load_model(source), load_model(Checkpoint(options.teacher))
    ids = _Text(source, options, text, text_key, reporter)
    rounding = PlannedRounding(
        student,
        source.shape,
        precision=precision,
        activations=activations,
        method=options.method,
    )
    student.add_module(ROUNDING, rounding)
    settings = DistillSettings(
        tokens=options.tokens,
        sequence_length=options.sequence_length,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate or "auto",
    )
    with (
        rounded(student, source.shape, roundings=rounding.roundings),
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
            dtypes=_dtypes(source),
            on_progress=lambda done, words="": advance(done, words),
        )
    given = rounding.given
    _save(student, source, given=given, folder=healed)
    shutil.rmtree(folder / TRAINING)
    return Checkpoint(healed), given


def _dtypes(source: Checkpoint) -> dict[str, torch.dtype]:
    """Running name of a tensor -> dtype that it is stored in."""
    return {
        running: TORCH_DTYPES[source.dtype_of(next(row.names())[0])]
        for running, _, row in running_tensors(source.shape)
    }


@dataclass(frozen=True)
class _Text:
    source: Checkpoint
    options: HealingOptions
    path: Path
    key: str
    reporter: Reporter

    def packed(self, split: Split, sequences: int) -> Tensor:
        """At most so many sequences of a split; shorter text is gone through several times."""
        tokenizer = load_tokenizer(self.source.folder)
        read = read_text(
            load_split(self.path, split, text_key=self.key, tokenizer=tokenizer),
            tokenizer,
            wanted=Wanted(
                sequences,
                self.options.sequence_length,
                seed=self.options.seed,
                vocab_size=self.source.shape.sizes["vocab"],
                min_sequences=min(sequences, self.options.batch_size),
            ),
        )
        tell_texts([read.found], reporter=self.reporter)
        return read.ids


def _save(
    student: torch.nn.Module, source: Checkpoint, *, given: GivenScales, folder: Path
) -> None:
    aside = folder.with_name(folder.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    save_weights(student, source, folder=aside)  # type: ignore[arg-type]
    (aside / SCALES).parent.mkdir()
    save_file({key: tensor.clone() for key, tensor in given.tensors().items()}, aside / SCALES)
    write_json(aside / "config.json", source.config)
    copy_assets(source.folder, aside)
    if (source.folder / LINEAGE_NAME).is_file():
        shutil.copyfile(source.folder / LINEAGE_NAME, aside / LINEAGE_NAME)
    aside.rename(folder)
