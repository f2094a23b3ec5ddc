"""Slope, intercept and spread from scripted timings; what a timed pass runs; resume of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fretsaw.core.shape import Block
from fretsaw.errors import RecipeError, RunError, UnsupportedModelError
from fretsaw.families import family_of
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.measure import MeasuredTable, Part
from fretsaw.runtime import timing
from fretsaw.runtime.passes import Passes, Run, random_model
from fretsaw.runtime.timing import Effort, Sample, Subject, measure, sample_of, slope_of
from tests.pico import pico_config

STEP = Step(2, 1, 6)


def subject() -> Subject:
    config = pico_config()
    return Subject(family_of(config).read_config(config), config)


def scripted(seconds: list[float], *, log: list[str] | None = None, name: str = "") -> Run:
    """A run that takes the next of these seconds, after an unused first one."""
    left: Iterator[float] = iter([1e9, *seconds])

    def run() -> float:
        if log is not None:
            log.append(name)
        return next(left)

    return run


def slope(short: list[float], long: list[float], effort: Effort) -> Sample:
    return slope_of(scripted(short), scripted(long), effort=effort)


def rounds_of(count: int) -> Effort:
    return Effort(4, 0.0, count, 1e9)


def test_slope_of_a_straight_line() -> None:
    assert slope([7.0] * 6, [11.0] * 6, Effort(4)) == Sample(1.0, 0.0, 6)


def test_interrupted_passes_change_nothing() -> None:
    short, long = [7.0, 7.0, 7.0, 50.0, 7.0, 7.0], [11.0, 99.0, 11.0, 11.0, 11.0, 11.0]
    assert slope(short, long, Effort(4)) == Sample(1.0, 0.0, 6)


def test_a_busy_while_counts_for_nothing_up_to_half_of_the_rounds() -> None:
    short = [7.0, 30.0, 7.0, 15.0, 7.0, 40.0]
    long = [11.0, 31.0, 13.0, 70.0, 12.0, 41.0]
    assert slope(short, long, rounds_of(6)) == Sample(1.25, 0.25, 6)


def test_rounds_go_on_until_the_median_is_known() -> None:
    long = [11.0, 13.0, 12.0] * 33
    sample = slope([7.0] * 99, long, Effort(4, 0.05, 60, 1e9))
    assert 6 < sample.rounds < 60
    assert sample.error_s <= 0.05 * sample.seconds


def test_the_first_passes_are_unused_and_the_order_alternates() -> None:
    log: list[str] = []
    slope_of(
        scripted([7.0] * 6, log=log, name="N"),
        scripted([11.0] * 6, log=log, name="2N"),
        effort=rounds_of(6),
    )
    assert log == ["N", "2N", *["N", "2N", "2N", "N"] * 3]


def test_rounds_end_with_the_time() -> None:
    noisy = ([1.0] * 99, [2.0, 4.0, 9.0] * 33)
    assert slope(*noisy, Effort(1, 0.0, 99, 40.0)).rounds == 8
    assert slope(*noisy, Effort(1, 0.0, 99, 0.0)).rounds == 6
    assert slope(*noisy, Effort(1, 0.0, 9, 1e9)).rounds == 9


def test_the_median_of_whole_passes() -> None:
    run = scripted([3.0, 1.0, 4.0, 2.0, 3.0, 9.0])
    assert sample_of(run, effort=rounds_of(6)) == Sample(2.0, 1.0, 6)


def test_noise_above_the_block_is_refused() -> None:
    with pytest.raises(RunError, match="no longer than 4"):
        slope([2.0] * 9, [1.9] * 9, rounds_of(9))


@pytest.mark.parametrize("mixer", ["mamba", "moe", "attention"])
@pytest.mark.parametrize("step", [STEP, Step(2, 20, 0), Step(1, 12, 5)])
def test_a_pass_goes_through_the_given_layers_from_the_same_context(mixer: str, step: Step) -> None:
    given = subject()
    block = next(b for b in given.shape.blocks if b.mixer == mixer)
    stack = given.stack(block, copies=2)
    model = stack.model
    seen: list[tuple[int, int]] = []
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, index=index: seen.append(
                (index, int(kwargs["position_ids"][0, 0]))
            ),
            with_kwargs=True,
        )
    passes = Passes(model, step)
    seen.clear()
    layers = model.model.layers
    for _ in range(2):
        assert passes.through(stack.short)() > 0
        assert passes.through(layers)() > 0
    context = int(step.context)
    once = [*(i for i in range(13) if i not in (6, 12)), *range(13)]
    assert seen == [(i, context) for i in once] * 2
    assert model.model.layers is layers


def test_copies_stand_between_the_other_mixers() -> None:
    given = subject()
    block = given.shape.blocks[1].with_values({"ffn": 24})
    stack = given.stack(block, copies=2)
    long = [layer.block_type for layer in stack.model.model.layers]
    mamba, attention, moe = "linear_attention", "full_attention", "moe"
    assert sorted(long[1:4]) == sorted([mamba, attention, moe])
    assert long == [attention, *long[1:4] * 4]
    dropped = [i for i, layer in enumerate(stack.model.model.layers) if layer not in stack.short]
    assert [long[i] for i in dropped] == [moe, moe]
    assert stack.model.model.layers[3].mixer.experts.up_proj.shape[1] == 24


def test_copies_have_weights_of_their_own() -> None:
    given = subject()
    stack = given.stack(given.shape.blocks[1], copies=1)
    experts = [p for n, p in stack.model.named_parameters() if n.endswith("experts.up_proj")]
    first, second = experts
    assert not torch.equal(first, second)


def test_random_models_compute_finite_numbers() -> None:
    given = subject()
    model = random_model(given.shape, given.config, dtype=torch.bfloat16)
    assert model.model.layers[1].mixer.gate.weight.dtype == torch.float32
    logits = model(torch.arange(12)[None]).logits
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.1


def test_what_cannot_be_run_is_refused() -> None:
    given = subject()
    model = given.rest()
    with pytest.raises(RecipeError, match="cannot be run"):
        Passes(model, Step(1.5, 1, 0))
    mambas = given.shape.with_blocks([given.shape.blocks[0]])
    with pytest.raises(UnsupportedModelError, match="no attention block"):
        Passes(random_model(mambas, given.config), STEP)


def test_what_the_file_has_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def sample(*runs: object, **_: object) -> Sample:
        asked.append(runs)
        return Sample(1.0 + (len(runs) == 1), 0.1, 3)

    monkeypatch.setattr(timing, "slope_of", sample)
    monkeypatch.setattr(timing, "sample_of", sample)
    given, file = subject(), tmp_path / "measured.jsonl"
    blocks: list[Block] = [block for block, _ in given.shape.distinct]
    steps = [STEP, Step(2, 12, 0)]
    count = (len(blocks) + 1) * len(steps)
    table = measure(blocks, steps, subject=given, path=file)
    assert len(asked) == len(table.rows) == count
    assert table.step_seconds(given.shape, step=STEP) == 2.0 + len(given.shape.blocks)

    file.write_bytes(file.read_bytes()[:-5])
    measure(blocks, steps, subject=given, path=file)
    assert len(asked) == count + 1
    measure(blocks, steps, subject=given, path=file, passes=2)
    assert len(asked) == 2 * count + 1
    again = MeasuredTable.read(file, given.conditions())
    assert again.times_measured(Part.of_rest(given.shape), step=STEP) == 2
