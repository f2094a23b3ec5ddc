"""Prices on this machine: what is measured, once, and how the whole parent corrects it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import NemotronHForCausalLM

from fretsaw.core.hardware import ONE_GPU, Hardware, Node, Workload
from fretsaw.core.precision import preset
from fretsaw.core.shape import Block
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.measure import Conditions, MeasuredRow, MeasuredTable, Part
from fretsaw.runtime.timing import Sample, Subject
from fretsaw.serving.demand import Demand
from fretsaw.stages import machine
from fretsaw.stages.machine import MachinePrices, Margin, Margins, learn_margins, nodes
from tests.pico import pico_model
from tests.shapes import hybrid_shape

SHAPE = hybrid_shape("ME*")
FORMS = [*SHAPE.blocks, SHAPE.blocks[1].with_values({"ffn": 16, "top_k": 1})]
HERE = Conditions("a CPU", 1, "float32", 1, "2", "5")
FP32 = preset("fp32")


def seconds_of(block: Block | None, step: Step) -> float:
    """Of a toy machine: affine in sequences, and longer for wider forms."""
    width = 10 if block is None else sum(block.values.values())
    return 1e-6 * width * (3 + step.sequences) * step.tokens


class Machine:
    """Stands for `measure`, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Step] = []

    def __call__(self, blocks: Sequence[Block], steps: Sequence[Step], **_: Any) -> MeasuredTable:
        self.asked += steps
        parts = [(Part.of_rest(SHAPE), None), *((Part.of_block(b), b) for b in blocks)]
        rows = [
            MeasuredRow(part, step, HERE, seconds_of(block, step), 0.0)
            for step in steps
            for part, block in parts
        ]
        return MeasuredTable(rows, HERE)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Machine:
    fake = Machine()
    monkeypatch.setattr(machine, "measure", fake)
    return fake


def prices(margins: Margins = machine.NO_MARGINS) -> MachinePrices:
    subject = Subject(SHAPE, {})
    return MachinePrices(subject, Path("unused"), blocks=FORMS, precision=FP32, margins=margins)


@pytest.mark.parametrize(
    ("sequences", "found"),
    [(1, [1]), (12, [12]), (5, [4, 6]), (2.5, [2, 3]), (6.1, [6, 8]), (100.5, [96, 128])],
)
def test_nodes_are_whole_batches_around_a_step(sequences: float, found: list[float]) -> None:
    assert [node.sequences for node in nodes(Step(sequences, 1, 7.0))] == found


def test_a_step_is_measured_once_for_all_forms(measured: Machine) -> None:
    here = prices()
    for block in FORMS:
        for step in (Step(4, 1, 10.0), Step(4, 1, 10.2)):
            assert here.block_seconds(block, step=step) == pytest.approx(
                seconds_of(block, Step(4, 1, 10.0))
            )
    assert measured.asked == [Step(4, 1, 10.0)]


def test_between_whole_batches_seconds_are_linear(measured: Machine) -> None:
    here, step = prices(), Step(5.5, 1, 10.0)
    assert here.block_seconds(FORMS[0], step=step) == pytest.approx(seconds_of(FORMS[0], step))
    assert here.fixed_seconds(SHAPE, step=step) == pytest.approx(seconds_of(None, step))
    assert [node.sequences for node in measured.asked] == [4, 6]


def test_a_block_that_is_gone_takes_nothing(measured: Machine) -> None:
    assert prices().block_seconds(Block("none"), step=Step(4, 1, 10.0)) == 0.0
    assert measured.asked == []


def test_what_the_parts_lack_is_added_once_to_every_model(measured: Machine) -> None:
    step = Step(4, 1, 10.0)
    plain = prices().step_seconds(SHAPE, step=step)
    here = prices().corrected(Margins(decode=Margin(plain, 1.5 * plain)))
    assert here.step_seconds(SHAPE, step=step) == pytest.approx(1.5 * plain)
    small = SHAPE.with_blocks([*SHAPE.blocks[::2], FORMS[-1]])
    assert here.step_seconds(small, step=step) == pytest.approx(
        prices().step_seconds(small, step=step) + 0.5 * plain
    )


def test_parts_that_are_too_slow_are_scaled(measured: Machine) -> None:
    step = Step(1, 100, 0.0)
    plain = prices().step_seconds(SHAPE, step=step)
    here = prices().corrected(Margins(prefill=Margin(plain, 0.8 * plain)))
    assert here.step_seconds(SHAPE, step=step) == pytest.approx(0.8 * plain)
    assert here.block_seconds(FORMS[1], step=step) == pytest.approx(
        0.8 * seconds_of(FORMS[1], step)
    )


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.0, 1.3, 2.0])
def test_a_margin_never_overstates_what_a_cut_gains(factor: float) -> None:
    parent_s, child_s = 1.0, 0.7
    margin = Margin(parent_s, factor * parent_s)
    gain = margin.apply(parent_s, is_whole=True) / margin.apply(child_s, is_whole=True)
    assert gain <= parent_s / child_s + 1e-12


def test_the_parent_is_timed_at_the_load_that_it_serves(
    measured: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[Step] = []

    def whole(model: NemotronHForCausalLM, *, step: Step, effort: object) -> Sample:
        timed.append(step)
        return Sample(2 * prices().step_seconds(SHAPE, step=step), 0.0, 9)

    monkeypatch.setattr(machine, "time_model", whole)
    here = Node(Hardware("this-machine", 2**34, 1e10, {"fp32": 1e10}))
    demand = Demand(
        "it", here, (ONE_GPU,), FP32, 120, workload=Workload(100, 20), concurrency=4, speedup=1.2
    )
    margins = learn_margins(prices(), pico_model(0), demand=demand)
    assert timed == [Step(4.0, 1, 110.0), Step(1, 100, 0)]
    assert margins.decode.error == pytest.approx(-0.5)
    assert margins.prefill.error == pytest.approx(-0.5)
    assert "50.0% are added to every model" in margins.told()[0]
