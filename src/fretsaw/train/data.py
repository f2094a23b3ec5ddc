"""Text for calibration and training: one split of a file, a folder or a data set; no network."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from fretsaw.errors import DataError
from fretsaw.train.columns import ChatTokenizer, Columns, RowReader
from fretsaw.train.files import Kind, TextFile, printable, text_file
from fretsaw.train.found import NAMED_FILES, Counted, FoundText, Tally
from fretsaw.train.readers import lines_of, pieces, read_plain, read_rows
from fretsaw.train.splits import Split, SplitFiles, check_split, files_of_split, single_file

SHARES: Mapping[Split, float] = {"train": 0.8, "calibration": 0.1, "validation": 0.1}
"""Shares of a source without splits, by the hash of each piece of text."""

PIECE_CHARS = 8_000
"""A source without splits is cut, at line ends, into pieces of about this many characters."""

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

KINDS: Mapping[Kind, str] = {
    "text": "plain text",
    "json": "JSON lines",
    "parquet": "Parquet",
    "arrow": "data set",
}
DATA_SET, ONE_DATA_SET = "dataset_dict.json", "dataset_info.json"


@dataclass(frozen=True)
class TextSource:
    """The documents of one split; iterating reads them from disk again, in a fixed order.

    Attributes:
        path: What the user gave.
        split: Which of ours it serves.
        files: Exactly what is read, in order.
        is_hashed: The source has no splits: this one is the share of its pieces whose hash says so.
        columns: What the user said of columns.
        tokenizer: Whose chat template conversations go through.
        ignored: Files that lie there and are not read, by the reason.
        tally: Counts of the last reading.
    """

    path: Path
    split: Split
    files: tuple[TextFile, ...]
    is_hashed: bool
    columns: Columns = field(default_factory=Columns)
    tokenizer: ChatTokenizer | None = None
    ignored: tuple[Counted, ...] = ()
    tally: Tally = field(default_factory=Tally, compare=False)

    def __iter__(self) -> Iterator[str]:
        """Each document's text.

        Raises:
            DataError: a file is damaged, or has no such column.
        """
        self.tally.begin()
        for text in self._texts():
            self.tally.documents += 1
            yield text
        self.tally.is_all = True

    def describe(self) -> str:
        """One line on where the text comes from and how it was split."""
        what = ", ".join(dict.fromkeys(KINDS[file.kind] for file in self.files)) or "no files"
        how = f"{SHARES[self.split]:.0%} of its pieces, by hash" if self.is_hashed else "its split"
        return f"{self.split}: {how}, from {self.path} ({what})"

    def found(self, *, tokens: int) -> FoundText:
        """What the last reading has found; `tokens` ids were taken of it."""
        kinds = Counter(_kind(file) for file in self.files)
        return FoundText(
            split=self.split,
            path=printable(self.path),
            share=SHARES[self.split] if self.is_hashed else None,
            kinds=tuple(kinds.items()),
            num_files=len(self.files),
            files=tuple(file.shown for file in self.files[:NAMED_FILES]),
            form=self.tally.form,
            documents=self.tally.documents,
            is_all=self.tally.is_all,
            tokens=tokens,
            repaired=self.tally.counted("repaired"),
            skipped=self.tally.counted("skipped"),
            noted=self.tally.counted("noted"),
            ignored=self.ignored,
        )

    def _texts(self) -> Iterator[str]:
        documents = itertools.chain.from_iterable(map(self._documents, self.files))
        if not self.is_hashed:
            yield from documents
            return
        for document in documents:
            for piece in pieces(lines_of(io.StringIO(document), PIECE_CHARS), PIECE_CHARS):
                if split_of(piece) == self.split:
                    yield piece

    def _documents(self, file: TextFile) -> Iterator[str]:
        if file.kind == "text":
            yield from read_plain(file, self.tally)
            return
        reader: RowReader | None = None

        def wanted(names: Sequence[str], where: str) -> Sequence[str]:
            nonlocal reader
            form = self.columns.form(names, where=where)
            self.tally.form = str(form)
            reader = RowReader(form, self.tokenizer, self.tally)
            return form.columns

        try:
            for row, where in read_rows(file, self.tally, wanted=wanted):
                assert reader is not None
                text = reader.text(row, where=where)
                if text is not None:
                    yield text
        except DataError:
            if reader is not None or not self._may_be_prose(file):
                raise
            self.tally.count("skipped", "JSON that holds no rows of text", where=file.shown)

    def _may_be_prose(self, file: TextFile) -> bool:
        """Whether a file is one of those that lie among programs, such as a package.json."""
        has_prose = self.is_hashed and any(other.kind == "text" for other in self.files)
        return has_prose and file.suffix == ".json"


def _kind(file: TextFile) -> str:
    """Such as ``JSON lines``, ``plain text (.py)``."""
    kind = KINDS[file.kind]
    return kind if file.is_sure else f"{kind} ({file.suffix or 'no suffix'})"


def fingerprint(text: str) -> int:
    """A number below 2**64 that follows from the text alone."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def split_of(text: str) -> Split:
    """Which split a piece of a source without splits belongs to: a function of its text alone."""
    place = fingerprint(text) / 2**64
    for split, end in zip(SHARES, itertools.accumulate(SHARES.values()), strict=True):
        if place < end:
            return split
    return "train"


