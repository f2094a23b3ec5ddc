"""Text for calibration and training: plain files, JSONL, Parquet, data-set folders; no network."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

import datasets

from fretsaw.errors import DataError, nearest

Split = Literal["train", "calibration", "validation"]
Kind = Literal["text", "json", "parquet", "disk"]

SHARES: Mapping[Split, float] = {"train": 0.8, "calibration": 0.1, "validation": 0.1}
"""Shares of a source without splits, by the hash of each piece of text."""

PIECE_CHARS = 8_000
"""A source without splits is cut, at line ends, into pieces of about this many characters."""

FILE_PIECE_CHARS = 1_000_000
"""Longest document read from a plain text file; longer files give several documents."""

SUFFIXES: Mapping[str, Kind] = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".txt": "text",
}
"""Suffixes by which a data-set folder holds one file, or several shards, per split."""

SHARD = re.compile(r"-\d+-of-\d+$")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
ALIASES: Mapping[Split, tuple[str, ...]] = {
    "train": ("training",),
    "calibration": ("calib",),
    "validation": ("valid", "val", "dev", "eval", "test", "heldout", "held_out"),
}


@dataclass(frozen=True)
class TextSource:
    """The documents of one split; iterating reads them from disk again, in a fixed order.

    Attributes:
        path: What the user gave.
        split: Which of ours it serves.
        kind: How the files are read.
        files: Sorted; one folder for `disk`.
        text_key: Column that holds the text, of all kinds but `text`.
        is_hashed: The source has no splits: this one is the share of its pieces whose hash says so.
    """

    path: Path
    split: Split
    kind: Kind
    files: tuple[Path, ...]
    text_key: str
    is_hashed: bool

    def __iter__(self) -> Iterator[str]:
        """Each document's text.

        Raises:
            DataError: a file is damaged, or has no such column.
        """
        documents = self._documents()
        if not self.is_hashed:
            yield from documents
            return
        pieces = (p for d in documents for p in _pieces(io.StringIO(d), PIECE_CHARS))
        yield from (piece for piece in pieces if split_of(piece) == self.split)

    def describe(self) -> str:
        """One line on where the text comes from and how it was split."""
        what = {
            "text": "plain text",
            "json": "JSON lines",
            "parquet": "Parquet",
            "disk": "data set",
        }
        how = f"{SHARES[self.split]:.0%} of its pieces, by hash" if self.is_hashed else "its split"
        return f"{self.split}: {how}, from {self.path} ({what[self.kind]})"

    def _documents(self) -> Iterator[str]:
        if self.kind == "text":
            for file in self.files:
                with file.open(encoding="utf-8", errors="replace") as stream:
                    yield from _pieces(stream, FILE_PIECE_CHARS)
            return
        try:
            for row in self._rows():
                yield from self._text(row)
        except (ValueError, TypeError, OSError, datasets.exceptions.DatasetsError) as error:
            raise DataError(
                f"{self.path} cannot be read as {self.kind}: {error}",
                "check the file, e.g. with python -m json.tool --json-lines",
            ) from error

    def _rows(self) -> Iterable[Mapping[str, Any]]:
        if self.kind == "disk":
            loaded: Iterable[Mapping[str, Any]] = datasets.load_from_disk(str(self.files[0]))
            return loaded
        files = [str(file) for file in self.files]
        stream: Iterable[Mapping[str, Any]] = datasets.load_dataset(
            self.kind, data_files=files, split="train", streaming=True
        )
        return stream

    def _text(self, row: Mapping[str, Any]) -> Iterator[str]:
        if self.text_key not in row:
            guess = nearest(self.text_key, row) or next(
                (key for key, value in row.items() if isinstance(value, str)), None
            )
            raise DataError(
                f"{self.path} has no column {self.text_key!r}; its columns: {', '.join(row)}",
                f"data.text_key: {guess}" if guess else "no column of it holds text",
            )
        text = row[self.text_key]
        if text is not None and not isinstance(text, str):
            raise DataError(
                f"column {self.text_key!r} of {self.path} holds {type(text).__name__}, not text",
                "set data.text_key to a column of strings",
            )
        if text:
            yield text


def split_of(text: str) -> Split:
    """Which split a piece of a source without splits belongs to: a function of its text alone."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    for split, end in zip(SHARES, itertools.accumulate(SHARES.values()), strict=True):
        if place < end:
            return split
    return "train"


