"""Run folders: apart from what is read, whatever links say, and found again after a move."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from fretsaw.errors import RunError
from fretsaw.recipe import Recipe, resolve_recipe
from fretsaw.stages.folders import check_folder, find_parent, keep_apart, open_run, read_run
from fretsaw.stages.progress import Reporter
from fretsaw.stages.serve import find_models

REPORTER = Reporter(Console(quiet=True))


def _recipe(parent: Path | str, text: Path | str = "text") -> Recipe:
    return resolve_recipe({"parent": str(parent), "data": {"path": str(text)}})


def _world(folder: Path) -> Path:
    """A parent and a text folder, and where they lie."""
    for name in ("parent", "text"):
        (folder / name).mkdir(parents=True)
    (folder / "parent" / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("parent", "is the parent itself"),
        ("parent/run", "lies inside the parent"),
        ("parent/deep/er/run", "lies inside the parent"),
        ("parent/../parent/run", "lies inside the parent"),
        ("link/run", "lies inside the parent"),
        ("text/run", "lies inside the text"),
        ("text", "is the text itself"),
        ("", "lies inside"),
        ("file", "is a file; a run is a folder"),
    ],
)
def test_u17_a_run_lies_apart_from_what_it_reads(tmp_path: Path, out: str, said: str) -> None:
    world = _world(tmp_path)
    (world / "link").symlink_to(world / "parent", target_is_directory=True)
    (world / "file").write_text("")
    with pytest.raises(RunError, match=said) as caught:
        check_folder(world / out, _recipe(world / "parent", world / "text"))
    assert "--out" in caught.value.hint
    assert sorted(p.name for p in (world / "parent").iterdir()) == ["config.json"]


def test_u17_text_that_is_linked_into_the_run_folder_is_found(tmp_path: Path) -> None:
    world = _world(tmp_path)
    (world / "run" / "text").mkdir(parents=True)
    (world / "elsewhere").symlink_to(world / "run" / "text")
    with pytest.raises(RunError, match="where files are written"):
        keep_apart(world / "run", {"the text": world / "elsewhere"})
    keep_apart(world / "parent-2", {"the parent": world / "parent"})


def _made(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a child, whose recipe names the parent by a relative path."""
    monkeypatch.chdir(world)
    out = Path("runs/one")
    with open_run(_recipe("parent"), out, reporter=REPORTER):
        (out / "round-1" / "08-distill" / "child").mkdir(parents=True)
    return out


def test_u10_a_run_is_served_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(tmp_path / "world")
    out = _made(world, monkeypatch)
    monkeypatch.chdir(tmp_path)
    found = find_models(Path("world") / out, against=None)
    assert found["parent"] == (world / "parent").resolve()
    assert read_run(Path("world") / out).parent == (world / "parent").resolve()


def test_u10_run_and_parent_that_were_moved_together_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = _made(_world(tmp_path / "world"), monkeypatch)
    monkeypatch.chdir(tmp_path)
    moved = (tmp_path / "world").rename(tmp_path / "moved")
    assert find_parent(moved / out) == moved / "parent"


def test_u10_a_run_that_was_moved_alone_finds_its_parent_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(tmp_path / "world")
    out = _made(world, monkeypatch)
    moved = (world / out).rename(tmp_path / "alone")
    assert find_parent(moved) == world / "parent"


def test_u10_a_run_of_an_older_version_finds_its_parent_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(tmp_path / "world")
    out = world / _made(world, monkeypatch)
    (out / "parent.json").unlink()
    monkeypatch.chdir("/")
    assert find_parent(out) == world / "parent"


def test_u10_a_parent_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(tmp_path / "world")
    out = world / _made(world, monkeypatch)
    (world / "parent" / "config.json").unlink()
    with pytest.raises(RunError, match=r"the run's parent is not at .*world/parent"):
        find_models(out, against=None)
    assert find_models(out, against=world / "text")["parent"] == world / "text"
