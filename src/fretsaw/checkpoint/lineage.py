"""Where a checkpoint came from, and a fingerprint of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

LINEAGE_NAME = "fretsaw_lineage.json"
WEIGHTS = ("*.safetensors", "*.json")


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Name -> SHA-256, for files below a folder."""
    return {name: hash_file(folder / name) for name in sorted(names)}


def hash_checkpoint(folder: Path) -> dict[str, str]:
    """SHA-256 of everything in a checkpoint folder that decides what the model computes."""
    names = {p.name for pattern in WEIGHTS for p in folder.glob(pattern)}
    return hash_files(folder, names - {LINEAGE_NAME})