def load_split(
    path: Path, split: Split, *, names: Mapping[Split, str] | None = None, text_key: str = "text"
) -> TextSource:
    """The text of one split, found on disk; nothing is read but file names and the first bytes.

    Accepted: a data-set folder with one file (`train.jsonl`, `.parquet`, `.txt`, or shards
    `train-00000-of-00002.parquet`) or one sub-folder per split, or as `save_to_disk` of the
    `datasets` library leaves it; or a single file, or a folder of files, without splits, whose
    pieces are then shared out by hash (80 % train, 10 % calibration, 10 % validation), whatever
    their order on disk. In a folder Parquet goes before JSON, and JSON before plain text.

    Args:
        path: File or folder.
        split: Which split is wanted.
        names: Split -> its name in the data set, where that is another.
        text_key: Column that holds the text.

    Raises:
        DataError: no such path (nothing is ever downloaded), no such split, or no text in it.
    """
    _check_exists(path)
    wanted = (names or {}).get(split, split)
    if path.is_file():
        return TextSource(path, split, _kind_of(path), (path,), text_key, is_hashed=True)
    if (path / "dataset_dict.json").is_file():
        present = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        _check_split(path, split, wanted=wanted, present=present)
        return TextSource(path, split, "disk", (path / wanted,), text_key, is_hashed=False)
    if (path / "dataset_info.json").is_file() and (path / "state.json").is_file():
        return TextSource(path, split, "disk", (path,), text_key, is_hashed=True)
    own = names or {}
    by_name = _splits(path, {s: own.get(s, s) for s in SHARES})
    if by_name:
        _check_split(path, split, wanted=wanted, present=by_name)
        kind, files = _files(path, by_name[wanted])
        return TextSource(path, split, kind, files, text_key, is_hashed=False)
    kind, files = _files(path, [path])
    return TextSource(path, split, kind, files, text_key, is_hashed=True)


def _check_exists(path: Path) -> None:
    if path.exists():
        return
    if HUB_NAME.fullmatch(path.as_posix()):
        raise DataError(
            f"{path} is no local file or folder, and fretsaw downloads nothing",
            f"if it is a data set of the Hugging Face hub, run once where there is a network: "
            f"datasets.load_dataset({path.as_posix()!r}).save_to_disk('my-data'), and give my-data",
        )
    raise DataError(
        f"{path} does not exist; text was expected there",
        "give a text, JSONL or Parquet file, a folder of such files, or a data-set folder",
    )


def _check_split(path: Path, split: Split, *, wanted: str, present: Iterable[str]) -> None:
    names = list(present)
    if wanted in names:
        return
    alias = next((name for name in ALIASES[split] if name in names), None)
    guess = alias or nearest(wanted, names) or ("train" if split == "calibration" else None)
    raise DataError(
        f"{path} has no split {wanted!r}; its splits: {', '.join(sorted(names))}",
        f"data.splits.{split}: {guess if guess in names else names[0]}",
    )


def _splits(path: Path, names: Mapping[Split, str]) -> dict[str, list[Path]]:
    """Split name -> files or folder, if the folder is laid out by split; else empty.

    It is, if it holds the training split as a data file, or at least two of the wanted splits
    as folders or files, or the training split as a folder and no loose text beside it.
    """
    found: dict[str, list[Path]] = {}
    has_loose_text = False
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(".") or entry.stem.upper() in ("README", "LICENSE"):
            continue
        if entry.is_dir() or entry.suffix in SUFFIXES:
            found.setdefault(SHARD.sub("", entry.stem), []).append(entry)
        else:
            has_loose_text = True
    train = found.get(names["train"], [])
    num_known = sum(name in found for name in set(names.values()))
    is_file = any(entry.is_file() for entry in train)
    return found if is_file or num_known > 1 or (train and not has_loose_text) else {}


def _files(path: Path, places: Iterable[Path]) -> tuple[Kind, tuple[Path, ...]]:
    """All files of the first kind that is there, in the order of their paths."""
    by_kind: dict[Kind, list[Path]] = {"parquet": [], "json": [], "text": []}
    for place in places:
        for file in [place] if place.is_file() else _walk(place):
            kind = SUFFIXES.get(file.suffix, "text")
            if kind != "text" or _is_text(file):
                by_kind[kind].append(file)
    for kind, files in by_kind.items():
        if files:
            return kind, tuple(sorted(files, key=Path.as_posix))
    raise DataError(
        f"{path} holds no text: no Parquet, JSONL or UTF-8 text file",
        "give a folder of .txt, .jsonl or .parquet files",
    )


def _walk(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.is_file() and not any(
            part.startswith(".") for part in file.relative_to(folder).parts
        ):
            yield file


def _kind_of(file: Path) -> Kind:
    kind = SUFFIXES.get(file.suffix, "text")
    if kind == "text" and not _is_text(file):
        raise DataError(
            f"{file} is empty, or not UTF-8 text; its suffix {file.suffix!r} is none of "
            f"{', '.join(SUFFIXES)}",
            "convert it to plain text, JSONL or Parquet",
        )
    return kind


def _is_text(file: Path) -> bool:
    """Whether the first bytes are UTF-8 without NUL; an empty file is no text."""
    with file.open("rb") as stream:
        head = stream.read(4096)
    if not head or b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # a character cut in two by the end of the sample
    return True


def _pieces(stream: TextIO, size: int) -> Iterator[str]:
    """The text in pieces of at least `size` characters that end at a line end, memory bounded."""
    lines: list[str] = []
    length = 0
    while line := stream.readline(size):
        lines.append(line)
        length += len(line)
        if length >= size:
            yield "".join(lines)
            lines, length = [], 0
    if lines:
        yield "".join(lines)
