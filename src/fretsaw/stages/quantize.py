"""A checkpoint in FP8 or NVFP4: calibrated, written aside, checked, then given its name."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import yaml
from torch import Tensor

from fretsaw.checkpoint.lineage import LINEAGE_NAME
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import Planned, need_disk, write_json
from fretsaw.core.precision import PRESETS, Precision, precision_from, preset
from fretsaw.core.units import parse_bytes
from fretsaw.errors import CheckpointError, RecipeError, RunError
from fretsaw.families.quantised import LAYOUTS, LayoutName
from fretsaw.quant.calibrate import Activations
from fretsaw.quant.export import ExportSettings, Method, check_calibrated, write_quantized
from fretsaw.quant.plan import ExportPlan, plan_export
from fretsaw.quant.reader import QuantizedCheckpoint, dequantized
from fretsaw.report.quantized import Quantized
from fretsaw.runtime.activations import ActivationSettings, measure_activations
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantized_healing import HEALED, HealingOptions, heal_quantized
from fretsaw.train.data import load_split
from fretsaw.train.packing import load_tokenizer, pack

Dtype = Literal["float32", "bfloat16"]

CALIBRATION = "fretsaw_calibration.json"
STARTED = "started.json"


@dataclass(frozen=True)
class QuantizeOptions:
    """How a checkpoint is quantised.

    Attributes:
        to: Name of a precision, or a YAML file with one's own (kind of weight: format).
        text: What activations are measured on: a file, a folder of files, or a data set.
        text_key: Column that holds the text.
        method: How block scales of NVFP4 weights are chosen.
        layout: Whose names and keys.
        kv: Format of the KV cache in place of the precision's.
        is_power_of_two_cache: KV scales are rounded up to powers of two.
        sequences: Of calibration text, at most.
        sequence_length: Tokens in each.
        batch_sequences: Sequences that run at a time.
        min_tokens: Routed tokens that an expert needs for a scale of its own.
        percentile: Share of magnitudes, in percent, that input scales cover; all if not given.
        dtype: Of the running blocks.
        shard_bytes: Size of a file.
        seed: Of the order of text.
        teacher: Checkpoint in full precision that the weights learn from under rounding, before
            they are written; none: they are rounded as they are.
        heal_tokens: Of that learning.
        heal_sequence_length: Tokens in each sequence of it.
        heal_batch_size: Sequences in each of its steps.
        learning_rate: Its peak rate; found by a probe if not given.
    """

    to: str = "nvfp4"
    text: Path | None = None
    text_key: str = "text"
    method: Method = "max"
    layout: LayoutName = "modelopt"
    kv: str | None = None
    is_power_of_two_cache: bool = False
    sequences: int = 256
    sequence_length: int = 4096
    batch_sequences: int = 1
    min_tokens: int = 32
    percentile: float | None = None
    dtype: Dtype = "float32"
    shard_bytes: int | str = "5GB"
    seed: int = 0
    teacher: Path | None = None
    heal_tokens: int = 1_000_000
    heal_sequence_length: int = 1024
    heal_batch_size: int = 8
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse words that mean nothing, and shares that are none."""
        for name, value, known in (
            ("method", self.method, get_args(Method)),
            ("layout", self.layout, LAYOUTS),
            ("dtype", self.dtype, get_args(Dtype)),
            ("kv", self.kv, (None, "fp8", "bf16", "fp16")),
        ):
            if value not in known:
                options = ", ".join(k for k in known if k)
                raise RecipeError(f"{name} is {value!r}", f"one of {options} was expected")
        if self.percentile is not None and not 0 < self.percentile <= 100:  # noqa: PLR2004
            raise RecipeError(f"percentile is {self.percentile}", "give one in (0, 100]")
        if self.teacher is not None and (self.text is None or self.method != "max"):
            raise RecipeError(
                "a teacher needs text, and scales by largest magnitudes, under which is learned",
                "give --text, and no --method mse",
            )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}


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
    precision = precision_of(options)
    plan = plan_export(source, precision, layout=options.layout)
    if options.text is None:
        check_calibrated(plan, None)
    if out.exists():
        raise RunError(f"{out} is there already", "give another --out, or remove it")
    need_disk(out, plan.num_bytes)
    started = {"source": _fingerprint(source), "options": options.to_json()}
    with _private_folder(out, started) as folder:
        activations = _activations(source, options, folder=folder, reporter=reporter)
        weights = source
        if activations is not None and options.teacher is not None:
            weights = _healed(
                source,
                precision,
                activations=activations,
                options=options,
                folder=folder,
                to=reporter,
            )
        _write(weights, plan, folder=folder, activations=activations, options=options, to=reporter)
        _check(folder, plan)
        _tidy(folder)
    return _told(out, precision, plan=plan, source=source, activations=activations)


def precision_of(options: QuantizeOptions) -> Precision:
    """The precision that the options name.

    Raises:
        RecipeError: there is none of that name, or the file does not hold one.
    """
    file = Path(options.to)
    if options.to in PRESETS or file.suffix not in (".yaml", ".yml"):
        found = preset(options.to)
    else:
        if not file.is_file():
            raise RecipeError(f"{file} does not exist", f"or take {', '.join(PRESETS)}")
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise RecipeError(f"{file} holds no precision", "e.g. one line: `experts: nvfp4`")
        found = precision_from(data, name=file.stem)
    return found.with_caches(kv=options.kv)


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
    batches = _ids(source, options).split(options.batch_sequences)
    with reporter.progress("calibrated blocks", source.shape.num_blocks) as advance:
        found = measure_activations(source, batches, settings=settings, on_block=advance)
    write_json(file, found.to_json())
    return found


def _ids(source: Checkpoint, options: QuantizeOptions) -> Tensor:
    assert options.text is not None
    return pack(
        load_split(options.text, "calibration", text_key=options.text_key),
        load_tokenizer(source.folder),
        num_sequences=options.sequences,
        sequence_length=options.sequence_length,
        seed=options.seed,
        vocab_size=source.shape.sizes["vocab"],
        min_sequences=1,
    )


def _healed(
    source: Checkpoint,
    precision: Precision,
    *,
    activations: Activations,
    options: QuantizeOptions,
    folder: Path,
    to: Reporter,
) -> Checkpoint:
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
    options: QuantizeOptions,
    to: Reporter,
) -> None:
    settings = ExportSettings(
        options.method,
        options.is_power_of_two_cache,
        parse_bytes(options.shard_bytes),
        is_resumed=True,
    )
    with to.progress("tensors", len(plan.pieces)) as advance:
        write_quantized(
            source,
            plan,
            folder=folder,
            activations=activations,
            settings=settings,
            on_tensor=advance,
        )
    if (source.folder / LINEAGE_NAME).is_file():
        shutil.copyfile(source.folder / LINEAGE_NAME, folder / LINEAGE_NAME)


def _tidy(folder: Path) -> None:
    """Leave what belongs to the checkpoint."""
    shutil.rmtree(folder / HEALED, ignore_errors=True)
    (folder / STARTED).unlink()


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
