"""What lies in a checkpoint folder, and what each file is for: the one list that all others use.

A file *decides results* (config, weights, tokenizer), or *travels* to a child besides (chat
templates, generation settings, licences), or *stays behind*. The fingerprint of a parent, what is
copied, what is checked before a run and what is verified all go by it. Whatever else lies there,
links to nowhere, folders, pipes, is left alone.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from fretsaw.checkpoint.strange import unlike
from fretsaw.errors import CheckpointError
from fretsaw.families.quantised import LEGACY_FILE

CONFIG = "config.json"
INDEX_NAME = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
WEIGHTS = ".safetensors"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
LINEAGE_NAME = "fretsaw_lineage.json"
CARD, PARENTS_CARD = "README.md", "PARENT_README.md"
TEMPLATES = "additional_chat_templates"

TOKENIZER = (
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
"""Files that decide which token ids a text becomes."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Any of these is a tokenizer."""

READERS = (
    "chat_template.jinja",
    "chat_template.json",
    GENERATION_CONFIG,
    "preprocessor_config.json",
    "processor_config.json",
)
"""Files that a reader of the child looks for, and that no result here depends on."""

PAPERS = re.compile(
    r"(licen[cs]es?|notices?|copying|copyright|patents|authors|(acceptable_)?use_policy|"
    r"terms(_of_use)?|(third_party|model|nvidia|open_model)\w*_?(licen[cs]e|notices?)\w*|"
    r"licen[cs]e[-_.]\w+)"
    r"(\.(txt|md|rst|pdf))?",
    re.IGNORECASE,
)
"""Names of files that whoever passes a model on has to pass on too."""

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
"""Endings of files that are opened by unpickling: whoever wrote them can run code."""

CODE = (".py", ".so", ".sh", ".pyc")
REMOTE_CODE = ("configuration_nemotron_h_puzzle.py", "modeling_nemotron_h_puzzle.py")
OURS = (LINEAGE_NAME, "WHO_CAN_LOAD.md", *REMOTE_CODE)
"""Files that are written anew for every child."""

REPOSITORY = (".gitattributes", ".gitignore", ".git", ".cache", ".DS_Store")

Fate = Literal["decides", "travels", "stays"]


@dataclass(frozen=True)
class Contents:
    """What lies in a checkpoint folder.

    Attributes:
        folder: The checkpoint.
        deciding: Names of the files that decide what a model of it computes.
        travelling: Name -> name in a child, of the files that go along besides the weights.
        left: Name -> why it stays behind.
        lost: Name -> what is there instead of a file of weights.
    """

    folder: Path
    deciding: tuple[str, ...]
    travelling: Mapping[str, str]
    left: Mapping[str, str]
    lost: Mapping[str, str]


def contents(folder: Path) -> Contents:
    """List a checkpoint folder.

    Raises:
        CheckpointError: the folder or its index cannot be read.
    """
    shards = set(weight_files(folder))
    lost = {name: problem for name in shards if (problem := not_a_file(folder / name))}
    deciding, travelling, left = [], {}, {}
    for name, problem in _entries(folder):
        fate, why = fate_of(name)
        if name in lost:
            continue
        if problem:
            left[name] = problem
        elif name in shards or (fate == "decides" and not name.endswith(WEIGHTS)):
            deciding.append(name)
        elif fate == "stays":
            left[name] = why
        elif fate == "decides":
            left[name] = "weights that the index does not name"
        if not problem and (fate == "travels" or name in TOKENIZER):
            travelling[name] = PARENTS_CARD if name == CARD else name
    if PARENTS_CARD in travelling and travelling.pop(CARD, ""):
        left[CARD] = f"the page of a child; {PARENTS_CARD} goes along"
    left = {name: why for name, why in left.items() if name not in (*OURS, *REPOSITORY)}
    return Contents(folder, tuple(sorted(deciding)), travelling, left, lost)


