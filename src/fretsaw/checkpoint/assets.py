"""Files that travel beside the weights: tokenizer, templates, licences, our code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.contents import (
    REMOTE_CODE,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    contents,
    read_object,
)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder brings a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def copy_assets(source: Path, target: Path) -> list[str]:
    """Copy what travels beside the weights; never code, never pickles, never a promise of code.

    Returns:
        Names of the copies.
    """
    travelling = contents(source).travelling
    for name, new in travelling.items():
        (target / new).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, target / new)
    file = target / TOKENIZER_CONFIG
    settings = read_object(file) if file.is_file() else {}
    if settings.pop("auto_map", None):
        file.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    return sorted(travelling.values())


def write_remote_code(target: Path, config: Mapping[str, Any]) -> list[str]:
    """Put our own two model files beside a config that has an `auto_map`; gives their names."""
    if not config.get("auto_map"):
        return []
    for name in REMOTE_CODE:
        (target / name).write_bytes(remote_code(name))
    return list(REMOTE_CODE)


def remote_code(name: str) -> bytes:
    """One of our two model files as it comes with the package."""
    return (files("fretsaw") / "data" / "remote_code" / name).read_bytes()
