"""The folder of a training: what it has found so far, and what it needs to go on after a kill.

Only safetensors and JSON are ours; the optimizer, scheduler and random state of a checkpoint are
written by transformers' Trainer and read by it with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fretsaw.errors import RunError
from fretsaw.train.plan import (
    DistillResult,
    HistoryRow,
    ProbeRow,
    SkippedStep,
    result_from_json,
    row_from_json,
)

MARK = "complete.json"


@dataclass
class Tally:
    """What training counts between two evaluations; part of every checkpoint.

    Attributes:
        kl_sum: Of the steps since the last evaluation.
        kl_count: How many those are.
        skipped: All skipped steps so far.
        num_in_a_row: Skipped steps since the last good one.
    """

    kl_sum: float = 0.0
    kl_count: int = 0
    skipped: list[SkippedStep] = field(default_factory=list)
    num_in_a_row: int = 0


class Journal:
    """History, best weights, probe and checkpoints of one training, in one folder.

    Args:
        folder: Made if it is not there.
        fingerprint: What the training depends on; a folder of another training is refused.

    Raises:
        RunError: the folder belongs to a training with other settings, data or weights.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "fingerprint.json"
        plain = json.loads(json.dumps(fingerprint))
        if not file.is_file():
            _write_json(file, plain)
        old = json.loads(file.read_text(encoding="utf-8"))
        if changed := sorted(k for k in {*old, *plain} if old.get(k) != plain.get(k)):
            raise RunError(
                f"{folder} holds a training that differs in: {', '.join(changed)}",
                "remove the folder to start anew, or give the settings that it began with",
            )
        self.probe = [ProbeRow(**row) for row in _read_lines(folder / "probe.jsonl")]
        self.rows = [row_from_json(row) for row in _read_lines(folder / "history.jsonl")]

    def add_probe(self, row: ProbeRow) -> None:
        """Keep a trial of the probe."""
        self.probe.append(row)
        _append_line(self.folder / "probe.jsonl", asdict(row))

    def add_row(self, row: HistoryRow) -> None:
        """Keep an evaluation."""
        self.rows.append(row)
        _append_line(self.folder / "history.jsonl", asdict(row))

    def best_row(self) -> HistoryRow:
        """The evaluation with the smallest held-out KL, the earliest of equals."""
        return min(self.rows, key=lambda row: row.held_out.kl)

    @property
    def best_file(self) -> Path:
        """Trained weights of the best evaluation, float32."""
        return self.folder / "best.safetensors"

    def save_best(self, model: nn.Module, row: HistoryRow) -> None:
        """Keep the weights that an evaluation was measured on, with its step, in one rename."""
        save_parameters(model, self.best_file, metadata={"step": str(row.step)})

    def best_file_step(self) -> int | None:
        """The step whose weights are kept; None if there are none yet."""
        if not self.best_file.is_file():
            return None
        with safe_open(self.best_file, framework="pt") as file:
            return int(file.metadata()["step"])

    def load_best(self, model: nn.Module) -> None:
        """Put the kept weights into the model."""
        load_parameters(model, self.best_file)

    def mark_checkpoint(self, step: int, tally: Tally) -> None:
        """Say that the Trainer's checkpoint of a step is complete; without this it never counts."""
        folder = self.folder / f"checkpoint-{step}"
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        _write_json(folder / MARK, {"sizes": sizes, "tally": asdict(tally)})

    def resume(self) -> tuple[Path | None, Tally]:
        """The last complete checkpoint; what was written after it is forgotten."""
        found: Path | None = None
        tally = Tally()
        for folder in sorted(self.folder.glob("checkpoint-*"), key=_step_of):
            marked = _complete(folder)
            if marked is None:
                shutil.rmtree(folder)
                continue
            found, tally = folder, marked
        last = 0 if found is None else _step_of(found)
        kept = [row for row in self.rows if row.step <= last]
        if kept != self.rows:
            self.rows = kept
            text = "".join(json.dumps(asdict(row)) + "\n" for row in kept)
            _write_text(self.folder / "history.jsonl", text)
        return found, tally

    def finish(self, result: DistillResult) -> None:
        """Keep the result; checkpoints to resume from are no longer needed."""
        _write_json(self.folder / "result.json", asdict(result))
        for folder in self.folder.glob("checkpoint-*"):
            shutil.rmtree(folder)

    def finished(self) -> DistillResult | None:
        """The result, if this training has ended."""
        file = self.folder / "result.json"
        if not file.is_file():
            return None
        return result_from_json(json.loads(file.read_text(encoding="utf-8")))


def _complete(folder: Path) -> Tally | None:
    mark = folder / MARK
    if not mark.is_file():
        return None
    data = json.loads(mark.read_text(encoding="utf-8"))
    for name, size in data["sizes"].items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            return None
    tally = Tally(**data["tally"])
    tally.skipped = [SkippedStep(**row) for row in data["tally"]["skipped"]]
    return tally


def _step_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def save_parameters(
    model: nn.Module, file: Path, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write all parameters and buffers by their running names, aside first, then renamed."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            tensors[name] = tensor.contiguous()
        seen.add(tensor.data_ptr())
    aside = file.with_name(file.name + ".partial")
    save_file(tensors, aside, metadata={"format": "pt", **(metadata or {})})
    aside.replace(file)


def load_parameters(model: nn.Module, file: Path) -> None:
    """Copy stored tensors into the model, one at a time."""
    state = model.state_dict()
    with safe_open(file, framework="pt") as stored, torch.no_grad():
        for name in stored.keys():  # noqa: SIM118 - not a mapping
            state[name].copy_(stored.get_tensor(name))


def fingerprint_of(model: nn.Module) -> str:
    """Tells two sets of weights apart: a hash of every parameter's sum and square sum."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        sums = (value.sum(dtype=torch.float64).item(), value.float().norm().item())
        digest.update(f"{name} {tuple(value.shape)} {sums}\n".encode())
    return digest.hexdigest()


def hash_of(ids: Tensor) -> str:
    """Hash of token ids."""
    return hashlib.sha256(ids.contiguous().numpy().tobytes()).hexdigest()


def _write_json(file: Path, data: object) -> None:
    _write_text(file, json.dumps(data, indent=1) + "\n")


def _write_text(file: Path, text: str) -> None:
    aside = file.with_name(file.name + ".partial")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


def _append_line(file: Path, data: object) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(data) + "\n")


def _read_lines(file: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file; a last line that a kill cut short is dropped, also on disk."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        _write_text(file, whole)
    return [json.loads(line) for line in whole.splitlines()]
