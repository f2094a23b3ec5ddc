"""Where a checkpoint came from, and a fingerprint of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from fretsaw.checkpoint.contents import contents
from fretsaw.errors import CheckpointError


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Name -> SHA-256, for files below a folder."""
    return {name: hash_file(folder / name) for name in sorted(names)}


def hash_checkpoint(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a checkpoint folder that decides what the model computes.

    Raises:
        CheckpointError: a file that it needs is not there or cannot be read.
    """
    found = contents(folder)
    for name, problem in sorted(found.lost.items()):
        raise CheckpointError(f"{folder}: {name} is {problem}", "copy it: it holds weights")
    return _hash(folder, found.deciding)


def hash_travelling(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a checkpoint folder that goes along to a child, tokenizer included.

    Raises:
        CheckpointError: one cannot be read.
    """
    return _hash(folder, contents(folder).travelling)


def _hash(folder: Path, names: Iterable[str]) -> dict[str, str]:
    try:
        return hash_files(folder, names)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename} cannot be read: {error.strerror}", "allow reading it, or copy it"
        ) from error
