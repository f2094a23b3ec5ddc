"""Healing of what rounding costs: a checkpoint learns from its teacher while it is rounded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fretsaw.checkpoint.assets import copy_assets
from fretsaw.checkpoint.contents import LINEAGE_NAME
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.tensors import TORCH_DTYPES
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.precision import Precision
from fretsaw.quant.calibrate import Activations
from fretsaw.quant.scales import GivenScales
from fretsaw.runtime.fake import PlannedRounding, rounded
from fretsaw.runtime.load import load_model, running_tensors, save_weights
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantize_options import HEAL_TOKENS, QuantizeOptions
from fretsaw.train.distill import DistillSettings, distill
from fretsaw.train.probe import MAX_TRIALS
from fretsaw.train.verdict import judge

HEALED, TRAINING = "healed", "training"
SCALES = "scales/given.safetensors"
"""In a folder of its own: what lies beside weights is read as weights."""
ROUNDING = "rounding"
"""What the scales are called as a part of the student."""


def heal_quantized(
    source: Checkpoint,
    precision: Precision,
    *,
    activations: Activations,
    options: QuantizeOptions,
    train: Callable[[], Tensor],
    held_out: Callable[[], Tensor],
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
        options: With a teacher.
        train: Gives the text to learn from, (sequences, tokens).
        held_out: Gives the text that rate and best weights rest on.
        folder: Private; a killed run goes on from what it left there.
        reporter: Where progress goes.

    Raises:
        DataError: the text is missing or too short.
        RunError: the models are not finite.
    """
    healed = folder / HEALED
    if healed.is_dir():
        return Checkpoint(healed), GivenScales.from_tensors(load_file(healed / SCALES))
    assert options.teacher is not None
    student, teacher = load_model(source), load_model(Checkpoint(options.teacher))
    rounding = PlannedRounding(
        student,
        source.shape,
        precision=precision,
        activations=activations,
        method=options.method,
        is_power_of_two_cache=options.is_power_of_two_cache,
    )
    student.add_module(ROUNDING, rounding)
    settings = _settings(options)
    with (
        rounded(student, source.shape, roundings=rounding.roundings),
        reporter.in_turn() as begin,
    ):
        result = distill(
            student,
            teacher,
            train_ids=train(),
            validation_ids=held_out(),
            settings=settings,
            folder=folder / TRAINING,
            seed=options.seed,
            dtypes=_dtypes(source),
            on_progress=begin("healing tokens", settings.tokens),
            on_trial=begin("learning rates tried", MAX_TRIALS),
        )
    for warning in judge(result).warnings:
        reporter.warn(warning)
    given = rounding.given
    _save(student, source, given=given, folder=healed)
    shutil.rmtree(folder / TRAINING)
    return Checkpoint(healed), given


def _settings(options: QuantizeOptions) -> DistillSettings:
    return DistillSettings(
        tokens=options.heal_tokens or HEAL_TOKENS,
        sequence_length=options.heal_sequence_length,
        batch_size=options.heal_batch_size,
        learning_rate=options.learning_rate or "auto",
    )


def _dtypes(source: Checkpoint) -> dict[str, torch.dtype]:
    """Running name of a tensor -> dtype that it is stored in."""
    return {
        running: TORCH_DTYPES[source.dtype_of(next(row.names())[0])]
        for running, _, row in running_tensors(source.shape)
    }


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
