"""Files of text: which of them a folder holds, what kind each is, and which split it is named for.

Nothing is a pattern here: a file is opened by its path, whatever characters that has.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

import pyarrow as pa

from fretsaw.errors import DataError

Kind = Literal["text", "json", "parquet", "arrow"]

SUFFIXES: dict[str, Kind] = {
    ".jsonl": "json",
    ".jsonlines": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
    ".text": "text",
}
"""Suffixes, in any case, that say what is in a file; any other file may be plain text."""

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst", ".zstd")
"""Suffixes of compressed files that are read as they are; JSON and plain text only."""

TABLES = (".csv", ".tsv", ".feather", ".orc", ".xlsx", ".pkl", ".pickle", ".h5", ".npy", ".avro")
ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar", ".lz4", ".z", ".br")
UNREAD = (*TABLES, *ARCHIVES)
"""Suffixes of files that hold no plain text, whatever their bytes."""

FIRST_KEY = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*:')

HEAD = 1 << 16
"""Bytes of the beginning of a file that decide what it is."""

BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks; that of UTF-32 begins as that of UTF-16 does."""

POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex")
MAGIC = ((b"PAR1", "a Parquet file"), (b"ARROW1", "an Arrow file"), (b"PK\3\4", "a zip archive"))
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")

CANNOT_OPEN = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
"""What reading a damaged, cut or forbidden file raises."""


@dataclass(frozen=True)
class TextFile:
    """A regular file that may hold text.

    Attributes:
        path: To open it by.
        name: Below the folder that the user gave.
        kind: What its suffix says it is; plain text if that says nothing.
        suffix: In small letters, that of a compression left out.
        compression: Its suffix, or empty.
    """

    path: Path
    name: str
    kind: Kind
    suffix: str
    compression: str = ""

    @property
    def identity(self) -> tuple[int, int]:
        """The same for two names of one file."""
        return _identity(self.path.stat())

    @property
    def shown(self) -> str:
        """Its name as it can be printed: names may hold bytes that are no characters."""
        return printable(self.name)

    @property
    def is_sure(self) -> bool:
        """Whether its suffix says what it holds."""
        return self.suffix in SUFFIXES

    @property
    def stem(self) -> str:
        """Its name without folders and suffixes, in small letters."""
        bare = self.path.name.lower().removesuffix(self.compression)
        return bare.removesuffix(self.suffix)

    def open(self) -> BinaryIO:
        """Its bytes, unpacked.

        Raises:
            DataError: it cannot be opened.
        """
        try:
            return _opened(self.path, self.compression)
        except CANNOT_OPEN as error:
            raise unreadable(self.path, error) from error

    def encoding(self) -> str:
        """Of its text: what a byte order mark says, else UTF-8."""
        head = self.head()
        return next((name for mark, name in BOMS if head.startswith(mark)), "utf-8")

    def head(self) -> bytes:
        """Its first bytes, unpacked."""
        try:
            with self.open() as stream:
                return stream.read(HEAD)
        except CANNOT_OPEN as error:
            raise unreadable(self.path, error) from error