def load_split(
    path: Path,
    split: Split,
    *,
    names: Mapping[Split, str] | None = None,
    text_key: str = "text",
    chat_key: str | None = None,
    tokenizer: ChatTokenizer | None = None,
) -> TextSource:
    """The text of one split, found on disk; nothing is read but file names and the first bytes.

    Accepted: a data-set folder with one file (`train.jsonl`, `.parquet`, `.txt`, or shards
    `train-00000-of-00002.parquet`) or one sub-folder per split, or as `save_to_disk` of the
    `datasets` library leaves it; or a single file, or a folder of files, without splits, whose
    pieces are then shared out by hash (80 % train, 10 % calibration, 10 % validation), whatever
    their order on disk. Exactly the files that are found are read, each by its path.

    Args:
        path: File or folder.
        split: Which split is wanted.
        names: Split -> its name in the data set, where that is another.
        text_key: Column that holds the text.
        chat_key: Column that holds conversations, where that is meant.
        tokenizer: Whose chat template conversations go through.

    Raises:
        DataError: no such path (nothing is ever downloaded), no such split, no text in it, or a
            file that is not what its name says.
    """
    own = names or {}
    found = _found(path, split, names={s: own.get(s, s) for s in get_args(Split)})
    return TextSource(
        path,
        split,
        found.files,
        is_hashed=not found.is_own,
        columns=Columns(text_key, chat_key),
        tokenizer=tokenizer,
        ignored=found.ignored,
    )


def _found(path: Path, split: Split, *, names: Mapping[Split, str]) -> SplitFiles:
    _check_exists(path)
    if path.is_file():
        return single_file(path)
    if (path / DATA_SET).is_file():
        present = _from_json(path / DATA_SET, "splits")
        check_split(path, split, wanted=names[split], present=present)
        actual = next(name for name in present if name.lower() == names[split].lower())
        return SplitFiles(_arrow_files(path, path / actual), is_own=True)
    if (path / ONE_DATA_SET).is_file() and (path / "state.json").is_file():
        return SplitFiles(_arrow_files(path, path), is_own=False)
    return files_of_split(path, split, names=names)


def _arrow_files(path: Path, folder: Path) -> tuple[TextFile, ...]:
    """The files that `save_to_disk` says a data set has."""
    names = [str(file["filename"]) for file in _from_json(folder / "state.json", "_data_files")]
    return tuple(text_file(folder / n, (folder / n).relative_to(path).as_posix()) for n in names)


def _from_json(file: Path, key: str) -> list[Any]:
    try:
        found: list[Any] = json.loads(file.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is damaged or missing: {error!r}", "save the data set again"
        ) from error
    return found


def _check_exists(path: Path) -> None:
    if path.is_file() or path.is_dir():
        return
    if path.exists():
        raise DataError(f"{path} is neither a file nor a folder", "write the text to a file first")
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
