"""Healing: the child learns from the original parent's logits; the cut itself is never lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import NemotronHForCausalLM

from fretsaw.checkpoint.assets import copy_assets, write_remote_code
from fretsaw.checkpoint.contents import LINEAGE_NAME
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.tensors import TORCH_DTYPES
from fretsaw.checkpoint.writer import write_json
from fretsaw.runtime.load import running_tensors, save_weights
from fretsaw.stages.loaders import write_who_can_load
from fretsaw.stages.manifest import CHILD
from fretsaw.stages.models import open_model
from fretsaw.stages.run import RunRound, Stage
from fretsaw.stages.samples import write_samples
from fretsaw.stages.text import train_ids, train_text, validation_ids, validation_text
from fretsaw.train.distill import DistillSettings, distill
from fretsaw.train.probe import MAX_TRIALS
from fretsaw.train.verdict import Verdict, judge

RESULT = "result.json"
TRAINING = "training"


def _body(round_: RunRound, folder: Path) -> None:
    work = folder / TRAINING
    if (folder / RESULT).is_file():  # the last thing written: killed while tidying up
        shutil.rmtree(work, ignore_errors=True)
        _tell(
            round_, Verdict(**json.loads((folder / RESULT).read_text(encoding="utf-8"))["verdict"])
        )
        return
    recipe, settings = round_.run.recipe, round_.settings.distill
    cut = Checkpoint(round_.result("07-build") / CHILD)
    teacher = open_model(round_.run.parent, recipe.compute).model
    student = open_model(cut.folder, recipe.compute).model
    with round_.run.reporter.in_turn() as begin:
        result = distill(
            student,
            teacher,
            train_ids=train_ids(round_),
            validation_ids=validation_ids(round_),
            settings=DistillSettings(**settings.model_dump()),
            folder=work,
            seed=round_.seed,
            dtypes=_stored_dtypes(cut),
            on_progress=begin("tokens", settings.tokens),
            on_trial=begin("learning rates tried", MAX_TRIALS),
        )
    _save(student, cut, folder=folder / CHILD, shard_bytes=round_.settings.build.shard_bytes)
    write_samples(round_, parent=teacher, child=student, folder=folder)
    verdict = judge(result)
    write_json(folder / RESULT, asdict(result) | {"verdict": asdict(verdict)})
    shutil.rmtree(work)
    _tell(round_, verdict)


def _tell(round_: RunRound, verdict: Verdict) -> None:
    for text in (verdict.kept, *verdict.notes):
        round_.run.reporter.say(f"  {text}")
    for text in verdict.warnings:
        round_.run.reporter.warn(text)


def _stored_dtypes(cut: Checkpoint) -> dict[str, torch.dtype]:
    """Running name of each tensor -> dtype that the child stores it in."""
    firsts = {running: next(row.names())[0] for running, _, row in running_tensors(cut.shape)}
    return {running: TORCH_DTYPES[cut.dtype_of(name)] for running, name in firsts.items()}


def _save(
    student: NemotronHForCausalLM, cut: Checkpoint, *, folder: Path, shard_bytes: int
) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    save_weights(student, cut, folder=folder, shard_bytes=shard_bytes)
    write_json(folder / "config.json", cut.config)
    copy_assets(cut.folder, folder)
    write_remote_code(folder, cut.config)
    shutil.copyfile(cut.folder / LINEAGE_NAME, folder / LINEAGE_NAME)
    write_who_can_load(folder)


DISTILL = Stage(
    "08-distill",
    needs=("07-build",),
    settings=("distill", "build"),
    body=_body,
    texts=(train_text, validation_text),
    copies=lambda round_: round_.result("07-build") / CHILD,
)
