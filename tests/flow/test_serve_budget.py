"""A run under serving budgets: on known hardware, on this machine, and where they cannot be met."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import NemotronHForCausalLM

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.engines import engine_named
from fretsaw.core.hardware import ONE_GPU, parse_node
from fretsaw.core.precision import preset
from fretsaw.core.shape import Block, ModelShape
from fretsaw.errors import InfeasibleError, RecipeError
from fretsaw.pricing.blocks import block_kernels
from fretsaw.pricing.footprint import footprint
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.measure import Conditions, MeasuredRow, MeasuredTable, Part
from fretsaw.recipe import Recipe, resolve_recipe
from fretsaw.runtime.timing import Sample
from fretsaw.serving.capacity import Assumptions, capacity
from fretsaw.stages import machine, speedup
from fretsaw.stages.compress import compress, run_one
from tests.flow.conftest import Finished
from tests.flow.pico_run import QUIET, STAGES, Setting

HERE = Conditions("a CPU", 1, "float32", 1, "2", "5")
FAST = {"hardware": "this-machine", "workload": "100/20", "concurrency": 4, "speedup": 1.1}


def recipe_with(setting: Setting, *serve: dict[str, Any]) -> Recipe:
    """One round with nothing but serving budgets."""
    data = copy.deepcopy(setting.data)
    data["rounds"] = [
        {
            "library": {"moe": {"ffn": [8, 16, 24], "top_k": [1]}, "mamba": {"state": [12]}},
            "search": {"budget": {"serve": list(serve)}},
            "distill": {"tokens": 128, "evaluations": 1},
        }
    ]
    return resolve_recipe(data)


def block_seconds(block: Block | None, step: Step) -> float:
    """Of a toy machine that is not bound by launches, as small models are on real ones."""
    if block is None:
        return 1e-5 * (1 + step.sequences * step.tokens)
    kernels = block_kernels(block, step=step, layout=ONE_GPU, precision=preset("fp32"))
    return 2e-5 + sum(1e-9 * kernel.bytes + 1e-9 * kernel.flops for kernel in kernels)


def model_seconds(shape: ModelShape, step: Step) -> float:
    return sum(block_seconds(b, step) for b in shape.blocks) + block_seconds(None, step)


LACK = 1.1
"""Whole models take so many times their parts."""


@pytest.fixture
def toy_machine(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine as a formula: the real measuring is tested where it lives."""
    parent = Checkpoint(setting.parent).shape
    shapes: dict[int, ModelShape] = {}
    open_model = speedup.open_model

    def measure(blocks: Sequence[Block], steps: Sequence[Step], **_: Any) -> MeasuredTable:
        parts = [(Part.of_rest(parent), None), *((Part.of_block(b), b) for b in blocks)]
        rows = [
            MeasuredRow(part, step, HERE, block_seconds(block, step), 0.0)
            for step in steps
            for part, block in parts
        ]
        return MeasuredTable(rows, HERE)

    def whole(model: NemotronHForCausalLM, *, step: Step, effort: object) -> Sample:
        return Sample(LACK * model_seconds(parent, step), 0.0, 9)

    def opened(folder: Path, compute: Any) -> Any:
        view = open_model(folder, compute)
        shapes[id(view.model)] = view.shape
        return view

    def in_turn(asked: Sequence[tuple[NemotronHForCausalLM, Step]]) -> list[float]:
        added = LACK - 1
        return [
            model_seconds(shapes[id(model)], step) + added * model_seconds(parent, step)
            for model, step in asked
        ]

    monkeypatch.setattr(machine, "measure", measure)
    monkeypatch.setattr(machine, "time_model", whole)
    monkeypatch.setattr(speedup, "open_model", opened)
    monkeypatch.setattr(speedup, "time_in_turn", in_turn)


def read(setting: Setting, stage: str, name: str) -> Any:
    return json.loads((setting.out / "round-1" / stage / name).read_text())


