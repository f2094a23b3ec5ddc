"""`fretsaw report`: a run's page anew, several runs compared, old and unfinished runs, mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fretsaw
from fretsaw.checkpoint.lineage import hash_file
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.intervals import FEWEST
from fretsaw.reports.comparison import Report
from fretsaw.stages.evidence import BY_AN_EARLIER_VERSION
from fretsaw.stages.folders import PARENT
from fretsaw.stages.manifest import MANIFEST, digest, read_manifest
from fretsaw.stages.run import MARKER
from fretsaw.stages.samples import SAMPLES
from tests.flow.conftest import Finished, Said
from tests.flow.pico_run import snapshot

Command = Callable[..., Said]
DISTILL = "08-distill"


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Path:
    """A finished run of one's own, to be spoiled."""
    shutil.copytree(finished.out, tmp_path / "run")
    return tmp_path / "run"


def stages_of(run: Path) -> dict[str, tuple[int, str]]:
    return {name: one for name, one in snapshot(run).items() if not name.startswith("report")}


def change_json(file: Path, change: Callable[[Any], Any]) -> None:
    write_json(file, change(json.loads(file.read_text())))


def change_inputs(stage: Path, **inputs: str) -> None:
    manifest = read_manifest(stage)
    manifest["inputs"] |= inputs
    write_json(stage / MANIFEST, manifest | {"sha256": digest(manifest)})


def made_old(run: Path) -> Path:
    """Without all that an earlier version of fretsaw did not keep."""
    for stage in sorted(run.glob(f"round-*/{DISTILL}")):
        (stage / SAMPLES).unlink()
        change_json(stage / "result.json", _old_result)
    for stage in sorted(run.glob("round-*/06-search")):
        change_json(stage / "additivity.json", _old_additivity)
    for stage in sorted(run.glob("round-*/*")):
        manifest = read_manifest(stage)
        for name in ("warnings", "peak_bytes", "texts"):
            manifest.pop(name, None)
        there = [name for name in manifest["results"] if (stage / name).is_file()]
        manifest["results"] = {name: hash_file(stage / name) for name in there}
        write_json(stage / MANIFEST, manifest | {"sha256": digest(manifest)})
    (run / "check.json").unlink()
    return run


def _old_result(result: dict[str, Any]) -> dict[str, Any]:
    result.pop("verdict")
    for one in (result["before"], result["after"], *(r["held_out"] for r in result["history"])):
        one.pop("sequences")
    return result


def _old_additivity(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"rows": [row for row in data["rows"] if row["kind"] != "uniform"]}


def test_u23_a_run_keeps_what_its_page_needs(finished: Finished) -> None:
    for number in (1, 2):
        stage = finished.out / f"round-{number}" / DISTILL
        samples = json.loads((stage / SAMPLES).read_text())
        assert len(samples) == 4
        for one in samples:
            assert one["prompt"]
            assert one["is_equal"] == (one["parent"] == one["child"])
        result = json.loads((stage / "result.json").read_text())
        assert len(result["after"]["sequences"]) == 4 < FEWEST
    additivity = json.loads((finished.out / "round-1/06-search/additivity.json").read_text())
    kinds = [row["kind"] for row in additivity["rows"]]
    assert kinds.count("uniform") == kinds.count("chosen") == 1
    page = (finished.out / "report/index.html").read_text()
    for text in (
        "In its own words",
        "Speed and memory",
        "Held-out text: 128 tokens in 4 sequences",
    ):
        assert text in page


def test_u23_report_writes_the_page_anew_and_runs_nothing(run: Path, command: Command) -> None:
    before = stages_of(run)
    shutil.rmtree(run / "report")
    said = command("report", run, "--json")
    assert said.code == 0, said.err
    data = json.loads(said.out)
    assert data["page"] == str(run / "report/index.html")
    found = data["runs"]["run"]
    assert found["held_out"]["tokens"] == 128
    assert len(found["samples"]) == 4
    assert [one["name"] for one in found["speeds"]["models"]] == ["parent", "child"]
    assert found["rounds"][0]["whole_choices"]
    assert stages_of(run) == before
    assert json.loads((run / "report/summary.json").read_text()) == found
    printed = command("report", run)
    assert "round 2 healed" in printed.out
    assert str(run / "report/index.html") in printed.out


def test_u23_an_old_run_has_a_page_that_says_what_is_missing(run: Path) -> None:
    found = fretsaw.report(made_old(run)).runs[0].findings
    assert found.evidence.missing == (
        f"Not shown: intervals, text samples, warnings; {BY_AN_EARLIER_VERSION} them.",
    )
    page = (run / "report/index.html").read_text()
    assert found.evidence.missing[0] in page
    assert "In its own words" not in page
    assert "Speed and memory" in page


