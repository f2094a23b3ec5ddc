"""The static figures: valid drawings that say what the numbers say."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from fretsaw.core.shape import Block
from fretsaw.reports.figures import additivity_svg, healing_svg
from fretsaw.reports.findings import BlockForm, Evaluation, SwappedModel, healing_axis
from fretsaw.reports.heatmap import choice_svg, depth
from fretsaw.reports.svg import ALONE, DARK, LIGHT, NARROW, WIDE, WIDTH, Scale, number, share
from tests.unit.reports.example import BLOCKS, MOE, ROUNDS, STATES

NS = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ET.Element:
    assert not re.search(r"\b(nan|inf)\b", svg, re.IGNORECASE)
    assert "url(http" not in svg
    return ET.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{NS}text")]


def tips(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{NS}title")]


def assert_inside(svg: str) -> None:
    root = parsed(svg)
    height = float(root.get("height", "0"))
    for element in root.iter():
        for x, y in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2")):
            if element.get(x) and element.tag != f"{NS}pattern":
                assert 0 <= float(element.get(x, "")) <= WIDTH
                assert 0 <= float(element.get(y, "")) <= height


def test_blocks_are_traced_to_the_original_parent() -> None:
    assert list(STATES[0]) == [0, 1, 2, 3, 4, 5]
    assert list(STATES[1]) == list(STATES[2]) == [0, 2, 3, 4, 5]
    assert STATES[2][2] == Block("moe", {"ffn": 96, "expert": 16}, {"top_k": 4})
    assert STATES[2][4] == Block("moe", {"ffn": 64, "expert": 16}, {"top_k": 2})
    assert [form.index for form in BLOCKS if form.is_gone] == [1]


def test_u23_choice_shows_numbers_and_shares_in_full() -> None:
    svg = choice_svg(BLOCKS, num_rounds=2)
    shown = texts(svg)
    for label in ("24", "96", "64", "4", "2", "37.5", "12.5", "expert width", "Mamba state"):
        assert label in shown
    assert [t for t in shown if t in set("ME*-")][:6] == ["M", "E", "E", "*", "E", "-"]
    assert "block 0, Mamba state: 24 of 32 (75.0%)" in tips(svg)
    assert "block 4, routed capacity: 64 of 128 × 2 of 8 (12.5%)" in tips(svg)
    assert "block 1 (experts (MoE)) is gone" in tips(svg)
    assert_inside(svg)


def test_choice_counts_blocks_that_are_gone_in_the_average() -> None:
    shown = texts(choice_svg(BLOCKS, num_rounds=2))
    width = shown[shown.index("expert width") + 1]
    assert width == f"{(0 + 96 + 64) / (3 * 128):.1%} kept on average"


def test_choice_leaves_out_rows_that_no_block_has() -> None:
    blocks = [BlockForm(0, MOE, MOE), BlockForm(1, Block("attention"), Block("attention"))]
    assert "Mamba state" not in texts(choice_svg(blocks, num_rounds=1))


@pytest.mark.parametrize("count", [1, 28, 29, 88, 200])
def test_choice_of_any_length_stays_inside(count: int) -> None:
    wide = Block("moe", {"ffn": 2688, "expert": 512}, {"top_k": 22})
    blocks = [BlockForm(i, wide, wide.with_values({"ffn": 1344})) for i in range(count)]
    svg = choice_svg(blocks, num_rounds=3)
    assert texts(svg).count("1344") == count
    assert str(count - 1) in texts(svg)
    assert_inside(svg)


def test_healing_shows_cut_and_kept_values() -> None:
    svg = healing_svg(ROUNDS, parent_loss=2.3102)
    shown = texts(svg)
    for label in ("0.432", "0.123", "0.410", "0.178", "2.745", "2.411", "parent 2.310"):
        assert label in shown
    for label in ("round 1", "round 2", "healing tokens, all rounds", "200k"):
        assert label in shown
    assert "KL to the parent, nats per token" in shown
    assert "round 2, 60,000 tokens: 0.1777" in tips(svg)
    assert_inside(svg)


def test_u23_training_kl_stays_in_its_plot() -> None:
    wild = replace(ROUNDS[0], evaluations=(Evaluation(0, 2.7, 0.4), Evaluation(9, 2.5, 0.2, 7.5)))
    wild = replace(wild, kept_tokens=9)
    for canvas in (ALONE, WIDE, NARROW):
        svg = healing_svg([wild, ROUNDS[1]], parent_loss=2.3102, canvas=canvas)
        drawn = list(parsed(svg).iter(f"{NS}polyline"))
        trained = [line for line in drawn if "fs-muted-line" in line.get("class", "")]
        assert trained
        panel = [float(t.get("y", "")) for t in parsed(svg).iter(f"{NS}text") if t.text == "0"]
        titles = [
            t for t in parsed(svg).iter(f"{NS}text") if t.text == "KL to the parent, nats per token"
        ]
        top, bottom = float(titles[0].get("y", "")), panel[0]
        for line in trained:
            for point in line.get("points", "").split():
                x, y = map(float, point.split(","))
                assert 0 < x < canvas.width
                assert top < y < bottom
        assert "in training" in texts(svg)


def test_healing_puts_rounds_one_after_the_other() -> None:
    assert [(s.start, s.end) for s in healing_axis(ROUNDS)] == [(0, 80_000), (80_000, 200_000)]


def test_healing_that_never_helped_is_drawn() -> None:
    only = replace(ROUNDS[0], evaluations=ROUNDS[0].evaluations[:1], kept_tokens=0)
    assert_inside(healing_svg([only], parent_loss=2.745))


def test_additivity_shows_agreement_per_round() -> None:
    svg = additivity_svg(ROUNDS)
    shown = texts(svg)
    assert "4 choices, Spearman 0.99" in shown
    assert "1 choices, too few to correlate" not in shown
    assert "1 choice, too few to correlate" in shown
    assert "1 not above zero, not shown" in shown
    assert "random choice: 0.9 → 0.85" in tips(svg)
    assert_inside(svg)


def test_additivity_without_an_identity_for_other_units() -> None:
    ranks = replace(ROUNDS[0], metric="hidden", spearman=math.nan)
    svg = additivity_svg([ranks])
    assert "summed ranks" in texts(svg)
    assert "measured as predicted" not in texts(svg)
    assert "4 choices, too few to correlate" in texts(svg)


def test_additivity_without_choices() -> None:
    assert "no choices" in texts(additivity_svg([replace(ROUNDS[0], swapped=())]))
    below = replace(ROUNDS[0], swapped=(SwappedModel("random", 0.0, 0.0),))
    assert "no choices" in texts(additivity_svg([below]))


def test_scales_place_values_and_round_ticks() -> None:
    assert Scale(0, 10, 100, 200).at(5) == 150
    assert Scale(1, 100, 0, 2, is_log=True).at(10) == pytest.approx(1)
    assert Scale(0, 0.65, 0, 1).ticks(4) == [0, 0.2, 0.4, 0.6]
    assert Scale(0.08, 12, 0, 1, is_log=True).ticks() == pytest.approx([0.1, 0.2, 0.5, 1, 2, 5, 10])
    assert Scale(1e-5, 1, 0, 1, is_log=True).ticks() == pytest.approx(
        [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1]
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.12345, "0.123"),
        (12345.6, "12,346"),
        (0.00012, "0.00012"),
        (1e-5, "10⁻⁵"),
        (2.5e-7, "2.5·10⁻⁷"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_numbers_are_short(value: float | None, shown: str) -> None:
    assert number(value) == shown


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mixed(front: str, back: str, opacity: float) -> str:
    pairs = [(int(front[i : i + 2], 16), int(back[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(f * opacity + b * (1 - opacity)):02x}" for f, b in pairs)


@pytest.mark.parametrize(("colours", "back"), [(LIGHT, "#f5f6f8"), (DARK, "#05080d")])
def test_u23_words_stand_out_from_what_is_behind_them(colours: dict[str, str], back: str) -> None:
    for words in ("ink", "muted", "blue"):
        for behind in (colours["paper"], back):
            assert contrast(colours[words], behind) >= 4.5
    for kept in (0.0, 0.25, 0.5, 0.999):
        cell = mixed(colours["blue"], colours["paper"], depth(kept))
        assert contrast(colours["ink"], cell) >= 4.5
    untouched = mixed(colours["blue"], colours["paper"], depth(1.0))
    assert contrast(colours["muted"], untouched) >= 4.5
    for mark in ("blue", "orange", "green", "muted"):
        assert contrast(colours[mark], colours["paper"]) >= 3


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.125, "12.5%"), (1.0, "100.0%"), (0.0004, "0.0%"), (None, "–"), (math.nan, "–")],
)
def test_u23_an_eighth_is_12_5_percent(value: float | None, shown: str) -> None:
    assert share(value) == shown
