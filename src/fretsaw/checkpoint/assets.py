"""Files that travel beside the weights: tokenizer, chat template, generation config, our code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

TOKENIZER_CONFIG = "tokenizer_config.json"
ASSETS = (
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.txt",
)
REMOTE_CODE = ("configuration_nemotron_h_puzzle.py", "modeling_nemotron_h_puzzle.py")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder brings a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def copy_assets(source: Path, target: Path) -> list[str]:
    """Copy what exists of `ASSETS`; never code, never pickles, never a promise of code."""
    copied = [name for name in ASSETS if (source / name).is_file()]
    for name in copied:
        shutil.copyfile(source / name, target / name)
    file = target / TOKENIZER_CONFIG
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if settings.pop("auto_map", None):
        file.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    return copied


def write_remote_code(target: Path, config: Mapping[str, Any]) -> list[str]:
    """Put our own two model files beside a config that has an `auto_map`; gives their names."""
    if not config.get("auto_map"):
        return []
    for name in REMOTE_CODE:
        source = files("fretsaw") / "data" / "remote_code" / name
        (target / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    return list(REMOTE_CODE)
