"""Seconds of blocks, of what is no block, and of whole models, on the machine that this runs on.

A block is timed inside the running model: one pass through N and one through 2N copies of it,
each with weights of its own; the slope is a block's seconds, the intercept what is no block.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import NemotronHForCausalLM

from fretsaw.core.shape import Block, ModelShape
from fretsaw.cost.kernels import Step
from fretsaw.cost.measure import (
    Conditions,
    MeasuredRow,
    MeasuredTable,
    Part,
    append_measurement,
)
from fretsaw.errors import RunError
from fretsaw.runtime.load import empty_model
from fretsaw.runtime.passes import Flush, Passes, Run, random_model, weights_bytes

MIN_ROUNDS = 3
BEYOND_CACHES_BYTES = 128 * 2**20
"""Weights of which a pass finds none cached any more; four times this project's largest L3."""

ANCHOR = {"kv_head": 1, "q_per_kv": 1, "head_dim": 8}
"""A small attention block before the copies: without one, transformers counts no cached tokens."""

STACK_VOCAB = 8


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        copies: N; the long stack has 2N.
        rounds: At most, each with one short and one long pass.
        seconds: Of timed passes after which no further round begins (but for the least three).
    """

    copies: int = 4
    rounds: int = 15
    seconds: float = 2.0


@dataclass(frozen=True)
class Sample:
    """Median of several timings and how far they lie apart.

    Attributes:
        seconds: Median.
        spread_s: Distance between the quartiles.
        rounds: How many there were.
    """

    seconds: float
    spread_s: float
    rounds: int

    @classmethod
    def of(cls, timings: Sequence[float]) -> Sample:
        """From the single timings, at least two."""
        low, median, high = statistics.quantiles(timings, n=4, method="inclusive")
        return cls(median, high - low, len(timings))


@dataclass(frozen=True)
class Line:
    """Seconds over the number of copies: ``intercept + slope * copies``."""

    slope: Sample
    intercept: Sample


@dataclass(frozen=True)
class Subject:
    """The model whose parts are timed; its weights do not matter.

    Attributes:
        shape: Its shape.
        config: Its config, for what is no size.
        dtype: Of the weights.
    """

    shape: ModelShape
    config: Mapping[str, Any]
    dtype: torch.dtype = torch.float32

    def conditions(self) -> Conditions:
        """What seconds measured here and now hold for."""
        parts = empty_model(self.shape, self.config).parameters()
        num_bytes = sum(p.numel() for p in parts) * self.dtype.itemsize
        return Conditions(
            cpu=cpu_name(),
            threads=torch.get_num_threads(),
            dtype=str(self.dtype).removeprefix("torch."),
            working_set_bytes=min(num_bytes, BEYOND_CACHES_BYTES),
            torch=torch.__version__,
            transformers=transformers.__version__,
        )

    def stack(self, block: Block, count: int) -> NemotronHForCausalLM:
        """An anchor and copies of a block as a model with random weights."""
        anchor = Block("attention", {"hidden": self.shape.sizes["hidden"], **ANCHOR})
        sizes = {**self.shape.sizes, "vocab": STACK_VOCAB}
        shape = replace(self.shape, sizes=sizes, blocks=(anchor, *[block] * count), mtp=())
        return random_model(shape, self.config, dtype=self.dtype)

    def rest(self) -> NemotronHForCausalLM:
        """Two anchors between embedding and head."""
        anchor = Block("attention", {"hidden": self.shape.sizes["hidden"], **ANCHOR})
        shape = replace(self.shape, blocks=(anchor, anchor), mtp=())
        return random_model(shape, self.config, dtype=self.dtype)


def cpu_name() -> str:
    """Model of the processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def time_block(block: Block, *, subject: Subject, step: Step, effort: Effort | None = None) -> Line:
    """Seconds of one block in a step, from N and 2N copies of it in turn.

    Args:
        block: Its shape; it need not be one of the subject's.
        subject: Whose width, config and dtype.
        step: Whole sequences, their new tokens, and the tokens before them.
        effort: How much is measured.

    Raises:
        RecipeError: a part of a sequence or of a token is asked for.
        RunError: the machine is too noisy to tell 2N copies from N.
    """
    effort = effort or Effort()
    return next(_block_lines(block, subject=subject, steps=[step], effort=effort))


def _block_lines(
    block: Block, *, subject: Subject, steps: Sequence[Step], effort: Effort
) -> Iterator[Line]:
    """The same for several steps with one stack."""
    model = subject.stack(block, 2 * effort.copies)
    layers = model.model.layers
    cold = Flush(subject.conditions().working_set_bytes - weights_bytes(model))
    for step in steps:
        passes = Passes(model, step, flush=cold)
        short, long = layers[: 1 + effort.copies], layers
        yield line_of(passes.through(short), passes.through(long), effort=effort)


