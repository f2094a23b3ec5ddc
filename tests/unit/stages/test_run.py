"""The run folder with toy stages: skipped, resumed, redone, moved aside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fretsaw.errors import RunError
from fretsaw.recipe import resolve_recipe
from fretsaw.stages.folders import open_run
from fretsaw.stages.manifest import MANIFEST, STARTED, damage, read_manifest, stage_digest
from fretsaw.stages.progress import Reporter
from fretsaw.stages.run import MARKER, Run, RunRound, Stage, run_stage
from fretsaw.train.found import FoundText
from fretsaw.train.packing import ReadText

FOUND = FoundText(
    "calibration", "d", None, (("JSON lines", 1),), 1, ("a.jsonl",), "column 'text'", 3, True, 6
)

Body = Callable[[RunRound, Path], None]


class Toy:
    """A stage that writes its word, and counts how often."""

    def __init__(self, name: str = "01-toy", needs: tuple[str, ...] = ()) -> None:
        self.calls = 0
        self.text = "result"
        self.stage = Stage(name, needs=needs, settings=("rank",), body=self._body)

    def _body(self, round_: RunRound, folder: Path) -> None:
        self.calls += 1
        (folder / "deep").mkdir(exist_ok=True)
        (folder / "deep" / "a.txt").write_text(self.text)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "config.json").write_text("{}")
    return _run(tmp_path)


def _run(folder: Path, **changes: object) -> Run:
    data = {"parent": str(folder / "parent"), "data": {"path": "d"}, "rounds": [{}, {}], **changes}
    reporter = Reporter(console=Console(record=True, quiet=True))
    return Run(folder / "run", resolve_recipe(data), reporter)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def _raise(*_: object, **__: object) -> None:
    raise Killed


def test_a_finished_stage_is_not_run_again(run: Run) -> None:
    toy = Toy()
    folder = run_stage(toy.stage, run.round(1))
    assert run_stage(toy.stage, run.round(1)) == folder == run.folder / "round-1" / "01-toy"
    assert toy.calls == 1
    assert sorted(p.name for p in folder.iterdir()) == ["deep", MANIFEST]
    manifest = read_manifest(folder)
    assert set(manifest["results"]) == {"deep/a.txt"}
    assert manifest["inputs"]["recipe.rank"] == {"min_tokens": 32}
    assert damage(folder) is None


def test_rounds_have_seeds_and_folders_of_their_own(run: Run) -> None:
    toy = Toy()
    one = run_stage(toy.stage, run.round(1))
    shutil.copytree(one, run.folder / "round-1" / "08-distill")
    two = run_stage(toy.stage, run.round(2))
    assert two == run.folder / "round-2" / "01-toy"
    inputs = [read_manifest(folder)["inputs"] for folder in (one, two)]
    assert [i["seed"] for i in inputs] == [1, 2]
    assert "model" not in inputs[0]
    assert inputs[1]["model"] == stage_digest(run.folder / "round-1" / "08-distill")
    assert [r.number for r in run.rounds()] == [1, 2]
    assert run.round(2).model == run.folder / "round-1" / "08-distill" / "child"


def test_a_stage_goes_on_where_it_was_killed(run: Run) -> None:
    seen: list[list[str]] = []

    def body(round_: RunRound, folder: Path) -> None:
        seen.append(sorted(p.name for p in folder.glob("row-*")))
        (folder / f"row-{len(seen)}").touch()
        if len(seen) < 3:
            raise Killed

    stage = Stage("01-toy", needs=(), settings=(), body=body)
    for _ in range(2):
        with pytest.raises(Killed):
            run_stage(stage, run.round(1))
        assert not (run.folder / "round-1" / "01-toy").exists()
    folder = run_stage(stage, run.round(1))
    assert seen == [[], ["row-1"], ["row-1", "row-2"]]
    assert set(read_manifest(folder)["results"]) == {"row-1", "row-2", "row-3"}
    assert not (run.folder / "replaced").exists()


@pytest.mark.parametrize(
    "moment", ["manifest.hash_file", "manifest.write_json", "run.Path.rename", "run.Path.unlink"]
)
def test_a_kill_between_the_last_result_and_the_name_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def body(round_: RunRound, folder: Path) -> None:
        calls.append([p.name for p in folder.glob("*.txt")])
        (folder / "a.txt").write_text("long work")
        monkeypatch.setattr(f"fretsaw.stages.{moment}", _raise)

    calls: list[list[str]] = []
    stage = Stage("01-toy", needs=(), settings=(), body=body)
    with pytest.raises(Killed):
        run_stage(stage, run.round(1))
    monkeypatch.undo()

    folder = run_stage(Stage("01-toy", (), (), body=_resume(calls)), run.round(1))

    done = moment == "run.Path.unlink"
    assert calls == ([[]] if done else [[], ["a.txt"]]), "what was there is found again"
    assert damage(folder) is None
    assert set(read_manifest(folder)["results"]) == {"a.txt"}
    assert not (run.folder / "replaced").exists()
    assert run_stage(Stage("01-toy", (), (), body=_raise), run.round(1)) == folder


def _resume(calls: list[list[str]]) -> Body:
    return lambda round_, folder: calls.append([p.name for p in folder.glob("*.txt")])


def test_a_partial_folder_of_other_settings_is_moved_aside(run: Run, tmp_path: Path) -> None:
    stage = Stage("01-toy", needs=(), settings=("rank",), body=_half)
    with pytest.raises(Killed):
        run_stage(stage, run.round(1))

    toy = Toy()
    folder = run_stage(toy.stage, _run(tmp_path, rank={"min_tokens": 5}).round(1))

    assert set(read_manifest(folder)["results"]) == {"deep/a.txt"}
    kept = run.folder / "replaced" / "round-1-01-toy.partial.1"
    assert (kept / "half").read_text() == "half"


def _half(round_: RunRound, folder: Path) -> None:
    (folder / "half").write_text("half")
    raise Killed


@pytest.mark.parametrize("content", ["", "{", "[]", None])
def test_a_partial_folder_that_cannot_be_understood_is_moved_aside(
    run: Run, content: str | None
) -> None:
    partial = run.folder / "round-1" / "01-toy.partial"
    partial.mkdir(parents=True)
    (partial / "old").touch()
    if content is not None:
        (partial / STARTED).write_text(content)
    toy = Toy()
    folder = run_stage(toy.stage, run.round(1))
    assert not (folder / "old").exists()
    assert (run.folder / "replaced" / "round-1-01-toy.partial.1" / "old").exists()


def test_what_a_stage_reads_makes_it_stale(run: Run) -> None:
    first, second = Toy(), Toy("02-next", needs=("01-toy",))
    run_stage(first.stage, run.round(1))
    run_stage(second.stage, run.round(1))
    result = run.folder / "round-1" / "01-toy" / "deep" / "a.txt"

    result.write_text("damaged")
    for toy in (first, second):
        run_stage(toy.stage, run.round(1))
    assert (first.calls, second.calls) == (2, 1), "the same result: nothing later is stale"

    result.write_text("damaged")
    first.text = "another result"
    for toy in (first, second):
        run_stage(toy.stage, run.round(1))
    assert (first.calls, second.calls) == (3, 2)


def test_text_is_an_input(run: Run, tmp_path: Path) -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    asked: list[int] = []

    def calibration_text(round_: RunRound) -> ReadText:
        asked.append(round_.number)
        return ReadText(ids, FOUND, frozenset())

    toy = Toy()
    stage = Stage("01-toy", (), (), body=toy.stage.body, texts=(calibration_text,))
    for _ in range(2):
        run_stage(stage, run.round(1))
    assert (asked, toy.calls) == ([1], 1), "asked once in a run"
    manifest = read_manifest(run.folder / "round-1" / "01-toy")
    assert manifest["texts"]["calibration"] == FOUND.to_json()
    run_stage(stage, _run(tmp_path).round(1))
    assert toy.calls == 1
    ids[0, 0] = 1
    run_stage(stage, _run(tmp_path).round(1))
    assert toy.calls == 2


def test_a_needed_stage_must_be_there_and_whole(run: Run) -> None:
    round_ = run.round(1)
    with pytest.raises(RunError, match="01-toy is not there; this stage needs it") as error:
        round_.result("01-toy")
    assert error.value.hint == (
        f"run `fretsaw toy RECIPE --out {run.folder} --round 1` first, or `fretsaw compress`"
    )
    folder = run_stage(Toy().stage, round_)
    assert round_.checked("01-toy") == folder
    (folder / "deep" / "a.txt").unlink()
    with pytest.raises(RunError, match=r"01-toy: deep/a\.txt is missing"):
        round_.checked("01-toy")
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text().replace("01-toy", "01-boy"))
    with pytest.raises(RunError, match=r"manifest\.json is missing or damaged"):
        round_.checked("01-toy")


def test_an_error_of_a_stage_leaves_no_finished_folder(run: Run) -> None:
    def body(round_: RunRound, folder: Path) -> None:
        raise RunError("no")

    with pytest.raises(RunError, match="no"):
        run_stage(Stage("01-toy", (), (), body=body), run.round(1))
    assert not (run.folder / "round-1" / "01-toy").exists()


@pytest.fixture
def opened(run: Run) -> Iterator[Run]:
    with open_run(run.recipe, run.folder, reporter=run.reporter) as opened:
        yield opened


def test_a_new_folder_becomes_a_run_with_its_recipe(opened: Run) -> None:
    resolved = json.loads((opened.folder / MARKER).read_text())
    assert resolve_recipe(resolved) == opened.recipe
    assert opened.folder.is_absolute()


def test_one_process_at_a_time(opened: Run) -> None:
    other = _run(opened.folder.parent, seed=5)
    with (
        pytest.raises(RunError, match="another fretsaw process works in"),
        open_run(other.recipe, opened.folder, reporter=other.reporter),
    ):
        pytest.fail("it must not open")
    assert json.loads((opened.folder / MARKER).read_text())["seed"] == 0


def test_u20_a_folder_or_file_of_somebody_else_is_refused(run: Run, tmp_path: Path) -> None:
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "mine").touch()
    file.touch()
    for place, said in ((full, "is not empty and is no fretsaw run"), (file, "is a file")):
        with (
            pytest.raises(RunError, match=said),
            open_run(run.recipe, place, reporter=run.reporter),
        ):
            pytest.fail("it must not open")
    assert [p.name for p in full.iterdir()] == ["mine"]


def test_warnings_of_a_stage_are_kept_and_given_again_where_it_is_skipped(run: Run) -> None:
    def body(round_: RunRound, folder: Path) -> None:
        for text in ("3 experts saw few tokens", "a [bold] word", "3 experts saw few tokens"):
            round_.run.reporter.warn(text)

    stage = Stage("01-toy", needs=(), settings=(), body=body)
    folder = run_stage(stage, run.round(1))
    kept = ["3 experts saw few tokens", "a [bold] word"]
    assert read_manifest(folder)["warnings"] == kept
    with run.reporter.collect() as warnings:
        run_stage(stage, run.round(1))
    assert warnings == kept
    assert run.reporter.collections == []


def test_u18_a_stage_that_is_skipped_keeps_its_peak_memory_and_time(run: Run) -> None:
    def body(round_: RunRound, folder: Path) -> None:
        bytearray(b"x" * size)

    size = 200 * 2**20
    large = run_stage(Stage("01-large", needs=(), settings=(), body=body), run.round(1))
    size = 0
    small = run_stage(Stage("02-small", needs=(), settings=(), body=body), run.round(1))
    peaks = [read_manifest(folder)["peak_bytes"] for folder in (large, small)]
    assert peaks[0] > peaks[1] + 100 * 2**20
    before = read_manifest(large)
    run_stage(Stage("01-large", needs=(), settings=(), body=body), run.round(1))
    assert read_manifest(large) == before
