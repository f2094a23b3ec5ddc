"""A checkpoint in FP8 or NVFP4: calibrated, written aside, checked, then given its name."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fretsaw.checkpoint.contents import LINEAGE_NAME
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import Planned, need_disk, write_json
from fretsaw.core.precision import Precision
from fretsaw.core.units import parse_shard_bytes
from fretsaw.errors import CheckpointError, DataError, RecipeError, RunError
from fretsaw.quant.calibrate import Activations
from fretsaw.quant.export import ExportSettings, check_calibrated, write_quantized
from fretsaw.quant.plan import ExportPlan, plan_export
from fretsaw.quant.reader import QuantizedCheckpoint, dequantized
from fretsaw.quant.scales import GivenScales
from fretsaw.reports.quantized import Quantized
from fretsaw.runtime.activations import ActivationSettings, measure_activations
from fretsaw.stages.loaders import write_who_can_load
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantize_options import AUTO, QuantizeOptions, precision_of
from fretsaw.stages.quantized_formats import choose_precision
from fretsaw.stages.quantized_healing import HEALED, HealingOptions, heal_quantized
from fretsaw.stages.text import tell_texts
from fretsaw.train.data import load_split
from fretsaw.train.packing import Wanted, load_tokenizer, read_text

CALIBRATION = "fretsaw_calibration.json"
STARTED = "started.json"


def quantize(
    child: Path,
    *,
    out: Path,
    options: QuantizeOptions | None = None,
    reporter: Reporter | None = None,
) -> Quantized:
    """Write a checkpoint in the formats of a precision; a killed run goes on where it was.

    Args:
        child: Checkpoint folder in 16 or 32 bits.
        out: Folder that is not there yet.
        options: See there.
        reporter: Where progress goes; stderr by default.

    Raises:
        CheckpointError: the checkpoint is damaged, or quantised already.
        DataError: the text is missing or too short.
        RecipeError: the precision does not fit the model.
        RunError: `out` is there, another process writes it, or the disk is too small.
    """
    options, reporter = options or QuantizeOptions(), reporter or Reporter()
    source = _source(child)
    precision, plan = _checked(source, out, options=options)
    started = {"source": _fingerprint(source), "options": options.to_json()}
    with _private_folder(out, started) as folder:
        activations = _activations(source, options, folder=folder, reporter=reporter)
        if precision is None or plan is None:
            precision = _chosen(
                source, options, activations=activations, folder=folder, reporter=reporter
            )
            plan = plan_export(source, precision, layout=options.layout)
        weights, given = source, GivenScales()
        if activations is not None and options.teacher is not None:
            weights, given = _healed(
                source,
                precision,
                activations=activations,
                options=options,
                folder=folder,
                to=reporter,
            )
        _write(
            weights,
            plan,
            folder=folder,
            activations=activations,
            given=given,
            options=options,
            to=reporter,
        )
        _check(folder, plan)
        _tidy(folder)
    return _told(out, precision, plan=plan, source=source, activations=activations)


def _checked(
    source: Checkpoint, out: Path, *, options: QuantizeOptions
) -> tuple[Precision | None, ExportPlan | None]:
    """What is known before any work; nothing is known of formats that are yet to be chosen."""
    parse_shard_bytes(options.shard_bytes)
    if options.teacher is not None and not options.teacher.is_dir():
        raise RecipeError(f"there is no teacher at {options.teacher}", "give a checkpoint folder")
    precision = None if options.to == AUTO else precision_of(options)
    plan = None
    if precision is not None:
        plan = plan_export(source, precision, layout=options.layout)
        if options.text is None:
            check_calibrated(plan, None)
        need_disk(out, plan.num_bytes)
    if out.exists():
        raise RunError(f"{out} is there already", "give another --out, or remove it")
    return precision, plan


def _source(child: Path) -> Checkpoint:
    source = Checkpoint(child)
    if isinstance(dequantized(source), QuantizedCheckpoint):
        raise CheckpointError(
            f"{child} is quantised already", "give the checkpoint that it was made from"
        )
    source.check()
    return source


def _fingerprint(source: Checkpoint) -> dict[str, list[int]]:
    """Size and time of each file that decides what is written."""
    files = [source.folder / "config.json", *sorted(source.folder.glob("*.safetensors"))]
    return {f.name: [f.stat().st_size, f.stat().st_mtime_ns] for f in files}


@contextmanager
def _private_folder(out: Path, started: Mapping[str, Any]) -> Iterator[Path]:
    """`out` under another name until all is well; what an equal run has left is gone on with."""
    folder = out.with_name(out.name + ".partial")
    is_ours = not folder.exists() or (folder / STARTED).is_file() or not any(folder.iterdir())
    if not is_ours:
        raise RunError(f"{folder} holds something else", "give another --out, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file = folder / STARTED
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        if before != started:
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            write_json(file, started)
        yield folder
        folder.rename(out)
    except BlockingIOError as error:
        raise RunError(f"another process writes {folder}", "wait for it") from error
    finally:
        os.close(handle)


def _activations(
    source: Checkpoint, options: QuantizeOptions, *, folder: Path, reporter: Reporter
) -> Activations | None:
    """Activation maxima on the text; read again where a killed run has left them."""
    file = folder / CALIBRATION
    if options.text is None:
        return None
    if file.is_file():
        return Activations.from_json(json.loads(file.read_text(encoding="utf-8")))
    settings = ActivationSettings(
        min_tokens=options.min_tokens,
        percentile=options.percentile,
        dtype=getattr(torch, options.dtype),
    )
    ids = _ids(source, options, reporter=reporter)[: options.sequences]
    batches = ids.split(options.batch_sequences)
    with reporter.progress("calibrated blocks", source.shape.num_blocks) as advance:
        found = measure_activations(source, batches, settings=settings, on_block=advance)
    write_json(file, found.to_json())
    return found


def _chosen(
    source: Checkpoint,
    options: QuantizeOptions,
    *,
    activations: Activations | None,
    folder: Path,
    reporter: Reporter,
) -> Precision:
    """Formats by sensitivity, judged on calibration text that no scale came from."""
    assert activations is not None
    assert options.bits is not None
    ids = _ids(source, options, reporter=reporter)
    judged = ids[options.sequences :]
    if not len(judged):
        raise DataError(
            f"the text has {len(ids)} sequences; {options.sequences} go to the scales, and --to "
            "auto judges on others",
            "give more text, or fewer --sequences",
        )
    return choose_precision(
        source,
        judged,
        activations=activations,
        bits=options.bits,
        kv=options.kv or "fp8",
        method=options.method,
        folder=folder,
        reporter=reporter,
    )


def _ids(source: Checkpoint, options: QuantizeOptions, *, reporter: Reporter) -> Tensor:
    assert options.text is not None
    tokenizer = load_tokenizer(source.folder)
    read = read_text(
        load_split(options.text, "calibration", text_key=options.text_key, tokenizer=tokenizer),
        tokenizer,
        wanted=Wanted(
            options.sequences + (options.judge_sequences if options.bits else 0),
            options.sequence_length,
            seed=options.seed,
            vocab_size=source.shape.sizes["vocab"],
            min_sequences=1,
        ),
    )
    tell_texts([read.found], reporter=reporter)
    return read.ids


def _healed(
    source: Checkpoint,
    precision: Precision,
    *,
    activations: Activations,
    options: QuantizeOptions,
    folder: Path,
    to: Reporter,
) -> tuple[Checkpoint, GivenScales]:
    assert options.teacher is not None
    assert options.text is not None
    return heal_quantized(
        source,
        precision,
        activations=activations,
        options=HealingOptions(
            options.teacher,
            options.heal_tokens,
            options.heal_sequence_length,
            options.heal_batch_size,
            options.learning_rate,
            options.method,
            seed=options.seed,
        ),
        text=options.text,
        text_key=options.text_key,
        folder=folder,
        reporter=to,
    )


def _write(
    source: Checkpoint,
    plan: ExportPlan,
    *,
    folder: Path,
    activations: Activations | None,
    given: GivenScales,
    options: QuantizeOptions,
    to: Reporter,
) -> None:
    settings = ExportSettings(
        options.method,
        options.is_power_of_two_cache,
        parse_shard_bytes(options.shard_bytes),
        is_resumed=True,
    )
    with to.progress("tensors", len(plan.pieces)) as advance:
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


def _tidy(folder: Path) -> None:
    """Leave what belongs to the checkpoint, and the page on who can load it."""
    shutil.rmtree(folder / HEALED, ignore_errors=True)
    (folder / STARTED).unlink()
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


def _told(
    out: Path,
    precision: Precision,
    *,
    plan: ExportPlan,
    source: Checkpoint,
    activations: Activations | None,
) -> Quantized:
    borrowed = activations.borrowed if activations else {}
    stored = [Planned(p.key, p.dtype, p.shape) for p in source.stored.values()]
    return Quantized(
        folder=out,
        precision=precision.name,
        weights_bytes=plan.num_bytes,
        source_bytes=sum(tensor.num_bytes for tensor in stored),
        num_quantized=sum(p.part == "weight" for p in plan.pieces),
        num_tokens=activations.num_tokens if activations else 0,
        borrowed={block: tuple(experts) for block, experts in borrowed.items()},
    )
