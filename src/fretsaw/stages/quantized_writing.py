"""A checkpoint in FP8 or NVFP4 in a folder of one's own: calibrated, healed, written, measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fretsaw.checkpoint.contents import LINEAGE_NAME
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import Planned, need_disk, write_json
from fretsaw.core.precision import AUTO, Precision
from fretsaw.core.units import parse_shard_bytes
from fretsaw.errors import CheckpointError, RecipeError
from fretsaw.quant.calibrate import Activations
from fretsaw.quant.export import ExportSettings, check_calibrated, write_quantized
from fretsaw.quant.plan import ExportPlan, plan_export
from fretsaw.quant.reader import QuantizedCheckpoint, dequantized
from fretsaw.quant.scales import GivenScales
from fretsaw.reports.quantized import ChosenFormat, HeldOutFigures, Quantized
from fretsaw.runtime.activations import ActivationSettings, measure_activations
from fretsaw.runtime.fake import fake_quantized
from fretsaw.runtime.load import load_model
from fretsaw.stages.loaders import write_who_can_load
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantize_options import QuantizeOptions, precision_of
from fretsaw.stages.quantized_formats import check_bits, choose_precision, read_chosen
from fretsaw.stages.quantized_healing import HEALED, heal_quantized
from fretsaw.train.metrics import HeldOut

CALIBRATION = "fretsaw_calibration.json"
EVALUATION = "fretsaw_evaluation.json"
BATCH = 8


@dataclass(frozen=True)
class Texts:
    """What gives token ids, (sequences, tokens), each for its purpose.

    Attributes:
        fit: Scales of activations come from it.
        judge: ``auto`` judges on it; nothing was fitted on it.
        train: Healing learns from it.
        held_out: Healing is watched on it, and the result measured.
    """

    fit: Callable[[], Tensor]
    judge: Callable[[], Tensor]
    train: Callable[[], Tensor]
    held_out: Callable[[], Tensor]


@dataclass(frozen=True)
class Job:
    """One checkpoint to be quantised; made before any work, and refused if it cannot be done.

    Attributes:
        source: In 16 or 32 bits.
        options: How.
        texts: None where no text is given.
        reporter: Where progress goes.
        parent: Original parent of the run, measured against too.
    """

    source: Checkpoint
    options: QuantizeOptions
    texts: Texts | None
    reporter: Reporter
    parent: Path | None = None

    def check(self, out: Path) -> None:
        """Refuse what cannot be done, before any work.

        Raises:
            CheckpointError: the checkpoint is damaged, or quantised already.
            DataError: input scales cannot be made without text.
            InfeasibleError: fewer bits than the smallest formats take.
            RecipeError: the precision does not fit the model, or there is no teacher there.
            RunError: the disk is too small.
            ShapeError: a weight's rows fall into no blocks.
        """
        source, options = self.source, self.options
        if isinstance(dequantized(source), QuantizedCheckpoint):
            raise CheckpointError(
                f"{source.folder} is quantised already", "give the checkpoint that it was made from"
            )
        source.check()
        parse_shard_bytes(options.shard_bytes)
        if options.teacher is not None and not options.teacher.is_dir():
            hint = "give a checkpoint folder"
            raise RecipeError(f"there is no teacher at {options.teacher}", hint)
        if options.bits is not None:
            check_bits(source, bits=options.bits)
            return
        if self.texts is None:
            check_calibrated(self.plan, None)
        need_disk(out, self.plan.num_bytes)

    @cached_property
    def precision(self) -> Precision | None:
        """That is asked for; None for ``auto``."""
        return None if self.options.to == AUTO else precision_of(self.options)

    @cached_property
    def plan(self) -> ExportPlan:
        """What is written where formats are given."""
        assert self.precision is not None
        return plan_export(self.source, self.precision, layout=self.options.layout)

    def write(self, folder: Path) -> Quantized:
        """Fill a folder with the quantised checkpoint; goes on with what a killed call has left.

        Args:
            folder: Existing, private; `tidy` makes it a checkpoint.

        Raises:
            CheckpointError: a weight has values that are not finite.
            DataError: calibration is missing for a weight.
            RunError: the models are not finite.
        """
        activations = self._activations(folder)
        precision = self.precision or self._chosen(activations, folder)
        plan = plan_export(self.source, precision, layout=self.options.layout)
        weights, given = self.source, GivenScales()
        if self.options.teacher is not None and activations is not None:
            weights, given = self._healed(precision, activations, folder=folder)
        self._write(weights, plan, activations=activations, given=given, folder=folder)
        _check(folder, plan)
        stored = [Planned(p.key, p.dtype, p.shape) for p in self.source.stored.values()]
        borrowed = activations.borrowed if activations else {}
        from_source, from_parent = self._measured(folder)
        return Quantized(
            folder=folder,
            precision=precision.name,
            weights_bytes=plan.num_bytes,
            source_bytes=sum(tensor.num_bytes for tensor in stored),
            num_quantized=sum(p.part == "weight" for p in plan.pieces),
            num_tokens=activations.num_tokens if activations else 0,
            borrowed={block: tuple(experts) for block, experts in borrowed.items()},
            from_source=from_source,
            from_parent=from_parent,
            chosen=tuple(ChosenFormat(**one.to_json()) for one in read_chosen(folder)),
        )

    def _activations(self, folder: Path) -> Activations | None:
        """Activation maxima on the text; read again where a killed run has left them."""
        file = folder / CALIBRATION
        if self.texts is None:
            return None
        if file.is_file():
            return Activations.from_json(json.loads(file.read_text(encoding="utf-8")))
        options = self.options
        settings = ActivationSettings(
            min_tokens=options.min_tokens,
            percentile=options.percentile,
            dtype=getattr(torch, options.dtype),
        )
        batches = self.texts.fit().split(options.batch_sequences)
        with self.reporter.progress("calibrated blocks", self.source.shape.num_blocks) as advance:
            found = measure_activations(self.source, batches, settings=settings, on_block=advance)
        write_json(file, found.to_json())
        return found

    def _chosen(self, activations: Activations | None, folder: Path) -> Precision:
        """Formats by sensitivity."""
        assert activations is not None
        assert self.texts is not None
        assert self.options.bits is not None
        return choose_precision(
            self.source,
            self.texts.judge(),
            activations=activations,
            bits=self.options.bits,
            kv=self.options.kv or "fp8",
            method=self.options.method,
            folder=folder,
            reporter=self.reporter,
        )

    def _healed(
        self, precision: Precision, activations: Activations, *, folder: Path
    ) -> tuple[Checkpoint, GivenScales]:
        assert self.texts is not None
        return heal_quantized(
            self.source,
            precision,
            activations=activations,
            options=self.options,
            train=self.texts.train,
            held_out=self.texts.held_out,
            folder=folder,
            reporter=self.reporter,
        )

    def _write(
        self,
        source: Checkpoint,
        plan: ExportPlan,
        *,
        activations: Activations | None,
        given: GivenScales,
        folder: Path,
    ) -> None:
        options = self.options
        settings = ExportSettings(
            options.method,
            options.is_power_of_two_cache,
            parse_shard_bytes(options.shard_bytes),
            is_resumed=True,
        )
        with self.reporter.progress("tensors", len(plan.pieces)) as advance:
            write_quantized(
                source,
                plan,
                folder=folder,
                activations=activations,
                settings=settings,
                given=given,
                on_tensor=advance,
            )
        if (source.folder / LINEAGE_NAME).is_file():
            shutil.copyfile(source.folder / LINEAGE_NAME, folder / LINEAGE_NAME)

    def _measured(self, folder: Path) -> tuple[HeldOutFigures | None, HeldOutFigures | None]:
        """Against what it was made from, and against the parent of the run."""
        if self.texts is None or not self.options.is_evaluated:
            return None, None
        self.reporter.say("measuring loss and divergence on held-out text")
        ids = self.texts.held_out()
        from_source = _beside(self.source.folder, ids, folder=folder)
        from_parent = None if self.parent is None else _beside(self.parent, ids, folder=folder)
        figures = {"from_source": from_source, "from_parent": from_parent}
        write_json(folder / EVALUATION, {k: asdict(f) for k, f in figures.items() if f is not None})
        return from_source, from_parent


def _beside(other: Path, ids: Tensor, *, folder: Path) -> HeldOutFigures:
    """The quantised checkpoint in a folder beside another, both models in memory."""
    held_out = HeldOut(load_model(Checkpoint(other)), ids, batch_size=BATCH)
    with fake_quantized(Checkpoint(folder)) as model:
        found = held_out.measure(model)
    return HeldOutFigures(found.kl, found.loss, found.teacher_loss, found.agreement, found.tokens)


def tidy(folder: Path) -> None:
    """Leave what belongs to the checkpoint, and the page on who can load it."""
    shutil.rmtree(folder / HEALED, ignore_errors=True)
    write_who_can_load(folder)


def _check(folder: Path, plan: ExportPlan) -> None:
    """What was written is what was planned, and says so of itself, both ways."""
    written = QuantizedCheckpoint(folder)
    written.check()
    written.check_ignored()
    found = {place.key: (place.dtype, place.shape) for place in written.stored.values()}
    planned = {p.planned.key: (p.planned.dtype, p.planned.shape) for p in plan.pieces}
    if found != planned:
        raise CheckpointError(
            f"{folder} was written with other tensors than planned",
            "this is a fault of fretsaw: please report it",
        )
