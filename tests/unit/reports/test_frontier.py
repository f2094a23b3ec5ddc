"""The picture of a frontier: valid, inside its frame, and every point with its tip."""

from __future__ import annotations

import pytest

from fretsaw.reports.frontier import LEAST_SHARE, Curve, frontier_svg
from tests.unit.reports.test_figures import NS, assert_inside, parsed, texts, tips

PARENT = Curve(
    "big", [((50.0, 900.0), "slow"), ((100.0, 600.0), "middle"), ((200.0, 99.0), "fast")]
)
CHILD = Curve("small", [((60.0, 1800.0), "child slow"), ((300.0, 90.0), "child fast")])


def test_every_point_has_a_mark_and_says_what_it_is() -> None:
    svg = frontier_svg([PARENT, CHILD], subtitle="8xB200, 8k/64k")
    assert_inside(svg)
    assert {"slow", "middle", "fast", "child slow", "child fast"} <= set(tips(svg))
    shown = texts(svg)
    assert {"big", "small", "8xB200, 8k/64k", "server tokens/s"} <= set(shown)
    marks = [one for one in parsed(svg).iter(f"{NS}circle") if one.find(f"{NS}title") is not None]
    assert len(marks) == 5


def test_faster_users_are_further_right_and_higher_rates_further_up() -> None:
    circles = {
        title.text: one
        for one in parsed(frontier_svg([PARENT, CHILD], subtitle="")).iter(f"{NS}circle")
        if (title := one.find(f"{NS}title")) is not None
    }
    x = [float(circles[tip].get("cx", "")) for tip in ("slow", "middle", "fast", "child fast")]
    y = [float(circles[tip].get("cy", "")) for tip in ("child slow", "slow", "middle", "fast")]
    assert x == sorted(x)
    assert y == sorted(y)


def test_the_wanted_speed_is_drawn_where_it_is() -> None:
    with_speed = texts(frontier_svg([PARENT], subtitle="", speed=100.0))
    assert "100 tokens/s" in with_speed
    for outside in (1e-9, 1e300):
        shown = texts(frontier_svg([PARENT], subtitle="", speed=outside))
        assert len(shown) == len(with_speed) - 1


def test_points_that_serve_next_to_nothing_are_off_the_picture() -> None:
    low = ((900.0, 900.0 * LEAST_SHARE * 0.9), "too low")
    svg = frontier_svg([Curve("big", [*PARENT.points, low])], subtitle="")
    assert "too low" not in tips(svg)
    assert "fast" in tips(svg)


def test_a_prediction_beside_what_was_measured_shares_its_colour_and_is_dashed() -> None:
    measured = Curve("big", PARENT.points, is_measured=True)
    svg = frontier_svg([PARENT, measured], subtitle="")
    assert {"big, measured", "big, predicted"} <= set(texts(svg))
    lines = list(parsed(svg).iter(f"{NS}polyline"))
    assert len(lines) == 2
    assert lines[0].get("class") == lines[1].get("class")
    assert [one.get("stroke-dasharray") is not None for one in lines] == [True, False]


@pytest.mark.parametrize("points", [[((5.0, 5.0), "lone")], []])
def test_one_point_or_none_is_a_picture_still(points: list) -> None:
    assert_inside(frontier_svg([Curve("big", points)], subtitle="", speed=5.0))
