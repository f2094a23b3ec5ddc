"""Any checkpoint in FP8 or NVFP4: written aside, checked, then given its name."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import write_json
from fretsaw.errors import DataError, FretsawError, RunError
from fretsaw.families import family_named
from fretsaw.families.base import ContextLimit
from fretsaw.reports.quantized import Quantized
from fretsaw.stages.check_recipe import long_sequences
from fretsaw.stages.folders import keep_apart
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantize_options import HEAL_TOKENS, QuantizeOptions
from fretsaw.stages.quantized_writing import Job, Texts, tidy
from fretsaw.stages.text import tell_texts
from fretsaw.train.data import load_split
from fretsaw.train.packing import Wanted, load_tokenizer, read_text
from fretsaw.train.splits import Split

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
        InfeasibleError: fewer bits than the smallest formats take.
        RecipeError: the precision does not fit the model.
        RunError: `out` is there, another process writes it, or the disk is too small.
    """
    options, reporter = options or QuantizeOptions(), reporter or Reporter()
    source = Checkpoint(child)
    sources = {
        "the checkpoint": source.folder,
        "the text": options.text,
        "the teacher": options.teacher,
    }
    keep_apart(out, {what: path for what, path in sources.items() if path is not None})
    texts = None if options.text is None else _texts(source, options, reporter=reporter)
    job = Job(source, options, texts, reporter)
    job.check(out)
    if out.exists():
        raise RunError(f"{out} is there already", "give another --out, or remove it")
    if texts is not None:
        for warning in _lengths(source, options):
            reporter.warn(warning)
        job = replace(job, options=_read(texts, options, reporter=reporter))
    started = {"source": _fingerprint(source), "options": options.to_json()}
    with _private_folder(out, started) as folder:
        found = job.write(folder)
        tidy(folder)
        (folder / STARTED).unlink()
    return replace(found, folder=out)


def _lengths(source: Checkpoint, options: QuantizeOptions) -> list[str]:
    """What is to be said of sequences that are longer than the model was made for."""
    lengths = {"sequence_length": options.sequence_length}
    if options.teacher is not None or options.is_evaluated:
        lengths["heal_sequence_length"] = options.heal_sequence_length
    limit = ContextLimit(*family_named(source.shape.family).context_limits(source.config))
    return long_sequences(lengths, limit)


def _read(texts: Texts, options: QuantizeOptions, *, reporter: Reporter) -> QuantizeOptions:
    """Read the text that will be needed; only the last measurement is given up for want of it."""
    texts.fit()
    if options.bits is not None:
        texts.judge()
    if options.teacher is not None:
        texts.train()
        texts.held_out()
    elif options.is_evaluated:
        try:
            texts.held_out()
        except DataError as error:
            reporter.warn(f"loss and divergence will not be measured: {error.message}")
            return replace(options, is_evaluated=False)
    return options


def _texts(source: Checkpoint, options: QuantizeOptions, *, reporter: Reporter) -> Texts:
    """Readers of the text that the options name; each is read once."""
    assert options.text is not None
    path, tokenizer = options.text, cache(lambda: load_tokenizer(source.folder))

    def read(split: Split, sequences: int, *, length: int, at_least: int = 1) -> Tensor:
        found = read_text(
            load_split(path, split, text_key=options.text_key, tokenizer=tokenizer()),
            tokenizer(),
            wanted=Wanted(
                sequences,
                length,
                seed=options.seed,
                vocab_size=source.shape.sizes["vocab"],
                min_sequences=at_least,
            ),
        )
        tell_texts([found.found], reporter=reporter)
        return found.ids

    @cache
    def calibration() -> Tensor:
        more = options.judge_sequences if options.bits else 0
        return read("calibration", options.sequences + more, length=options.sequence_length)

    def judge() -> Tensor:
        if not len(judged := calibration()[options.sequences :]):
            raise DataError(
                f"the text has {len(calibration())} sequences; {options.sequences} go to the "
                "scales, and --to auto judges on others",
                "give more text, or fewer --sequences",
            )
        return judged

    length = options.heal_sequence_length
    wanted = -(-(options.heal_tokens or HEAL_TOKENS) // length)
    least = min(wanted, options.heal_batch_size)
    held_out = options.evaluation_sequences
    return Texts(
        fit=lambda: calibration()[: options.sequences],
        judge=judge,
        train=cache(lambda: read("train", wanted, length=length, at_least=least)),
        held_out=cache(lambda: read("validation", held_out, length=length)),
    )


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
    except FretsawError:
        if {left.name for left in folder.iterdir()} == {STARTED}:
            shutil.rmtree(folder)  # nothing was done that a next run could go on with
        raise
    finally:
        os.close(handle)
