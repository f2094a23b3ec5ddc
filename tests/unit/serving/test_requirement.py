"""Requirements: read from text, and met by exactly the cut that is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fretsaw.core.hardware import Layout
from fretsaw.errors import RecipeError
from fretsaw.serving.planner import best_at_speed, cut_axes, most_sequences
from fretsaw.serving.requirement import SMALLEST, Requirement, judge, parse_requirement
from tests.shapes import published_shape
from tests.unit.serving.test_planner import SUPER, setting_of

PUZZLE = published_shape("puzzle")
RATE, COUNT = "server tokens/s", "concurrency"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x server tokens/s", Requirement(2.0, True, RATE)),
        ("1.5× server tokens/s", Requirement(1.5, True, RATE)),
        (" 40k server tokens/s ", Requirement(40_000.0, False, RATE)),
        ("42,601 server tokens/s", Requirement(42_601.0, False, RATE)),
        ("8 concurrency", Requirement(8.0, False, COUNT)),
        ("4x concurrency", Requirement(4.0, True, COUNT)),
        ("1.5M server tokens/s", Requirement(1.5e6, False, RATE)),
    ],
)
def test_requirements_as_people_write_them(text: str, expected: Requirement) -> None:
    assert parse_requirement(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "2x", "fast", "2x tokens", "-2x server tokens/s", "0x concurrency", "x concurrency",
     "2y concurrency", "nan concurrency", "9" * 400 + " concurrency", "1.2.3 concurrency"],
)  # fmt: skip
def test_what_is_no_requirement(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_requirement(text)
    assert caught.value.hint


@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_the_named_cut_reaches_it_and_a_percent_milder_does_not(factor: float) -> None:
    setting = setting_of(SUPER, layouts=[Layout(2, 1, 2), Layout(4, 1, 4)])
    verdict = judge(SUPER, setting, requirement=Requirement(factor, True, RATE))

    def reached(axes: tuple[str, ...], share: float) -> float:
        best = best_at_speed(cut_axes(SUPER, dict.fromkeys(axes, share)), setting)
        return best.server_tokens_per_s if best else 0.0

    assert verdict.parent == reached((), 1.0)
    assert verdict.wanted == factor * verdict.parent
    assert len(verdict.cuts) == 6
    assert sum(cut.share is not None for cut in verdict.cuts) >= 3
    for cut in verdict.cuts:
        if cut.share is None:
            assert cut.reached == reached(cut.axes, 0.01) < verdict.wanted
            continue
        assert cut.reached == reached(cut.axes, cut.share) >= verdict.wanted
        assert reached(cut.axes, cut.share + 0.01) < verdict.wanted


def test_concurrency_is_met_by_memory() -> None:
    setting = setting_of(SUPER, "H100", workload=None, speed=None, context=10**6)
    setting = replace(setting, assumptions=replace(setting.assumptions, memory_fraction=0.97))
    verdict = judge(SUPER, setting, requirement=Requirement(8, False, COUNT))
    assert verdict.parent == 2
    by_axes = {cut.axes: cut for cut in verdict.cuts}
    # Experts are most of the weights: their width alone does it; top-k holds no memory.
    width = by_axes[("ffn",)]
    assert width.share is not None
    for share, is_met in ((width.share, True), (width.share + 0.01, False)):
        small = cut_axes(SUPER, {"ffn": share})
        assert (most_sequences(small, setting)[0].max_concurrency >= 8) is is_met
    assert by_axes[("top_k",)].share is None
    assert by_axes[("top_k",)].reached == 2


def test_what_the_parent_has_already_needs_no_cut() -> None:
    setting = setting_of(SUPER, layouts=[Layout(4)])
    verdict = judge(SUPER, setting, requirement=Requirement(1.0, True, RATE))
    assert {cut.share for cut in verdict.cuts} == {1.0}
    assert verdict.is_within_space


def test_the_search_space_is_asked_with_its_smallest_model() -> None:
    setting = setting_of(SUPER, layouts=[Layout(2, 1, 2)])
    smallest = best_at_speed(cut_axes(SUPER, SMALLEST), setting)
    assert smallest is not None
    for value, is_met in (
        (smallest.server_tokens_per_s * 0.999, True),
        (smallest.server_tokens_per_s * 1.001, False),
    ):
        verdict = judge(SUPER, setting, requirement=Requirement(value, False, RATE))
        assert verdict.smallest == smallest.server_tokens_per_s
        assert verdict.is_within_space is is_met


def test_the_published_child_is_within_the_published_space() -> None:
    small, child = cut_axes(SUPER, SMALLEST), PUZZLE
    for least, own, parent in zip(small.blocks, child.blocks, SUPER.blocks, strict=True):
        for axis in SMALLEST.keys() & own.values.keys():
            assert least.values[axis] <= own.values[axis] <= parent.values[axis]


@pytest.mark.parametrize(
    ("requirement", "terms"),
    [
        (Requirement(2.0, True, RATE), {"speed": 1e5}),
        (Requirement(2.0, True, COUNT), {"node": "L40S", "layouts": [Layout()]}),
    ],
)
def test_a_multiple_of_nothing_is_refused(
    requirement: Requirement, terms: dict[str, object]
) -> None:
    setting = setting_of(SUPER, **terms)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=f"no {requirement.measure} here") as caught:
        judge(SUPER, setting, requirement=requirement)
    assert "a number instead" in caught.value.hint


def test_a_number_may_be_asked_of_a_parent_that_has_nothing() -> None:
    setting = setting_of(SUPER, "L40S", layouts=[Layout()])
    verdict = judge(SUPER, setting, requirement=Requirement(1, False, COUNT))
    assert verdict.parent == 0
    width = next(cut for cut in verdict.cuts if cut.axes == ("ffn",))
    assert width.share is not None
    assert width.reached >= 1