def time_fixed(*, subject: Subject, step: Step, effort: Effort | None = None) -> Sample:
    """Seconds of a step that are no block's: embedding, last norm, head of the last token.

    Raises:
        RecipeError: a part of a sequence or of a token is asked for.
        RunError: the machine is too noisy.
    """
    effort = replace(effort or Effort(), copies=1)
    model = subject.rest()
    cold = Flush(subject.conditions().working_set_bytes - weights_bytes(model))
    passes = Passes(model, step, flush=cold, is_whole=True)
    layers = model.model.layers
    rest = line_of(passes.through(layers[:1]), passes.through(layers), effort=effort).intercept
    if not rest.seconds > 0:
        raise RunError(
            f"a pass without blocks came out at {rest.seconds:.3g} s",
            "let the machine do nothing else, or raise the number of rounds",
        )
    return rest


def time_model(model: NemotronHForCausalLM, *, step: Step, effort: Effort | None = None) -> Sample:
    """Seconds of a step of a whole model, one pass after another, as it would serve.

    Raises:
        RecipeError: a part of a sequence or of a token is asked for.
        UnsupportedModelError: no attention block, without which transformers decodes nothing.
    """
    effort = effort or Effort()
    run = Passes(model, step, is_whole=True).through(model.model.layers)
    run()
    timings: list[float] = []
    while _goes_on(len(timings), sum(timings), effort=effort):
        timings.append(run())
    return Sample.of(timings)


def line_of(short: Run, long: Run, *, effort: Effort) -> Line:
    """Slope and intercept from passes through N and 2N copies, in turn after one of each unused.

        slope = median of (long - short) / N        intercept = median of 2 short - long

    Medians of the differences within a round: a machine that slows down for a while slows both,
    and a pass that was interrupted counts as one round only.

    Raises:
        RunError: the median of the differences is not above zero.
    """
    short(), long()
    slopes: list[float] = []
    intercepts: list[float] = []
    spent = 0.0
    while _goes_on(len(slopes), spent, effort=effort):
        # Every other round the long pass is first, so that a drift cancels.
        if len(slopes) % 2:
            long_s, short_s = long(), short()
        else:
            short_s, long_s = short(), long()
        spent += short_s + long_s
        slopes.append((long_s - short_s) / effort.copies)
        intercepts.append(2 * short_s - long_s)
    line = Line(Sample.of(slopes), Sample.of(intercepts))
    if not line.slope.seconds > 0:
        raise RunError(
            f"{2 * effort.copies} copies of a block took no longer than {effort.copies} "
            f"(median over {len(slopes)} rounds)",
            "let the machine do nothing else, or raise the number of copies or rounds",
        )
    return line


def _goes_on(rounds: int, spent_s: float, *, effort: Effort) -> bool:
    return rounds < MIN_ROUNDS or (rounds < effort.rounds and spent_s < effort.seconds)


def measure(
    blocks: Sequence[Block],
    steps: Sequence[Step],
    *,
    subject: Subject,
    path: Path,
    effort: Effort | None = None,
    passes: int = 1,
    on_row: Callable[[], None] = lambda: None,
) -> MeasuredTable:
    """Measure blocks, and what is no block, in every step; what the file has is not repeated.

    One pass over everything after another, so that all are measured on the same average machine.

    Args:
        blocks: Distinct ones.
        steps: Forward passes.
        subject: Whose blocks.
        path: Table file, to which a line per measurement is appended.
        effort: Of each measurement.
        passes: Measurements wanted of each.
        on_row: Told of each new row.

    Returns:
        The table under the conditions of here and now.

    Raises:
        RecipeError, RunError: as `time_block`.
    """
    effort = effort or Effort()
    conditions = subject.conditions()
    for number in range(1, passes + 1):
        table = MeasuredTable.read(path, conditions)
        for part, step, sample in _missing(
            blocks, steps, subject=subject, table=table, wanted=number, effort=effort
        ):
            row = MeasuredRow(part, step, conditions, sample.seconds, sample.spread_s)
            append_measurement(path, row)
            on_row()
    return MeasuredTable.read(path, conditions)


def _missing(
    blocks: Sequence[Block],
    steps: Sequence[Step],
    *,
    subject: Subject,
    table: MeasuredTable,
    wanted: int,
    effort: Effort,
) -> Iterator[tuple[Part, Step, Sample]]:
    """Measure each thing that has fewer measurements than wanted."""
    rest = Part.of_rest(subject.shape)
    for step in steps:
        if table.times_measured(rest, step=step) < wanted:
            yield rest, step, time_fixed(subject=subject, step=step, effort=effort)
    for block in blocks:
        part = Part.of_block(block)
        todo = [s for s in steps if table.times_measured(part, step=s) < wanted]
        if todo:
            lines = _block_lines(block, subject=subject, steps=todo, effort=effort)
            for step, line in zip(todo, lines, strict=True):
                yield part, step, line.slope
