"""How much of what 4 bits cost comes back with more tokens of distillation under rounding.

    python recipes/demo/corpus.py --out runs/demo-text
    python benchmarks/qad.py --text runs/demo-text --out runs/qad all:lsq:0:1000000

Each job is PRECISION:METHOD:SEED:TOKENS, `map` the published NVFP4 map, `all` every kind of linear
map but the head in NVFP4. Jobs run in order; one that was killed goes on where it was, one that is
done is not done again. The curve is held-out KL and loss with weights, inputs and KV cache rounded.
Writes benchmarks/results/qad.json after each job.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import precision_from, preset
from fretsaw.quant.calibrate import Activations
from fretsaw.runtime.activations import ActivationSettings, measure_activations
from fretsaw.runtime.fake import PlannedRounding, rounded
from fretsaw.runtime.load import load_model
from fretsaw.train.data import load_split
from fretsaw.train.distill import DistillSettings, distill
from fretsaw.train.metrics import HeldOut
from fretsaw.train.packing import load_tokenizer, pack

LENGTH, BATCH = 256, 8
KINDS = ("experts", "shared_experts", "mamba_projection", "attention", "latent")
PRECISIONS = {
    "map": preset("nvfp4"),
    "all": precision_from(dict.fromkeys(KINDS, "nvfp4"), name="all-nvfp4"),
}
RATES = {"map": 1.5e-4, "all": 3e-4}
"""Peak rates: 1.5e-3 times the root of the KL, as the probe's middle."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="+", help="PRECISION:METHOD:SEED:TOKENS[:RATE]")
    parser.add_argument("--child", type=Path, default=Path("recipes/demo/parent"))
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/qad"))
    parser.add_argument("--evaluations", type=int, default=12)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/qad.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source = Checkpoint(arguments.child)
    activations = _activations(source, arguments)
    for job in arguments.jobs:
        row = run(job, source, activations=activations, arguments=arguments)
        rows = json.loads(arguments.results.read_text()) if arguments.results.is_file() else []
        rows = [r for r in rows if r["job"] != job] + [row]
        arguments.results.write_text(json.dumps(rows, indent=1) + "\n")
        print(line(row), flush=True)


def run(
    job: str, source: Checkpoint, *, activations: Activations, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One training, or what it left."""
    name, method, seed, tokens, *rate = job.split(":")
    student, teacher = load_model(source), load_model(source)
    planned = PlannedRounding(
        student,
        source.shape,
        precision=PRECISIONS[name],
        activations=activations,
        method=method,  # type: ignore[arg-type]
    )
    student.add_module("rounding", planned)
    held_out = _ids(source, arguments, "validation", 96)
    started, state = time.monotonic(), {"seen": 0}

    def tell(done: int, text: str = "") -> None:
        if done - state["seen"] >= 16 * LENGTH * BATCH:
            state["seen"] = done
            print(job, done, text, f"{time.monotonic() - started:.0f} s", flush=True)

    with rounded(student, source.shape, roundings=planned.roundings):
        result = distill(
            student,
            teacher,
            train_ids=_ids(source, arguments, "train", int(tokens) // LENGTH, seed=int(seed)),
            validation_ids=held_out[:64],
            settings=DistillSettings(
                tokens=int(tokens),
                sequence_length=LENGTH,
                batch_size=BATCH,
                learning_rate=float(rate[0]) if rate else RATES[name],
                evaluations=arguments.evaluations,
            ),
            folder=arguments.out / job.replace(":", "-"),
            seed=int(seed),
            on_progress=tell,
        )
        other = HeldOut(teacher, held_out[64:], batch_size=BATCH).measure(student)
    return {
        "job": job,
        "rate": result.learning_rate,
        "seconds": time.monotonic() - started,
        "curve": [
            {"tokens": row.tokens, "kl": row.held_out.kl, "loss": row.held_out.loss}
            for row in result.history
        ],
        "exact_loss": result.teacher_loss,
        "best": asdict(result.after),
        "other_text": asdict(other),
    }


def line(row: dict[str, Any]) -> str:
    """What came back, in one line."""
    start = row["curve"][0]
    lost, left = start["loss"] - row["exact_loss"], row["best"]["loss"] - row["exact_loss"]
    return (
        f"{row['job']}: loss {lost:+.4f} -> {left:+.4f}, back {1 - left / lost:.0%}; "
        f"KL {start['kl']:.4f} -> {row['best']['kl']:.4f}; {row['seconds']:.0f} s"
    )


def _activations(source: Checkpoint, arguments: argparse.Namespace) -> Activations:
    ids = _ids(source, arguments, "calibration", 64)
    return measure_activations(source, ids.split(BATCH), settings=ActivationSettings())


def _ids(
    source: Checkpoint, arguments: argparse.Namespace, split: Any, sequences: int, *, seed: int = 0
) -> Tensor:
    return pack(
        load_split(arguments.text, split),
        load_tokenizer(source.folder),
        num_sequences=sequences,
        sequence_length=LENGTH,
        seed=seed,
        vocab_size=source.shape.sizes["vocab"],
        min_sequences=1,
    )


if __name__ == "__main__":
    main()
