"""What blocks take on this machine: measured as soon as they are asked for, and kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import NemotronHForCausalLM

from fretsaw.core.precision import Precision
from fretsaw.core.shape import Block, ModelShape
from fretsaw.core.units import format_latency
from fretsaw.pricing.fitted import FittedKind, fit_kind
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.measure import PROVIDER, MeasuredTable
from fretsaw.runtime.timing import Effort, Subject, measure, time_model
from fretsaw.serving.demand import Demand, best_load
from fretsaw.serving.frontier import prefill_steps


@dataclass(frozen=True)
class Margin:
    """How far the sum of its measured parts is from a measured whole model.

    Attributes:
        predicted_s: Sum of the parts.
        measured_s: The whole model.
    """

    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Relative, of the prediction: below 0 where the model is slower than its parts."""
        return self.predicted_s / self.measured_s - 1

    def apply(self, seconds: float, *, is_whole: bool) -> float:
        """Corrected seconds of a step, or of a part of one.

        What the parts lack stays with every child, so it is added once to a whole. Where they are
        too slow, all of them are scaled. Either way a child's advantage is not overstated.

        Args:
            seconds: Of the parts.
            is_whole: Whether what is no block is among them.
        """
        lack = self.measured_s - self.predicted_s
        if lack < 0:
            return seconds * self.measured_s / self.predicted_s
        return seconds + lack * is_whole

    def told(self) -> str:
        """In words."""
        done = "added to every model" if self.error < 0 else "taken off every block"
        return (
            f"parts {format_latency(self.predicted_s)}, whole parent "
            f"{format_latency(self.measured_s)}: {abs(self.error):.1%} are {done}"
        )


NO_MARGIN = Margin(1.0, 1.0)


@dataclass(frozen=True)
class Margins:
    """Of decode steps and of prompts."""

    decode: Margin = NO_MARGIN
    prefill: Margin = NO_MARGIN

    def of(self, step: Step) -> Margin:
        """That which holds for a step."""
        return self.prefill if step.is_prefill else self.decode

    def told(self) -> list[str]:
        """In words, a line each."""
        return [f"decode step: {self.decode.told()}", f"prompt: {self.prefill.told()}"]

    def to_json(self) -> dict[str, Any]:
        """Plain data, for people."""
        parts = {"decode": self.decode, "prefill": self.prefill}
        return {name: asdict(one) | {"error": one.error} for name, one in parts.items()}


NO_MARGINS = Margins()


