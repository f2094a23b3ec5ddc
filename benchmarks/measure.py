"""Seconds predicted from blocks beside seconds measured of whole models, on this machine.

    python benchmarks/measure.py --child CHILD --passes 3

The demo parent, a demo child and a random hybrid of more than 100M parameters; decode and prefill
at batch 1, 8, 32. Each part is timed by slope and intercept (`fretsaw.runtime.timing`), and passes
of the whole models are timed in between, so that both see the same machine. The child is priced
from the grid of the demo's library, by interpolation, as the search does. Every call adds its
passes to `--work`; the report is over all of them. Writes benchmarks/results/measure.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import NemotronHForCausalLM

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.shape import Block, ModelShape
from fretsaw.core.tables import append_line, read_lines
from fretsaw.errors import RunError
from fretsaw.families import family_of
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.measure import MeasuredTable, points_to_measure
from fretsaw.runtime.load import load_model
from fretsaw.runtime.machine import measure_machine
from fretsaw.runtime.passes import Passes, random_model
from fretsaw.runtime.timing import Effort, Round, Sample, Subject, measure

DECODE = {f"decode {n}": Step(n, 1, 128) for n in (1, 8, 32)}
PREFILL = {f"prefill {n}": Step(n, 128, 0) for n in (1, 8, 32)}
STEPS = DECODE | PREFILL
WHOLE_PASSES = 3
PARTS = Effort()

HYBRID = {
    "model_type": "nemotron_h",
    "layers_block_type": ["mamba", "moe", "mamba", "moe", "attention", "moe", "mamba", "moe"] * 2,
    "num_hidden_layers": 16,
    "vocab_size": 16384,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mamba_num_heads": 16,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 64,
    "conv_kernel": 4,
    "chunk_size": 64,
    "n_routed_experts": 96,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 384,
    "moe_latent_size": 128,
    "moe_shared_expert_intermediate_size": 512,
    "n_group": 1,
    "topk_group": 1,
}
"""96 experts of 384 x 128, hidden 512: 105M parameters."""


@dataclass(frozen=True)
class Case:
    """Blocks to measure, and the models that are priced from them."""

    name: str
    subject: Subject
    blocks: Sequence[Block]
    models: Mapping[str, tuple[ModelShape, NemotronHForCausalLM]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=Path, default=Path("recipes/demo/parent"))
    parser.add_argument("--child", type=Path)
    parser.add_argument("--cases", nargs="+", default=["demo", "hybrid"])
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("runs/measure"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/measure.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cases = [case for case in all_cases(arguments) if case.name in arguments.cases]
    for _ in range(arguments.passes):
        for case, step in product(cases, arguments.steps):
            started = time.perf_counter()
            one_pass(case, step, work=arguments.work)
            seconds = time.perf_counter() - started
            print(f"{case.name}, {step}: one more pass in {seconds:.0f} s", flush=True)
    report(cases, arguments)


def all_cases(arguments: argparse.Namespace) -> list[Case]:
    """The demo's library with parent and child, and the hybrid."""
    parent = Checkpoint(arguments.parent)
    models = {"parent": (parent.shape, load_model(parent))}
    if arguments.child:
        child = Checkpoint(arguments.child)
        models["child"] = (child.shape, load_model(child))
    demo = Subject(parent.shape, parent.config)
    hybrid = Subject(family_of(HYBRID).read_config(HYBRID), HYBRID)
    blocks = [block for block, _ in hybrid.shape.distinct]
    model = random_model(hybrid.shape, HYBRID)
    return [
        Case("demo", demo, points_to_measure(library(parent.shape)), models),
        Case("hybrid", hybrid, blocks, {"hybrid": (hybrid.shape, model)}),
    ]


def library(shape: ModelShape) -> list[Block]:
    """The variants of recipes/demo.yaml, all rounds together."""
    grids: dict[str, dict[str, list[int]]] = {
        "moe": {"ffn": [32, 48, 64, 80, 96], "top_k": [2, 3, 4, 5, 6, 8]},
        "mamba": {"state": [24, 32]},
    }
    found = []
    for block, _ in shape.distinct:
        grid = grids.get(block.mixer, {})
        found += [
            block.with_values(dict(zip(grid, v, strict=True))) for v in product(*grid.values())
        ]
    return found


def one_pass(case: Case, name: str, *, work: Path) -> None:
    """Measure every part of a case once more in one step, and its models after each part."""
    table, step = work / f"{case.name}.jsonl", STEPS[name]

    runs = {
        which: Passes(model, step, is_whole=True).through(model.model.layers)
        for which, (_, model) in case.models.items()
    }

    def time_models() -> None:
        for which, run in runs.items():
            run()
            for _ in range(WHOLE_PASSES):
                append_line(work / "whole.jsonl", {"model": which, "step": name, "seconds": run()})

    known = MeasuredTable.read(table, case.subject.conditions())
    done = min(known.times_measured(part, step=step) for part in case.subject.parts(case.blocks))
    work.mkdir(parents=True, exist_ok=True)
    time_models()
    measure(
        case.blocks,
        [step],
        subject=case.subject,
        path=table,
        effort=PARTS,
        passes=done + 1,
        on_row=time_models,
    )


def report(cases: Sequence[Case], arguments: argparse.Namespace) -> None:
    """Predicted beside measured, from all passes so far."""
    measured: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read_lines(arguments.work / "whole.jsonl", dict):
        measured[row["model"], row["step"]].append(row["seconds"])
    rows: list[dict[str, Any]] = []
    for case in cases:
        table = MeasuredTable.read(arguments.work / f"{case.name}.jsonl", case.subject.conditions())
        for (which, (shape, _)), (name, step) in product(case.models.items(), STEPS.items()):
            try:
                row = compare(table, shape, step=step, seconds=measured[which, name])
                rows.append({"model": which, "step": name, **row})
            except RunError as error:
                print(f"{which}, {name}: not in the report: {error.message}")
    for row in rows:
        print(
            f"{row['model']:8} {row['step']:10} predicted {row['predicted_s'] * 1e3:9.2f} ms, "
            f"measured {row['measured_s'] * 1e3:9.2f} ms, error {row['error']:+.1%} "
            f"({row['timings']} timings, {row['least_s'] * 1e3:.2f} to {row['most_s'] * 1e3:.2f})"
        )
    median = statistics.median(abs(row["error"]) for row in rows)
    print(f"median error {median:.1%} over {len(rows)} points")
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "conditions": [asdict(case.subject.conditions()) for case in cases],
        "load_average": os.getloadavg(),
        "machine": asdict(measure_machine()),
        "median_error": median,
        "rows": rows,
    }
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(result, indent=1) + "\n")


def compare(
    table: MeasuredTable, shape: ModelShape, *, step: Step, seconds: Sequence[float]
) -> dict[str, Any]:
    """Whole-model seconds are the median of their quieter half, as the parts' are."""
    predicted = table.step_seconds(shape, step=step)
    truth = Sample.of([Round(s, s) for s in seconds]).seconds
    parts = {
        f"{block.mixer} {dict(block.values)}": table.block_seconds(block, step=step)
        for block, _ in shape.distinct
    }
    return {
        "predicted_s": predicted,
        "measured_s": truth,
        "error": predicted / truth - 1,
        "timings": len(seconds),
        "least_s": min(seconds),
        "median_s": statistics.median(seconds),
        "most_s": max(seconds),
        "fixed_s": table.fixed_seconds(shape, step=step),
        "parts_s": parts,
    }


if __name__ == "__main__":
    main()
