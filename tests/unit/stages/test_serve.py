"""Serving through transformers: which models, what is written, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fretsaw.errors import FretsawError, RecipeError, RunError
from fretsaw.reports.served import served_svg
from fretsaw.stages.progress import Reporter
from fretsaw.stages.serve import ServeOptions, find_models, serve, write_picture
from tests.pico import HETEROGENEOUS, pico_config, puzzle_config

QUIET = Reporter(is_quiet=True)


@pytest.fixture
def configs(tmp_path: Path) -> tuple[Path, Path]:
    parent, child = tmp_path / "parent.json", tmp_path / "child.json"
    parent.write_text(json.dumps(pico_config()))
    child.write_text(json.dumps(puzzle_config(pico_config(), HETEROGENEOUS)))
    return parent, child


def _options(**values: object) -> ServeOptions:
    usual = {"engine": "transformers", "workload": "12/5", "concurrency": "2,1", "repeats": 2}
    return ServeOptions(**usual | {"hardware": "H100"} | values)  # type: ignore[arg-type]


def test_random_parent_and_child_from_two_configs(
    configs: tuple[Path, Path], tmp_path: Path
) -> None:
    parent, child = configs

    served = serve(child, options=_options(against=parent, random_weights=True), reporter=QUIET)

    data = json.loads(json.dumps(served.to_json()))
    assert [model["name"] for model in data["models"]] == ["parent", "child"]
    assert data["models"][0]["weights_bytes"] > data["models"][1]["weights_bytes"] > 0
    for model in data["models"]:
        assert [p["concurrency"] for p in model["points"]] == [1, 2]
        for point in model["points"]:
            assert point["user_tokens_per_s"] > 0
            low, high = (point[f"{w}_server_tokens_per_s"] for w in ("lowest", "highest"))
            assert low <= point["server_tokens_per_s"] <= high
            assert point["prediction_error"] > 0, "an H100 is predicted, this machine measured"
    assert data["matched"]
    picture = tmp_path / "frontier.svg"
    write_picture(served, picture)
    assert picture.read_text() == served_svg(served)
    assert "parent, predicted" in picture.read_text()
    with pytest.raises(RecipeError, match="is there already"):
        write_picture(served, picture)


def _run(folder: Path, *, rounds: int, parent: Path) -> Path:
    for number in range(1, rounds + 1):
        (folder / f"round-{number}" / "08-distill" / "child").mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    (folder / "recipe.resolved.json").write_text(json.dumps({"parent": str(parent)}))
    return folder


def test_of_a_run_its_last_child_is_measured_against_its_parent(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    run = _run(tmp_path / "run", rounds=11, parent=tmp_path)

    assert find_models(run, against=None) == {
        "parent": tmp_path,
        "child": run / "round-11" / "08-distill" / "child",
    }
    assert find_models(tmp_path, against=None) == {tmp_path.name: tmp_path}


def test_a_run_without_child_or_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no finished child"):
        find_models(_run(tmp_path / "a", rounds=0, parent=tmp_path), against=None)
    run = _run(tmp_path / "b", rounds=1, parent=tmp_path / "gone")
    with pytest.raises(RunError, match="parent is not at"):
        find_models(run, against=None)
    assert find_models(run, against=tmp_path)["parent"] == tmp_path


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"concurrency": "1,x"}, "'1,x' is no list"),
        ({"concurrency": "0"}, "'0' is no list"),
        ({"workload": "12"}, "'12' is no workload"),
        ({"dtype": "fp8"}, "dtype 'fp8' is unknown"),
        ({"repeats": 0}, "at least 1"),
        ({"engine": "sglang"}, "unknown engine"),
        ({"hardware": "H1000"}, "unknown hardware"),
        ({"random_weights": False}, "is no checkpoint folder"),
    ],
)
def test_what_makes_no_sense_is_refused(
    values: dict[str, object], message: str, configs: tuple[Path, Path]
) -> None:
    with pytest.raises(FretsawError, match=message):
        serve(configs[0], options=_options(**{"random_weights": True} | values), reporter=QUIET)
