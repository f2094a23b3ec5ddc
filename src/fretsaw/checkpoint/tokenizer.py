"""Whether a tokenizer fits a model: every token that it can give has a row in the embedding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.contents import (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    not_a_file,
    read_object,
)
from fretsaw.checkpoint.header import Fault
from fretsaw.errors import CheckpointError
from fretsaw.families.base import Config
from fretsaw.families.shared_keys import embedding_rows, special_ids

TOKENIZER = "tokenizer.json"
NO_PADDING = -1
"""What some configs write for "no padding token"."""


def tokenizer_faults(folder: Path, config: Config) -> Iterator[Fault]:
    """What keeps the tokenizer of a folder from serving its model.

    Args:
        folder: The checkpoint.
        config: Its config.json.
    """
    if not any(not_a_file(folder / name) == "" for name in TOKENIZER_FILES):
        what = f"no tokenizer: none of {', '.join(TOKENIZER_FILES)}"
        yield Fault(what, "copy the tokenizer files of the model into the folder")
    rows = embedding_rows(config)
    for file, read in (
        (TOKENIZER, _tokens),
        (TOKENIZER_CONFIG, _decoded),
        ("added_tokens.json", _added),
        ("vocab.json", _added),
    ):
        if not_a_file(folder / file) != "not there":
            yield from _file_faults(folder / file, read=read, rows=rows)
    yield from _special_faults(config, CONFIG, rows=rows)
    if not_a_file(folder / GENERATION_CONFIG) != "not there":
        try:
            settings = read_object(folder / GENERATION_CONFIG)
        except CheckpointError as error:
            yield Fault(error.message, error.hint)
        else:
            yield from _special_faults(settings, GENERATION_CONFIG, rows=rows)


def code_faults(folder: Path) -> Iterator[Fault]:
    """A tokenizer that wants to run code of the folder; a child's does not."""
    try:
        settings = read_object(folder / TOKENIZER_CONFIG)
    except CheckpointError:
        return
    if settings.get("auto_map"):
        yield Fault(
            f"{TOKENIZER_CONFIG} has an auto_map: the tokenizer wants to run code",
            f"remove it, if {TOKENIZER} says all that is needed",
        )


def _file_faults(file: Path, *, read: Any, rows: int | None) -> Iterator[Fault]:
    try:
        tokens: dict[str, int] = read(read_object(file))
        if not all(isinstance(token, int) and token >= 0 for token in tokens.values()):
            raise ValueError("a token id is no whole number from 0 on")
    except CheckpointError as error:
        yield Fault(error.message, error.hint)
        return
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        yield Fault(f"{file.name} is damaged: {error!r}", "copy the tokenizer's files again")
        return
    if rows is not None and tokens and max(tokens.values()) >= rows:
        token = max(tokens, key=lambda name: tokens[name])
        yield Fault(
            f"{file.name} gives ids up to {tokens[token]} ({token!r}); the embedding has {rows} "
            "rows",
            "this is another model's tokenizer, or vocab_size in config.json is wrong",
        )


def _tokens(data: Mapping[str, Any]) -> dict[str, int]:
    words = data["model"]["vocab"]
    if isinstance(words, list):
        words = {str(piece[0]): i for i, piece in enumerate(words)}
    added = {token["content"]: token["id"] for token in data.get("added_tokens") or ()}
    return {**words, **added}


def _decoded(settings: Mapping[str, Any]) -> dict[str, int]:
    decoder = settings.get("added_tokens_decoder") or {}
    return {str(token["content"]): int(number) for number, token in decoder.items()}


def _added(words: Mapping[str, Any]) -> dict[str, int]:
    return dict(words)


def _special_faults(config: Config, file: str, *, rows: int | None) -> Iterator[Fault]:
    for key, ids in special_ids(config).items():
        for token in ids:
            hint = f"correct {key} in {file}"
            if not isinstance(token, int) or isinstance(token, bool):
                yield Fault(f"{file} has {key} {token!r:.40}, which is no token id", hint)
            elif token < 0 and not (token == NO_PADDING and key.startswith("pad")):
                yield Fault(f"{file} has {key} {token}; token ids begin at 0", hint)
            elif rows is not None and token >= rows:
                yield Fault(f"{file} has {key} {token}; the embedding has {rows} rows", hint)