def fate_of(name: str) -> tuple[Fate, str]:
    """What becomes of a file by its name, and why it stays, if it does."""
    path = PurePosixPath(name)
    if path.parts[0] == TEMPLATES and path.suffix == ".jinja":
        return "travels", ""
    if len(path.parts) > 1:
        return "stays", "in a folder of its own"
    if name in (CONFIG, INDEX_NAME, LEGACY_FILE, *TOKENIZER) or path.suffix == WEIGHTS:
        return "decides", ""
    if path.suffix.lower() in CODE:
        return "stays", "code is never copied"
    if path.suffix.lower() in PICKLES:
        return "stays", "a pickle, by its name, is never opened or copied"
    if name in (*READERS, CARD, PARENTS_CARD) or PAPERS.fullmatch(name):
        return "travels", ""
    return "stays", "not known to belong to a model"


def decides(name: str) -> bool:
    """Whether a file of a checkpoint folder, by its name, decides what the model computes."""
    return fate_of(name)[0] == "decides"


def _entries(folder: Path) -> Iterator[tuple[str, str]]:
    """Everything in a folder by name, with what keeps it from being a file that can be read."""
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be listed: {error.strerror}", "give a checkpoint folder"
        ) from error
    for path in found:
        if path.name == TEMPLATES and path.is_dir():
            inside = sorted(path.iterdir())
            yield from ((f"{TEMPLATES}/{p.name}", not_a_file(p)) for p in inside)
        else:
            yield path.name, not_a_file(path)


def not_a_file(path: Path) -> str:
    """What a path is instead of a file that can be read; empty if it is one.

    Links are followed: the cache of Hugging Face's hub is made of them.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        if path.is_symlink():
            return f"a link to {path.readlink()}, which is not there"
        return "not there"
    if stat.S_ISREG(mode):
        return ""
    return "a folder" if stat.S_ISDIR(mode) else "not a file (a pipe, a socket or a device)"


def read_text(file: Path) -> str:
    """A text file of a checkpoint.

    Raises:
        CheckpointError: it is not there, no file, or not text.
    """
    if problem := not_a_file(file):
        raise CheckpointError(f"{file} is {problem}", "copy the file itself")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8 text: {error}", "copy it again") from error
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read: {error.strerror}", "allow reading it, or copy it"
        ) from error


def read_json(file: Path) -> object:
    """A JSON file of a checkpoint.

    Raises:
        CheckpointError: it is not there, or not JSON; where it is recognised as something else,
            such as a Git-LFS pointer, that is said.
    """
    text = read_text(file)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if what := unlike(text[:512].encode(), JSON_STARTS):
            raise CheckpointError(f"{file} is {what.name}, not JSON", what.hint) from error
        raise CheckpointError(f"{file} is not valid JSON: {error}", "copy it again") from error


JSON_STARTS = (b"{", b"[", b'"')


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint that holds an object.

    Raises:
        CheckpointError: as `read_json`, or it holds something else.
    """
    data = read_json(file)
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} holds no JSON object", "copy it again")
    return data


def read_index(folder: Path) -> dict[str, str] | None:
    """Key -> file of the index of shards; None where there is none.

    Raises:
        CheckpointError: it is damaged, or names files outside of the folder.
    """
    file = folder / INDEX_NAME
    if not_a_file(file) == "not there":
        return None
    weight_map = read_object(file).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise CheckpointError(
            f"{file} is damaged: no weight_map of tensor names and file names", "copy it again"
        )
    outside = [name for name in weight_map.values() if name != PurePosixPath(name).name]
    if outside:
        raise CheckpointError(
            f"{INDEX_NAME} places tensors in {outside[0]!r}, which is no file name in the folder",
            "name the files beside the index: nothing outside of a checkpoint folder is read",
        )
    if others := [name for name in weight_map.values() if not name.endswith(WEIGHTS)]:
        raise CheckpointError(
            f"{INDEX_NAME} places tensors in {others[0]!r}, which is no *{WEIGHTS}",
            "fretsaw reads safetensors only, never pickles",
        )
    return weight_map


def weight_files(folder: Path) -> list[str]:
    """Names of the files that the weights lie in: those of the index, or every `*.safetensors`.

    Raises:
        CheckpointError: the index is damaged.
    """
    index = read_index(folder)
    if index is not None:
        return sorted(set(index.values()))
    return sorted(p.name for p in folder.glob(f"*{WEIGHTS}") if not p.is_dir())
