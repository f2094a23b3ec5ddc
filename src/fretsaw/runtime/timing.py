"""Seconds of blocks, of what is no block, and of whole models, on the machine that this runs on.

A block is timed inside the running model: passes through N and through 2N copies of it, each with
weights of its own, between blocks of the model's other mixers; the slope is a block's seconds.
What is no block is timed as a pass through none.
"""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import NemotronHForCausalLM

from fretsaw.core.shape import Block, ModelShape
from fretsaw.errors import RunError
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.measure import (
    Conditions,
    MeasuredRow,
    MeasuredTable,
    Part,
    append_measurement,
)
from fretsaw.runtime.load import empty_model
from fretsaw.runtime.passes import Flush, Passes, Run, random_model, weights_bytes

MIN_ROUNDS = 6
BEYOND_CACHES_BYTES = 128 * 2**20
"""Weights of which a pass finds none cached any more; four times this project's largest L3."""

ANCHOR = {"kv_head": 1, "q_per_kv": 1, "head_dim": 8}
"""A small attention block before the copies: without one, transformers counts no cached tokens."""

STACK_VOCAB = 8


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds until the median is known well enough, within bounds.

    Attributes:
        copies: N; the long stack has 2N.
        tolerance: Of the median's standard error, as a share of it.
        rounds: At most, each with one short and one long pass.
        seconds: Of timed passes after which no further round begins (but for the least six).
    """

    copies: int = 2
    tolerance: float = 0.02
    rounds: int = 100
    seconds: float = 5.0

    def is_enough(self, rounds: Sequence[Round]) -> bool:
        """Whether these rounds do."""
        if len(rounds) < MIN_ROUNDS:
            return False
        sample, spent_s = Sample.of(rounds), sum(one.spent_s for one in rounds)
        is_known = sample.error_s <= self.tolerance * sample.seconds
        return is_known or sample.rounds >= self.rounds or spent_s >= self.seconds


@dataclass(frozen=True)
class Sample:
    """Median of several timings and how far they lie apart.

    Attributes:
        seconds: Median over the quieter half of the rounds.
        spread_s: Distance between the quartiles of that half.
        rounds: How many there were, the noisier half included.
    """

    seconds: float
    spread_s: float
    rounds: int

    @property
    def error_s(self) -> float:
        """Standard error of the median, were the quieter half normally distributed.

        1.2533 sigma / sqrt(n), with sigma the quartiles' distance / 1.349.
        """
        return 0.929 * self.spread_s / math.sqrt(self.rounds / 2)

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Sample:
        """From three rounds or more; what else a machine does can only make a pass longer."""
        quiet = sorted(rounds, key=lambda one: one.spent_s)[: (len(rounds) + 1) // 2]
        values = [one.seconds for one in quiet]
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, high - low, len(rounds))


@dataclass(frozen=True)
class Round:
    """One timing: what it says, and the seconds that it took."""

    seconds: float
    spent_s: float


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

    def parts(self, blocks: Sequence[Block]) -> list[Part]:
        """What `measure` times for these blocks: what is no block, then each of them."""
        return [Part.of_rest(self.shape), *map(Part.of_block, blocks)]

    def stack(self, block: Block, *, copies: int) -> Stack:
        """2N copies of a block, each after one block of every other mixer of the model.

        In a stack of one mixer alone, code and small tensors stay cached that the model's turn of
        mixers evicts, and the blocks come out too fast.
        """
        firsts = {known.mixer: known for known, _ in reversed(self.shape.distinct)}
        period = [other for mixer, other in firsts.items() if mixer != block.mixer] + [block]
        model = self._model([self._anchor, *period * (2 * copies)])
        layers = list(model.model.layers)
        dropped = set(range(2 * len(period), len(layers), 2 * len(period)))
        short = nn.ModuleList(layer for i, layer in enumerate(layers) if i not in dropped)
        return Stack(model, short)

    def rest(self) -> NemotronHForCausalLM:
        """Embedding, last norm and head of the model, around an anchor."""
        return self._model([self._anchor], vocab=self.shape.sizes["vocab"])

    @property
    def _anchor(self) -> Block:
        return Block("attention", {"hidden": self.shape.sizes["hidden"], **ANCHOR})

    def _model(self, blocks: Sequence[Block], *, vocab: int = STACK_VOCAB) -> NemotronHForCausalLM:
        sizes = {**self.shape.sizes, "vocab": vocab}
        shape = replace(self.shape, sizes=sizes, blocks=tuple(blocks), mtp=())
        return random_model(shape, self.config, dtype=self.dtype)


@dataclass(frozen=True)
class Stack:
    """A model with 2N copies of a block, and its layers without every other copy."""

    model: NemotronHForCausalLM
    short: nn.ModuleList


def cpu_name() -> str:
    """Model of the processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def time_block(
    block: Block, *, subject: Subject, step: Step, effort: Effort | None = None
) -> Sample:
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
    return next(_block_samples(block, subject=subject, steps=[step], effort=effort))