def unreadable(path: Path, error: Exception) -> DataError:
    """The error of a file that cannot be opened or is damaged."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return DataError(f"{path} cannot be read: {why}", "copy it again, or mend its permissions")


def _opened(path: Path, compression: str) -> BinaryIO:
    if compression == ".gz":
        return cast("BinaryIO", gzip.open(path))
    if compression == ".bz2":
        return cast("BinaryIO", bz2.open(path))
    if compression == ".xz":
        return cast("BinaryIO", lzma.open(path))
    if compression in (".zst", ".zstd"):
        packed = pa.OSFile(str(path))
        return cast("BinaryIO", io.BufferedReader(pa.CompressedInputStream(packed, "zstd")))
    return path.open("rb")


def text_file(path: Path, name: str) -> TextFile:
    """A file by what its name says."""
    lower = path.name.lower()
    compression = next((c for c in COMPRESSIONS if lower.endswith(c)), "")
    suffix = Path(lower.removesuffix(compression)).suffix
    return TextFile(path, name, SUFFIXES.get(suffix, "text"), suffix, compression)


def printable(path: Path | str) -> str:
    """A path with U+FFFD where its bytes are no UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every path below a folder that is no folder, with why it is no file; or ``""``.

    Hidden names are passed over. Links to folders are followed, but each folder is read once, and
    none that the folder itself lies in.
    """
    known = {_identity(place.stat()) for place in (folder, *folder.resolve().parents)}
    folders = [folder]
    while folders:
        for path in _visible(folders.pop()):
            try:
                found = path.stat()
            except OSError:  # nothing is there, or the link leads back to itself
                yield path, "a link that leads nowhere"
                continue
            if not stat.S_ISDIR(found.st_mode):
                yield path, "" if stat.S_ISREG(found.st_mode) else "a pipe or a device"
            elif _identity(found) in known:
                yield path, "a link to a folder that is read already, or lies above"
            else:
                known.add(_identity(found))
                folders.append(path)


def _visible(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error
    return [p for p in paths if not p.name.startswith(".") and p.name != "__MACOSX"]


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def problem_of(file: TextFile) -> str:
    """Why a file does not hold what its name says, from its first bytes; empty if it does.

    Raises:
        DataError: it cannot be opened.
    """
    if file.suffix in UNREAD:
        return "a table or an archive (CSV, zip and the like)"
    if file.compression and file.kind in ("parquet", "arrow"):
        return "compressed Parquet or Arrow, which is read unpacked only"
    head = file.head()
    if head.startswith(POINTERS):
        return "a pointer of Git LFS or git-annex, not the file itself"
    if file.kind in ("parquet", "arrow"):
        return _problem_of_binary(file, head)
    if found := next((what for mark, what in MAGIC if head.startswith(mark)), None):
        return f"{found}, but its name says otherwise"
    if head.startswith(COMPRESSED):
        return "compressed, but its name does not say so"
    return _problem_of_text(file, head)


def _problem_of_binary(file: TextFile, head: bytes) -> str:
    if file.kind == "parquet":
        return "" if head.startswith(b"PAR1") else "named Parquet, but it is none"
    is_arrow = head.startswith((b"ARROW1", b"\xff\xff\xff\xff"))
    return "" if is_arrow else "named Arrow, but it is none"


def _problem_of_text(file: TextFile, head: bytes) -> str:
    encoding = next((name for mark, name in BOMS if head.startswith(mark)), "utf-8")
    if encoding == "utf-8" and b"\0" in head:
        return "binary, or UTF-16 without a byte order mark"
    if encoding == "utf-8" and not file.is_sure and not _is_utf8(head):
        return "not UTF-8 text"
    text = head.decode(encoding, "replace").lstrip("\ufeff").lstrip()
    if file.kind == "json":
        is_json = not text or text[0] in "{["
        return "" if is_json else "named JSON, but it begins with neither { nor ["
    is_json = _is_json_lines(text, is_sure=file.is_sure)
    return "JSON lines, but its name does not say so (.jsonl)" if is_json else ""


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character cut in two by the end of the sample.
        return len(head) == HEAD and error.start > len(head) - 4
    return True


def _is_json_lines(text: str, *, is_sure: bool) -> bool:
    """Whether the first lines are objects: two of them, or the only one of what is named text."""
    if not text.startswith("{"):
        return False
    lines = [line for line in text.split("\n", 3)[:2] if line.strip()]
    if len(lines) == 1 and len(text) > HEAD // 4:  # the sample ends within a line
        return FIRST_KEY.match(text) is not None
    return all(map(_is_object, lines)) and (is_sure or len(lines) > 1)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


SHARD = re.compile(r"[-_.](?:\d+-of-\d+(?:-[0-9a-f]{8,})?|(?:part|shard|chunk)?[-_.]?\d+)$")
"""What a file of several has behind the name that they share."""


def without_shard(stem: str) -> str:
    """A stem without its number."""
    return SHARD.sub("", stem)
