"""How long it will still take: said once it can be known, at the present pace; one line a part."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from fretsaw.stages import progress
from fretsaw.stages.progress import Pace, Reporter


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _pace(total: int, *notes: tuple[float, int]) -> Pace:
    """A pace to which so much was done after so many further seconds, one after the other."""
    clock = Clock()
    pace = Pace(total, clock)
    for wait, done in notes:
        clock.now += wait
        pace.note(done)
    return pace


def test_u6_no_estimate_before_it_can_be_made() -> None:
    for notes in ([], [(1.0, 5)], [(1.0, 0), (1.0, 5)], [(1.0, 0), (40.0, 0), (1.0, 0)]):
        pace = _pace(100, *notes)
        assert (pace.left_s, pace.told()) == (None, "")


def test_u6_a_slow_start_is_not_taken_for_the_pace() -> None:
    probe = [(400.0, 0), (10.0, 1), (10.0, 2), (10.0, 3)]
    assert _pace(43, *probe).left_s == pytest.approx(400.0)
    assert _pace(43, *probe).told() == "about 6 min 40 s left"


def test_u6_what_an_earlier_start_has_done_is_not_taken_for_the_pace() -> None:
    resumed = _pace(1000, (2.0, 900), (10.0, 901), (10.0, 902))
    assert resumed.left_s == pytest.approx(980.0)


def test_u6_the_pace_follows_what_goes_on() -> None:
    quick = [(1.0, n) for n in range(1, 101)]
    slow = [(20.0, 100 + n) for n in range(1, 6)]
    pace = _pace(205, *quick, *slow)
    assert pace.left_s == pytest.approx(2000.0)
    assert len(pace.seen) < 8


def test_u6_steps_longer_than_the_window_have_a_pace_too() -> None:
    assert _pace(10, *[(300.0, n) for n in range(4)]).left_s == pytest.approx(2100.0)


def test_u6_parts_have_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_EVERY_S", 0.0)
    out = io.StringIO()
    reporter = Reporter(Console(file=out, width=40))
    with reporter.in_turn() as begin:
        tokens, trials = begin("tokens", 3000), begin("learning rates tried", 6)
        trials(0, "1.0e-03")
        trials(1, "3.0e-03")
        for done in (1000, 2000, 3000):
            tokens(done, "KL 0.1")
    lines = out.getvalue().splitlines()
    assert lines[:2] == [
        "  learning rates tried 0/6, 1.0e-03",
        "  learning rates tried 1/6, 3.0e-03",
    ]
    assert lines[2] == "  tokens 1,000/3,000, KL 0.1"
    assert lines[4].startswith("  tokens 3,000/3,000, about 0 s left")


def test_u6_a_terminal_shows_one_bar_at_a_time() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Reporter(console).in_turn() as begin:
        parts = [begin(name, 3) for name in ("first", "second")]
        for part, done in itertools.product(parts, range(3)):
            part(done)
    assert "first" in out.getvalue()
    assert "second" in out.getvalue()
