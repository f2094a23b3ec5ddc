"""A built child beside its parent on this machine: the speed that was asked for, measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import NemotronHForCausalLM

from fretsaw.checkpoint.writer import write_json
from fretsaw.core.hardware import Workload
from fretsaw.pricing.kernels import Step
from fretsaw.reports.summary import ServingLine
from fretsaw.runtime.compare import time_in_turn
from fretsaw.serving.alternatives import Alternative
from fretsaw.serving.demand import Demand, RequestTimes, token_seconds
from fretsaw.serving.frontier import prefill_steps
from fretsaw.stages.cost import read_priced
from fretsaw.stages.models import open_model
from fretsaw.stages.run import RunRound
from fretsaw.stages.search import read_predictions

SPEEDUP = "speedup.json"
APART = 0.25
"""Decoding is timed at batches so far below and above the predicted one: it tells the slope."""

MISSED = 0.9
"""Of an asked speed-up: a child below it is worth a warning before it is healed."""


@dataclass(frozen=True)
class Timed:
    """A model as it was timed.

    Attributes:
        decode_s: Sequences -> seconds of a decode step; one batch, or two.
        prefill_s: Of the prompt of one request.
        workload: Requests.
    """

    decode_s: dict[float, float]
    prefill_s: float
    workload: Workload

    def token_s(self, in_flight: float) -> float:
        """Time of one token, decoding linear through the two batches."""
        (low, low_s), *rest = self.decode_s.items()
        decode_s = low_s
        for high, high_s in rest:
            decode_s += (high_s - low_s) * (in_flight - low) / (high - low)
        times = RequestTimes(decode_s, self.prefill_s)
        return token_seconds(times, workload=self.workload, sequences=in_flight)

    def rate(self, demand: Demand) -> float:
        """Server tokens/s in the demand's terms; 0 where no user has the speed."""
        if demand.user_tokens_per_s is None:
            in_flight = demand.concurrency or 1.0
            return in_flight / self.token_s(in_flight)
        none, one = self.token_s(0.0), self.token_s(1.0)
        in_flight = (1 / demand.user_tokens_per_s - none) / (one - none)
        return max(0.0, in_flight * demand.user_tokens_per_s)


def measure_speedups(round_: RunRound, child: Path) -> list[ServingLine]:
    """Each demand of a round beside what the child was predicted, and measured, to do.

    Only what was asked of this machine is measured: parent and child in turn.
    """
    settings, compute = round_.settings.search.budget.serve, round_.run.recipe.compute
    predictions = read_predictions(round_.result("06-search"))
    lines = [ServingLine(p.demand, p.asked_speedup, p.speedup) for p in predictions]
    here = [i for i, serve in enumerate(settings) if serve.is_here and serve.workload]
    if not here:
        return lines
    models = [open_model(folder, compute).model for folder in (round_.run.parent, child)]
    priced = read_priced(round_)
    for i in here:
        (alternative,) = priced[i].alternatives
        parent_rate, rate = _rates(models, alternative)
        line = lines[i]
        measured = rate / parent_rate if parent_rate else None
        lines[i] = ServingLine(line.demand, line.asked, line.predicted, measured, rate, parent_rate)
        _tell(round_, lines[i])
    return lines


def _tell(round_: RunRound, line: ServingLine) -> None:
    round_.run.reporter.say(f"  {line.told()}")
    if line.asked and line.measured is not None and line.measured < MISSED * line.asked:
        round_.run.reporter.warn(f"the child is slower than was asked: {line.told()}")


def _rates(models: Sequence[NemotronHForCausalLM], alternative: Alternative) -> list[float]:
    """Server tokens/s of parent and child."""
    target, demand = alternative.target, alternative.target.demand
    assert demand.workload is not None
    loads = [target.parent.in_flight if target.parent else target.in_flight, target.in_flight]
    prompts = prefill_steps(demand.workload.input_tokens)
    context = float(round(demand.workload.mean_context))
    asked: list[tuple[NemotronHForCausalLM, Step]] = []
    for model, load in zip(models, loads, strict=True):
        asked += [(model, Step(n, 1, context)) for n in _batches(demand, load)]
        asked += [(model, prompt) for prompt in prompts]
    timed = zip(asked, time_in_turn(asked), strict=True)
    seconds = {(id(model), step): its for (model, step), its in timed}
    return [
        Timed(
            {n: seconds[id(model), Step(n, 1, context)] for n in _batches(demand, load)},
            sum(seconds[id(model), prompt] for prompt in prompts),
            demand.workload,
        ).rate(demand)
        for model, load in zip(models, loads, strict=True)
    ]


def _batches(demand: Demand, in_flight: float) -> list[float]:
    """Whole batches at which decoding is timed."""
    if demand.user_tokens_per_s is None:
        return [float(round(in_flight))]
    low = max(1.0, float(math.floor(in_flight * (1 - APART))))
    return [low, max(low + 1, float(math.ceil(in_flight * (1 + APART))))]


def write_speedups(folder: Path, lines: Sequence[ServingLine]) -> None:
    """Write them beside a built child."""
    write_json(folder / SPEEDUP, [asdict(line) for line in lines])


def read_speedups(folder: Path) -> list[ServingLine]:
    """What a finished `build` has measured."""
    if not (folder / SPEEDUP).is_file():
        return []
    data = json.loads((folder / SPEEDUP).read_text(encoding="utf-8"))
    return [ServingLine(**line) for line in data]