class MachinePrices:
    """Prices of blocks on this machine, fitted to measured forms, linear between whole batches.

    Each step is measured for all of `blocks` the first time that it is asked for.
    """

    def __init__(
        self,
        subject: Subject,
        path: Path,
        *,
        blocks: Sequence[Block],
        precision: Precision,
        margins: Margins = NO_MARGINS,
        effort: Effort | None = None,
        on_step: Callable[[Step], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            subject: The model whose parts are measured.
            path: File of all measurements, to which new ones are appended.
            blocks: Forms that are measured; all that will be asked for are of their kinds.
            precision: Number formats.
            margins: Corrections.
            effort: Of each measurement.
            on_step: Told of each step before it is measured.
        """
        self.subject, self.path, self.blocks = subject, path, blocks
        self.precision, self.margins = precision, margins
        self.effort, self.on_step = effort, on_step
        self._tables: dict[Step, MeasuredTable] = {}
        self._fits: dict[tuple[tuple[str, ...], Step], FittedKind] = {}

    def block_seconds(self, block: Block, *, step: Step) -> float:
        """Seconds of one residual block."""
        if block.mixer == "none":
            return 0.0
        step = _whole_context(step)
        seconds = _between(step, lambda node: self._fit(block, node).seconds(block))
        return self.margins.of(step).apply(seconds, is_whole=False)

    def fixed_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of what is no block."""
        step = _whole_context(step)
        seconds = _between(step, lambda node: self._measured(node).fixed_seconds(shape, step=node))
        return self.margins.of(step).apply(seconds, is_whole=True)

    def step_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of the whole model."""
        blocks = sum(n * self.block_seconds(block, step=step) for block, n in shape.distinct)
        return blocks + self.fixed_seconds(shape, step=step)

    def provider(self, shape: ModelShape, *, step: Step) -> str:  # noqa: ARG002
        """Everything is measured."""
        return PROVIDER

    def corrected(self, margins: Margins) -> MachinePrices:
        """The same with corrections."""
        other = MachinePrices(
            self.subject,
            self.path,
            blocks=self.blocks,
            precision=self.precision,
            margins=margins,
            effort=self.effort,
            on_step=self.on_step,
        )
        other._tables, other._fits = self._tables, self._fits
        return other

    def told(self) -> list[str]:
        """How well the fits describe what was measured, a line for each kind and step."""
        return [
            f"{kind[0]}, {step_text(step)}: median error of the fit {fit.error:.1%}"
            for (kind, step), fit in self._fits.items()
        ]

    def _fit(self, block: Block, node: Step) -> FittedKind:
        """What forms of a block's kind take of a step with a whole batch."""
        kind = _kind(block)
        if (kind, node) not in self._fits:
            table = self._measured(node)
            forms = [form for form in self.blocks if _kind(form) == kind]
            self._fits[kind, node] = fit_kind(
                [(form, table.block_seconds(form, step=node)) for form in forms],
                step=node,
                precision=self.precision,
            )
        return self._fits[kind, node]

    def _measured(self, node: Step) -> MeasuredTable:
        if node not in self._tables:
            self.on_step(node)
            self._tables[node] = measure(
                self.blocks, [node], subject=self.subject, path=self.path, effort=self.effort
            )
        return self._tables[node]


def _kind(block: Block) -> tuple[str, ...]:
    return (block.mixer, *sorted(block.values))


def _between(step: Step, seconds: Callable[[Step], float]) -> float:
    """Seconds at a step, linear in its sequences between those at whole batches."""
    low, *above = nodes(step)
    found = seconds(low)
    for high in above:
        share = (step.sequences - low.sequences) / (high.sequences - low.sequences)
        found += (seconds(high) - found) * share
    return found


def learn_margins(prices: MachinePrices, model: NemotronHForCausalLM, *, demand: Demand) -> Margins:
    """Compare the sum of the parent's parts with the whole of it, at the load that it can serve.

    Args:
        prices: Of the parent's blocks.
        model: The parent, running.
        demand: Its workload, and its speed or its requests in flight.
    """
    assert demand.workload is not None
    shape = prices.subject.shape
    load = best_load(shape, demand, prices_of=lambda _: prices)
    sequences = float(round(load.in_flight)) if load else 1.0
    decode = _whole_context(Step(sequences, 1, demand.workload.mean_context))
    first, *_ = prefill_steps(demand.workload.input_tokens)
    margins = [
        Margin(
            prices.step_seconds(shape, step=step),
            time_model(model, step=step, effort=prices.effort).seconds,
        )
        for step in (decode, first)
    ]
    return Margins(*margins)


def step_text(step: Step) -> str:
    """As in progress lines: ``8 sequences, 1 token after 160``."""
    return f"{step.sequences:g} x {step.tokens} tokens after {step.context:g}"


def _whole_context(step: Step) -> Step:
    return replace(step, context=float(round(step.context)))


def nodes(step: Step) -> list[Step]:
    """Steps around a step with batches of 1, 2, 3, 4, 6, 8, 12, ...: itself, or two."""
    sequences = step.sequences
    powers = [2.0**i for i in range(int(sequences).bit_length() + 1)]
    ladder = [*powers, *(1.5 * n for n in powers[1:])]
    near = {max(n for n in ladder if n <= sequences), min(n for n in ladder if n >= sequences)}
    return [replace(step, sequences=n) for n in sorted(near)]
