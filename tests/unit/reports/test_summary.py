"""The table at the end of a run: what was kept, whether the choice is proven, what was warned."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from fretsaw.reports.summary import RunWarning, Summary, print_summary
from tests.unit.reports.example import SUMMARY


def _printed(summary: Summary, *, width: int = 200) -> str:
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=width))
    return out.getvalue()


def _line(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def _told() -> Summary:
    _, cut, healed, *rest = SUMMARY.lines
    cut = replace(cut, status="feasible", gap=0.032, note="feasible choice, gap 3.2%")
    healed = replace(
        healed, kept_tokens=0, note="kept the cut: no step was better", notes=("loss rose",)
    )
    warnings = (RunWarning("round 1 distill", "healing did not [help]"),)
    return replace(SUMMARY, lines=(SUMMARY.lines[0], cut, healed, *rest), warnings=warnings)


def test_f6_what_was_kept_stands_in_the_row() -> None:
    text = _printed(_told())
    assert _line(text, "round 1 healed").endswith("kept the cut: no step was better")
    assert "round 1 healed: loss rose\n" in text
    assert "warning, round 1 distill: healing did not [help]" in text


def test_f6_a_narrow_terminal_has_what_was_kept_below_the_table() -> None:
    text = _printed(_told(), width=80)
    assert "round 1 healed: kept the cut: no step was better\n" in text
    assert "round 1 cut: feasible choice, gap 3.2%\n" in text
    assert "…" not in text


def test_the_status_of_the_search_stands_in_the_row_and_in_json() -> None:
    assert _line(_printed(_told()), "round 1 cut").rstrip().endswith("feasible choice, gap 3.2%")
    models = json.loads(json.dumps(_told().to_json()))["models"]
    assert (models[1]["status"], models[1]["gap"]) == ("feasible", 0.032)
    assert models[2]["kept_tokens"] == 0


def test_u18_the_peak_memory_is_the_largest_of_all_stages_and_names_it() -> None:
    assert SUMMARY.peak_bytes == 1_500_000_000
    assert "peak memory: 1.4 GiB (round 1 score)" in _printed(SUMMARY)