@pytest.mark.parametrize(
    "asked",
    [
        FAST,
        {"hardware": "this-machine", "workload": "100/20", "user_tokens_per_s": 50, "speedup": 1.1},
    ],
)
def test_a_speed_asked_of_this_machine_is_predicted_reached_and_told(
    setting: Setting, toy_machine: None, asked: dict[str, Any]
) -> None:
    summary = compress(recipe_with(setting, asked), out=setting.out, reporter=QUIET)

    (line,) = summary.serving
    assert line.asked == 1.1
    assert line.predicted is not None
    assert line.measured is not None
    assert 1.1 <= line.predicted < 1.15
    assert line.measured == pytest.approx(line.predicted, rel=0.02)
    assert line.told().startswith("asked 1.1x, predicted 1.")
    margins = read(setting, "05-cost", "margins-0.json")
    assert margins["decode"]["error"] == pytest.approx(1 / LACK - 1)
    (predicted,) = read(setting, "06-search", "serving.json")
    assert predicted["layout"] == "tp1"
    assert predicted["token_s"] <= predicted["token_limit_s"]
    (choice,) = [read(setting, "06-search", "choice.json")]
    assert choice["status"] == "optimal"
    rows = (setting.out / "round-1" / "05-cost" / "prices.jsonl").read_text().splitlines()
    assert {json.loads(row)["provider"] for row in rows} == {"measured"}


def test_memory_for_requests_is_a_budget(setting: Setting) -> None:
    """Room for 20 requests, which the parent leaves for fewer."""
    parent = Checkpoint(setting.parent).shape
    cache = engine_named("vllm").cache
    whole = footprint(parent, preset("bf16"), rule=cache)
    memory = whole.weights_bytes + 18 * whole.sequence_bytes(20)
    fraction = memory / parse_node("H100").hardware.memory_bytes
    asked = {"hardware": "H100", "context": 20, "concurrency": 20, "memory_fraction": fraction}

    summary = compress(recipe_with(setting, asked), out=setting.out, reporter=QUIET)

    def held(shape: ModelShape) -> int:
        return capacity(
            shape,
            parse_node("H100"),
            context=20,
            precision=preset("bf16"),
            layout=ONE_GPU,
            assumptions=Assumptions(fraction, cache=cache),
        ).max_concurrency

    assert held(parent) < 20 <= held(Checkpoint(summary.child).shape)
    (predicted,) = read(setting, "06-search", "serving.json")
    assert predicted["gpu_bytes"] <= predicted["usable_bytes"]


def test_a_plain_run_has_costs_of_every_form(finished: Finished) -> None:
    folder = finished.out / "round-1" / "05-cost"
    rows = [json.loads(line) for line in (folder / "costs.jsonl").read_text().splitlines()]
    keys = [json.dumps(row["block"], sort_keys=True) for row in rows]
    assert len(keys) == len(set(keys)) > 4
    assert {row["provider"] for row in rows} == {"tensor table"}
    assert not (folder / "prices.jsonl").exists()


def test_what_no_model_reaches_is_refused_before_scoring_on_known_hardware(
    setting: Setting,
) -> None:
    asked = {"hardware": "H100", "workload": "100/20", "concurrency": 4, "speedup": 50}
    with pytest.raises(
        InfeasibleError, match=r"the fastest model .*x the parent's \(H100 tp1"
    ) as caught:
        compress(recipe_with(setting, asked), out=setting.out, reporter=QUIET)
    assert "add smaller sizes" in caught.value.hint
    assert not (setting.out / "round-1" / "04-score").exists()


def test_what_no_model_reaches_here_is_refused_before_the_search(
    setting: Setting, toy_machine: None
) -> None:
    recipe = recipe_with(setting, FAST | {"speedup": 50})
    for word in ("library", "cost"):
        if word == "cost":
            with pytest.raises(InfeasibleError, match="the fastest model in the library"):
                run_one(word, recipe, out=setting.out, reporter=QUIET)
        else:
            run_one(word, recipe, out=setting.out, reporter=QUIET)
    assert not (setting.out / "round-1" / STAGES[5]).exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (FAST | {"workload": "600/20"}, "620 tokens is longer than the model's 512"),
        (
            {"hardware": "H100", "context": "1k", "concurrency": 1},
            "1,000 tokens is longer than the model's 512",
        ),
        (
            {
                "hardware": "8xH100",
                "workload": "100/20",
                "concurrency": 8,
                "speedup": 1.1,
                "layout": "tp8 ep8",
            },
            "does not divide",
        ),
        (
            {
                "hardware": "2xH100",
                "workload": "100/20",
                "concurrency": 8,
                "speedup": 1.1,
                "layout": "tp4",
            },
            "does not divide the node's 2",
        ),
    ],
)
def test_what_the_model_cannot_do_is_refused_before_anything_runs(
    setting: Setting, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        compress(recipe_with(setting, asked), out=setting.out, reporter=QUIET)
    assert not (setting.out / "round-1").exists()
