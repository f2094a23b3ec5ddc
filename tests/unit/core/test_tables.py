"""Score rows: written line by line, read after a kill, read by metric."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fretsaw.core.tables import ScoreRow, append_row, metric_values, read_rows
from fretsaw.core.variant import Variant
from fretsaw.errors import RecipeError, RunError


def row(block: int, *samples: float | None, ffn: int = 16, kl: float | None = 0.5) -> ScoreRow:
    variant = Variant(block, {"ffn": ffn})
    return ScoreRow(block, variant.key, variant, kl, 2.5, 0.1, samples)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "scores.jsonl"


def test_rows_come_back_as_they_were_written(file: Path) -> None:
    none = Variant(2, is_none=True)
    rows = [row(0, 0.1, 1 / 3), replace(row(2, 0.0), key=none.key, variant=none)]
    for one in rows:
        append_row(file, one)
    assert read_rows(file) == rows


def test_what_is_not_finite_is_null_on_disk_and_none_when_read(file: Path) -> None:
    append_row(file, row(0, 1.0, math.inf, kl=math.nan))
    assert json.loads(file.read_text())["kl"] is None
    (read,) = read_rows(file)
    assert read.kl is None
    assert read.samples == (1.0, None)


@pytest.mark.parametrize("cut", [1, 2, 30, 10_000])
def test_a_killed_run_loses_its_last_line_at_most(file: Path, cut: int) -> None:
    append_row(file, row(0))
    whole = file.stat().st_size
    append_row(file, row(1))
    torn = file.read_bytes()[: max(whole, file.stat().st_size - cut)]
    file.write_bytes(torn)
    assert read_rows(file) == [row(0)]
    append_row(file, row(2))
    assert read_rows(file) == [row(0), row(2)]


def test_a_table_with_one_torn_line_and_an_empty_one_have_no_rows(file: Path) -> None:
    for text in ('{"block": 0', ""):
        file.write_text(text)
        assert read_rows(file) == []
        append_row(file, row(0))
        assert read_rows(file) == [row(0)]


@pytest.mark.parametrize(
    "damage",
    [
        '{"block": 1, "key"',
        "",
        "[]",
        "null",
        "\x00\x00",
        json.dumps(row(1).to_json() | {"key": "ffn=32"}),
        json.dumps(row(1).to_json() | {"block": 0}),
        json.dumps(row(1).to_json() | {"kl": "0.5"}),
        json.dumps(row(1).to_json() | {"extra": 1}),
        json.dumps({k: v for k, v in row(1).to_json().items() if k != "loss"}),
    ],
)
def test_other_damage_is_an_error_that_names_the_line(file: Path, damage: str) -> None:
    append_row(file, row(0))
    with file.open("a") as stream:
        stream.write(damage + "\n")
    append_row(file, row(2))
    with pytest.raises(RunError, match=r"scores\.jsonl line 2 is damaged"):
        read_rows(file)


def test_metrics_by_name() -> None:
    rows = [row(0), row(1, kl=0.75)]
    assert metric_values(rows, "kl") == {(0, "ffn=16"): 0.5, (1, "ffn=16"): 0.75}
    assert metric_values(rows, "loss") == {(0, "ffn=16"): 2.5, (1, "ffn=16"): 2.5}


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="unknown metric 'losss'") as caught:
        metric_values([row(0)], "losss")
    assert "'loss'" in caught.value.hint


def test_what_was_not_measured_is_nan() -> None:
    (value,) = metric_values([row(0, kl=None)], "kl").values()
    assert math.isnan(value)


def test_hidden_is_the_mean_rank_over_samples_by_hand() -> None:
    # A sample with large errors counts no more than one with small ones.
    rows = [row(0, 1.0, 300.0), row(0, 3.0, 100.0, ffn=32), row(1, 2.0, 200.0), row(2, 9.0, 200.0)]
    assert metric_values(rows, "hidden") == {
        (0, "ffn=16"): (0 + 3) / 2,
        (0, "ffn=32"): (2 + 0) / 2,
        (1, "ffn=16"): (1 + 1.5) / 2,
        (2, "ffn=16"): (3 + 1.5) / 2,
    }


def test_of_two_rows_of_a_variant_the_later_counts() -> None:
    rows = [row(0, 9.0, kl=0.9), row(1, 1.0, kl=0.3), row(0, 0.5, kl=0.1)]
    assert metric_values(rows, "kl") == {(0, "ffn=16"): 0.1, (1, "ffn=16"): 0.3}
    assert metric_values(rows, "hidden") == {(0, "ffn=16"): 0.0, (1, "ffn=16"): 1.0}


def test_ranks_leave_out_rows_without_finite_samples() -> None:
    values = metric_values([row(0, 2.0), row(1, None), row(2), row(3, 1.0)], "hidden")
    assert values[0, "ffn=16"] == 1.0
    assert values[3, "ffn=16"] == 0.0
    assert math.isnan(values[1, "ffn=16"])
    assert math.isnan(values[2, "ffn=16"])


def test_ranks_of_different_numbers_of_samples_are_refused() -> None:
    with pytest.raises(RunError, match=r"different numbers of samples: \[1, 2\]"):
        metric_values([row(0, 1.0), row(1, 1.0, 2.0)], "hidden")


def test_no_rows_have_no_values() -> None:
    for metric in ("kl", "hidden"):
        assert metric_values([], metric) == {}