def _block_samples(
    block: Block, *, subject: Subject, steps: Sequence[Step], effort: Effort
) -> Iterator[Sample]:
    """The same for several steps with one stack."""
    stack = subject.stack(block, copies=effort.copies)
    long = stack.model.model.layers
    cold = Flush(subject.conditions().working_set_bytes - weights_bytes(stack.model))
    for step in steps:
        passes = Passes(stack.model, step, flush=cold)
        yield slope_of(passes.through(stack.short), passes.through(long), effort=effort)


def time_fixed(*, subject: Subject, step: Step, effort: Effort | None = None) -> Sample:
    """Seconds of a pass through no block: embedding, masks, last norm, head of the last token.

    Raises:
        RecipeError: a part of a sequence or of a token is asked for.
    """
    model = subject.rest()
    cold = Flush(subject.conditions().working_set_bytes - weights_bytes(model))
    passes = Passes(model, step, flush=cold, is_whole=True)
    return sample_of(passes.through(nn.ModuleList()), effort=effort or Effort())


def time_model(model: NemotronHForCausalLM, *, step: Step, effort: Effort | None = None) -> Sample:
    """Seconds of a step of a whole model, one pass after another, as it would serve.

    Raises:
        RecipeError: a part of a sequence or of a token is asked for.
        UnsupportedModelError: no attention block, without which transformers decodes nothing.
    """
    passes = Passes(model, step, is_whole=True)
    return sample_of(passes.through(model.model.layers), effort=effort or Effort())


def sample_of(run: Run, *, effort: Effort) -> Sample:
    """Median of the quieter half of passes, after one that is unused."""
    run()
    rounds: list[Round] = []
    while not effort.is_enough(rounds):
        seconds = run()
        rounds.append(Round(seconds, seconds))
    return Sample.of(rounds)


def slope_of(short: Run, long: Run, *, effort: Effort) -> Sample:
    """Seconds of one copy, from passes with N and 2N copies in turn, after one of each unused.

        slope = median of (long - short) / N over the quieter half of the rounds

    Differences within a round, because a machine that slows down for a while slows both; the
    quieter half by short + long, because that favours neither.

    Raises:
        RunError: the long passes take no longer than the short ones.
    """
    short(), long()
    rounds: list[Round] = []
    while not effort.is_enough(rounds):
        # Every other round the long pass is first, so that a drift cancels.
        if len(rounds) % 2:
            long_s, short_s = long(), short()
        else:
            short_s, long_s = short(), long()
        rounds.append(Round((long_s - short_s) / effort.copies, short_s + long_s))
    sample = Sample.of(rounds)
    if not sample.seconds > 0:
        raise RunError(
            f"{2 * effort.copies} copies of a block took no longer than {effort.copies} "
            f"({sample.rounds} rounds)",
            "let the machine do nothing else and run again; what was measured is kept",
        )
    return sample


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
            samples = _block_samples(block, subject=subject, steps=todo, effort=effort)
            for step, sample in zip(todo, samples, strict=True):
                yield part, step, sample