def test_u23_a_run_in_the_middle_is_shown_as_far_as_it_is(run: Path, command: Command) -> None:
    (run / "round-2" / DISTILL).rename(run / "round-2" / f"{DISTILL}.partial")
    found = fretsaw.report(str(run)).runs[0]
    assert (len(found.findings.rounds), found.findings.num_planned) == (1, 2)
    assert found.child.name == "round 1 healed"
    assert "1 of 2 rounds are shown" in (run / "report/index.html").read_text()
    (run / "round-1" / DISTILL).rename(run / "round-1" / f"{DISTILL}.partial")
    said = command("report", run)
    assert said.code == 2
    assert f"error: no round of {run} is finished yet" in said.err
    assert "hint: run `fretsaw compress` with its recipe" in said.err


def test_u23_a_run_whose_parent_is_gone_has_the_speeds_of_its_child(run: Path) -> None:
    gone = {"absolute": "/gone/parent", "relative": "../gone"}
    change_json(run / MARKER, lambda recipe: recipe | {"parent": "/gone/parent"})
    change_json(run / PARENT, lambda _: gone)
    evidence = fretsaw.report([run]).runs[0].findings.evidence
    assert evidence.speeds is not None
    assert [one.name for one in evidence.speeds.models] == ["child"]
    assert evidence.missing == (
        "The parent is not at /gone/parent any more: speeds are of the child alone.",
    )


def compared(run: Path, **inputs: str) -> Report:
    """The run beside a copy of it whose first healing had other inputs."""
    other = run.with_name("other")
    shutil.copytree(run, other)
    change_inputs(other / "round-1" / DISTILL, **inputs)
    return fretsaw.report([run, other])


def test_u23_several_runs_are_compared(run: Path, command: Command, tmp_path: Path) -> None:
    other = run.with_name("other")
    shutil.copytree(run, other)

    def faster(recipe: dict[str, Any]) -> dict[str, Any]:
        recipe["rounds"][1]["distill"]["learning_rate"] = 0.5
        return recipe

    change_json(other / MARKER, faster)
    out = tmp_path / "both.html"
    before = stages_of(run)
    said = command("report", run, other, "--out", out, "--json")
    assert said.code == 0, said.err
    data = json.loads(said.out)
    assert list(data["runs"]) == ["run", "other"]
    assert data["not_comparable"] == []
    assert data["recipe_differences"] == {"rounds.2.distill.learning_rate": ["auto", "0.5"]}
    page = out.read_text()
    assert "rounds.2.distill.learning_rate" in page
    assert "cannot be compared" not in page
    assert stages_of(run) == before
    printed = command("report", run, other, "--out", out)
    assert printed.out.rstrip().endswith(f"comparison: {out}")


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"parent": "another"}, "The parents differ: "),
        ({"text.validation": "another"}, "The held-out texts differ: "),
        ({"text.validation": ""}, "it is not known what text"),
    ],
)
def test_u23_runs_that_cannot_be_compared_say_so(
    run: Path, inputs: dict[str, str], told: str
) -> None:
    report = compared(run, **inputs)
    assert report.page == run.with_name("comparison.html")
    assert told in report.page.read_text()
    assert any(told in text for text in report.to_json()["not_comparable"])
    assert told in str(report)


def test_u23_a_run_beside_itself_is_told_apart(run: Path) -> None:
    assert [one.name for one in fretsaw.report([run, run]).runs] == ["run (1)", "run (2)"]


@pytest.mark.parametrize("mistake", ["no run", "a file", "nothing", "out of one", "out is taken"])
def test_u23_mistakes_are_refused(run: Path, command: Command, mistake: str) -> None:
    taken = run.with_name("mine.html")
    taken.write_text("<p>mine</p>")
    arguments: list[object] = {
        "no run": [run.parent],
        "a file": [taken],
        "nothing": [run / "nothing"],
        "out of one": [run, "--out", run.with_name("x.html")],
        "out is taken": [run, run, "--out", taken],
    }[mistake]
    said = command("report", *arguments)
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert "hint: " in said.err
    assert taken.read_text() == "<p>mine</p>"


@pytest.mark.parametrize(
    "file",
    [
        f"round-1/{DISTILL}/result.json",
        "round-1/06-search/choice.json",
        "round-2/04-score/scores.jsonl",
    ],
)
def test_u23_a_damaged_result_is_named_as_such(run: Path, command: Command, file: str) -> None:
    (run / file).write_text((run / file).read_text()[:-40])
    said = command("report", run)
    assert said.code == 2
    assert f"error: {run / file} is missing or does not match its checksum" in said.err
    assert "fault of fretsaw" not in said.err
