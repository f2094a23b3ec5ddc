"""Files beside the weights, copied anew into a finished child: nothing is computed again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.assets import copy_assets
from fretsaw.checkpoint.contents import contents, decides
from fretsaw.errors import RunError
from fretsaw.stages.manifest import (
    CHILD,
    MANIFEST,
    account_of,
    damage,
    read_manifest,
    write_manifest,
)

FILES = "files"
"""Name of the input that stands for them."""


def have_only_files_changed(folder: Path, inputs: Mapping[str, Any]) -> bool:
    """Whether a finished, undamaged stage differs from what is asked for in nothing else."""
    try:
        recorded = read_manifest(folder)["inputs"]
    except RunError:
        return False
    changed = [k for k in {**recorded, **inputs} if recorded.get(k) != inputs.get(k)]
    return changed == [FILES] and FILES in recorded and damage(folder) is None


def recopied(folder: Path, source: Path, *, inputs: Mapping[str, Any]) -> Path:
    """A copy of a finished stage beside it, whose child has the files of `source`.

    Weights are linked, not copied; the finished stage stays as it is.

    Args:
        folder: The finished stage.
        source: Checkpoint folder that the files come from.
        inputs: What the stage would be made from now.

    Returns:
        The copy, to be renamed.
    """
    copy = folder.with_name(folder.name + ".recopied")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, copy_function=_link)
    (copy / MANIFEST).unlink()
    child = copy / CHILD
    for name in contents(child).travelling:
        if not decides(name):
            (child / name).unlink()
    for name in contents(source).travelling:
        (child / name).unlink(missing_ok=True)
    copy_assets(source, child)
    write_manifest(copy, folder.name, inputs=inputs, account=account_of(folder))
    return copy


def _link(source: str, target: str) -> None:
    """A second name for a file; a copy where the disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
