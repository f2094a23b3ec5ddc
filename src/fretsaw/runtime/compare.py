"""Several whole models timed in turn, so that a machine whose speed drifts treats them alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from transformers import NemotronHForCausalLM

from fretsaw.pricing.kernels import Step
from fretsaw.runtime.passes import Passes, Run

ROUNDS = 15


def time_in_turn(
    asked: Sequence[tuple[NemotronHForCausalLM, Step]], *, rounds: int = ROUNDS
) -> list[float]:
    """Seconds of a step of a model, for each: medians of rounds in which every one has its turn.

    Args:
        asked: Model and step; a model may stand here with several steps.
        rounds: How often.

    Raises:
        RecipeError: a part of a sequence or of a token is asked for.
        UnsupportedModelError: no attention block, without which transformers decodes nothing.
    """
    runs = [Passes(m, step, is_whole=True).through(m.model.layers) for m, step in asked]
    return [statistics.median(its) for its in timings_in_turn(runs, rounds=rounds)]


def timings_in_turn(runs: Sequence[Run], *, rounds: int) -> list[list[float]]:
    """Timings of each, after one pass unused; every other round goes through them backwards."""
    for run in runs:
        run()
    timings: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        order = list(zip(runs, timings, strict=True))
        for run, its in reversed(order) if number % 2 else order:
            its.append(run())
    return timings
