"""The dry run: time and memory of each stage, and where each stands (U7)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fretsaw.recipe import Recipe, resolve_recipe
from fretsaw.reports.estimate import Estimate
from fretsaw.stages import estimate as estimate_stage
from fretsaw.stages.estimate import estimate_run
from fretsaw.stages.manifest import MANIFEST
from tests.flow.conftest import Finished
from tests.flow.pico_run import STAGES, Setting


def states(found: Estimate) -> dict[tuple[int, str], str]:
    return {(line.round, line.stage): line.state for line in found.lines}


def test_u7_everything_is_to_do_in_a_new_folder_and_nothing_is_written(setting: Setting) -> None:
    found = estimate_run(setting.recipe, out=setting.out)
    assert set(states(found).values()) == {"to do"}
    assert not setting.out.exists()
    slow = {line.stage for line in found.lines if line.seconds > 0}
    assert slow == {"calibrate", "rank", "score", "search", "build", "distill"}
    assert found.seconds > found.check_s + found.report_s
    assert found.fits


def test_u7_memory_of_each_stage_holds_what_the_stage_holds(setting: Setting) -> None:
    found = estimate_run(setting.recipe, out=setting.out)
    peaks = {line.stage: line.peak_bytes for line in found.lines if line.round == 1}
    assert peaks["describe"] < peaks["rank"] < peaks["calibrate"] < peaks["score"]
    weights = peaks["rank"] - peaks["describe"]
    assert peaks["distill"] > peaks["describe"] + 4 * weights, "teacher, student, AdamW"


def test_u7_a_finished_run_has_nothing_left_to_do(finished: Finished) -> None:
    found = estimate_run(finished.setting.recipe, out=finished.setting.out)
    assert set(states(found).values()) == {"done"}
    assert sum(line.seconds for line in found.lines) == 0


def test_u7_a_changed_recipe_says_what_would_be_put_aside(finished: Finished) -> None:
    data = json.loads(finished.setting.recipe.to_json())
    data["rounds"][0]["score"]["sequences"] += 1
    found = estimate_run(resolved(data), out=finished.setting.out)
    where = states(found)
    assert [where[1, s] for s in ("describe", "calibrate", "rank", "library")] == ["done"] * 4
    assert {where[1, s] for s in ("score", "search", "build")} == {"again"}
    [why] = [line.why for line in found.lines if (line.round, line.stage) == (1, "score")]
    assert "recipe.score" in why
    assert sum(line.seconds for line in found.lines if line.state == "done") == 0


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(finished.out, tmp_path / "run"))


def test_u7_a_damaged_result_is_again_and_the_run_is_left_alone(
    finished: Finished, copied: Path
) -> None:
    out = copied
    before = sorted(p.relative_to(out) for p in out.rglob("*"))
    (out / "round-1" / "04-score" / "scores.jsonl").write_text("")
    found = estimate_run(finished.setting.recipe, out=out)
    assert states(found)[1, "score"] == "again"
    assert sorted(p.relative_to(out) for p in out.rglob("*")) == before


def test_u7_an_unfinished_stage_goes_on(finished: Finished, copied: Path) -> None:
    folder = copied / "round-2" / STAGES[-1]
    manifest = json.loads((folder / MANIFEST).read_text())
    partial = folder.rename(folder.with_name(folder.name + ".partial"))
    (partial / "started.json").write_text(json.dumps(manifest["inputs"]))
    found = estimate_run(finished.setting.recipe, out=copied)
    assert states(found)[2, "distill"] == "goes on"


def test_u7_too_little_memory_is_said(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_stage, "_memory_bytes", lambda device: 2**20)
    found = estimate_run(setting.recipe, out=setting.out)
    assert not found.fits
    assert "more memory than there is" in str(found)


def test_u7_as_json(setting: Setting) -> None:
    found = estimate_run(setting.recipe, out=setting.out).to_json()
    plain = json.loads(json.dumps(found))
    assert plain["seconds"] > 0
    assert plain["lines"][4]["stage"] == "score"
    assert {"state", "peak_bytes", "disk_bytes"} <= plain["lines"][4].keys()
    assert [text["split"] for text in plain["text"]] == ["calibration", "train", "validation"]


@pytest.mark.parametrize("repair", ["none", "output", "both"])
def test_u7_more_repair_takes_longer_and_none_takes_least(setting: Setting, repair: str) -> None:
    data = json.loads(setting.recipe.to_json())
    for one in data["rounds"]:
        one["library"]["repair"] = repair
        one["distill"]["learning_rate"] = 1e-3
    found = estimate_run(resolved(data), out=setting.out)
    build = sum(line.seconds for line in found.lines if line.stage == "build")
    rank = sum(line.seconds for line in found.lines if line.stage == "rank")
    assert (build > rank * 1.01) == (repair != "none")


def resolved(data: dict[str, object]) -> Recipe:
    return resolve_recipe(data)


def test_u7_none_blocks_and_given_rates_are_counted(setting: Setting, tmp_path: Path) -> None:
    data = json.loads(setting.recipe.to_json())
    for one in data["rounds"]:
        one["library"]["none"] = ["moe", "mamba"]
    found = estimate_run(resolved(data), out=tmp_path / "run")
    assert all(line.seconds > 0 for line in found.lines if line.stage == "score")
