"""Estimate a run before it starts: checks that need no weights, then minutes and disk."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.shape import ModelShape
from fretsaw.pricing.memory import model_costs
from fretsaw.recipe import Recipe, Round
from fretsaw.reports.estimate import Estimate, EstimateLine
from fretsaw.stages.check import check, peak_disk_bytes
from fretsaw.stages.folders import check_folder
from fretsaw.stages.library import variants_of
from fretsaw.stages.progress import Reporter
from fretsaw.stages.run import Run
from fretsaw.stages.text import found_texts

FORWARD_EFFICIENCY = 0.30
"""Share of the matrix-multiply rate that a forward pass reaches."""

CALIBRATE_PASSES = 2.0
"""A calibration token costs two forward passes: the model's, and the explicit one inside blocks."""

TRAIN_PASSES = 4.0
"""A healing token: the student's forward and backward (3) and the teacher's forward."""


def estimate_run(recipe: Recipe, *, out: Path) -> Estimate:
    """Check everything that needs no weights, and estimate the run.

    Raises:
        FretsawError: whatever would stop the run before its first weight is read.
    """
    check_folder(out, recipe)
    run = Run(out, recipe, Reporter(is_quiet=True))
    check(run)
    parent = Checkpoint(run.parent)
    rate = _matmul_rate(recipe.compute.threads)
    flops_per_token = 2.0 * model_costs(parent.shape)["active_params"]
    token_s = flops_per_token / (rate * FORWARD_EFFICIENCY)
    lines: list[EstimateLine] = []
    for number, settings in enumerate(recipe.rounds, start=1):
        lines += _round_lines(number, settings, shape=parent.shape, token_s=token_s)
    return Estimate(
        tuple(lines),
        rate,
        peak_disk_bytes(parent.shape, len(recipe.rounds)),
        text=found_texts(run),
    )


def _round_lines(
    number: int, settings: Round, *, shape: ModelShape, token_s: float
) -> list[EstimateLine]:
    length = settings.calibrate.sequence_length
    fitted = settings.calibrate.sequences * length
    variants = variants_of(shape, original=shape, settings=settings.library)
    judged = settings.score.sequences * length
    after = sum(1 - v.block / shape.num_blocks for v in variants)
    healed = settings.distill.tokens
    size = int(model_costs(shape)["bytes_bf16"])

    def line(stage: str, what: str, tokens: float, disk_bytes: int = 0) -> EstimateLine:
        return EstimateLine(number, stage, what, tokens, tokens * token_s, disk_bytes)

    return [
        line("calibrate", f"{fitted:,} tokens", fitted * CALIBRATE_PASSES),
        line("score", f"{len(variants)} variants on {judged:,} tokens", after * judged),
        line("build", "at most the parent's size", 0.0, size),
        line("distill", f"at most {healed:,} tokens", healed * TRAIN_PASSES, size),
    ]


def _matmul_rate(threads: int | None) -> float:
    """Floating-point operations per second of a float32 matrix product on this machine."""
    if threads is not None:
        torch.set_num_threads(threads)
    size = 512
    a, b = torch.rand(size, size), torch.rand(size, size)
    torch.mm(a, b)
    times = []
    for _ in range(9):
        started = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - started)
    return 2.0 * size**3 / sorted(times)[len(times) // 2]
