"""Run folders: made, locked, found again from anywhere, and apart from all that a run reads."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fretsaw.checkpoint.writer import write_json
from fretsaw.errors import RunError
from fretsaw.recipe import Recipe, load_recipe
from fretsaw.stages.progress import Reporter
from fretsaw.stages.run import MARKER, Run, read_json

PARENT = "parent.json"
"""Where the parent lies: absolute, and as seen from the run folder; either may be moved."""


def keep_apart(out: Path, sources: Mapping[str, Path]) -> None:
    """Check that what is written lies apart from what is read; links are followed.

    Args:
        out: What will be written.
        sources: What is read, by what it is in a message, such as ``the parent``.

    Raises:
        RunError: one of them lies in the other.
    """
    here = out.resolve()
    for what, path in sources.items():
        there = path.resolve()
        hint = f"give --out a folder outside of {path}"
        if here == there:
            raise RunError(f"{out} is {what} itself", hint)
        if here.is_relative_to(there):
            raise RunError(
                f"{out} lies inside {what}, {path}: its files would be taken for part of it", hint
            )
        if there.is_relative_to(here):
            raise RunError(
                f"{what}, {path}, lies inside {out}, where files are written and moved aside",
                "give another --out",
            )


def check_folder(out: Path, recipe: Recipe) -> None:
    """Check that a folder may hold a run, and lies apart from parent and text.

    Raises:
        RunError: it holds something else, or what is read.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; a run is a folder", "give --out a new folder")
    keep_apart(out, {"the parent": Path(recipe.parent), "the text": Path(recipe.data.path)})
    ours = {".lock", MARKER + ".new", PARENT, PARENT + ".new"}
    is_ours = out.is_dir() and all(p.name in ours for p in out.iterdir())
    if out.exists() and not is_ours and not (out / MARKER).is_file():
        raise RunError(
            f"{out} is not empty and is no fretsaw run; nothing of yours is overwritten",
            "give --out a new folder",
        )


@contextmanager
def open_run(recipe: Recipe, out: Path, *, reporter: Reporter) -> Iterator[Run]:
    """The run in folder `out`, made if it is not there, locked while in use.

    Raises:
        RunError: the folder holds something else, or another process works in it.
    """
    check_folder(out, recipe)
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(
                f"another fretsaw process works in {out}", "wait for it, or give another --out"
            ) from error
        run = Run(out.resolve(), recipe, reporter)
        relative = os.path.relpath(run.parent, run.folder)
        write_json(out / PARENT, {"absolute": str(run.parent), "relative": relative})
        temporary = out / (MARKER + ".new")
        temporary.write_text(recipe.to_json(), encoding="utf-8")
        temporary.replace(out / MARKER)
        yield run


def read_run(folder: Path) -> Run:
    """A run that was made before, to be looked at; its parent where it lies now, if anywhere.

    Raises:
        RunError: no run.
        RecipeError: its recipe cannot be read.
    """
    if not (folder / MARKER).is_file():
        what = "is no fretsaw run" if folder.is_dir() else "does not exist, or is no folder"
        raise RunError(f"{folder} {what}", "give the folder that `fretsaw compress --out` wrote")
    recipe = load_recipe(folder / MARKER)
    try:
        parent = find_parent(folder)
    except RunError:  # nothing that the run has found is lost with it
        parent = Path(recipe.parent).resolve()
    return Run(folder.resolve(), recipe, Reporter(is_quiet=True), found_parent=parent)


def find_parent(folder: Path) -> Path:
    """The parent of a run: where it was, or as it lies to the run folder if both were moved.

    Raises:
        RunError: in neither place.
    """
    given = str(json.loads((folder / MARKER).read_text(encoding="utf-8"))["parent"])
    kept = read_json(folder / PARENT)
    known = kept if isinstance(kept, dict) else {}
    run = folder.resolve()
    places = [Path(str(known["absolute"])), run / str(known["relative"])] if known else []
    # Runs of older versions kept what the recipe says: from the folder that the command ran in.
    places += [base / given for base in (Path(), *run.parents)]
    for place in places:
        if (place / "config.json").is_file():
            return place.resolve()
    raise RunError(
        f"the run's parent is not at {places[0]}", "put it back, or give it with --against"
    )
