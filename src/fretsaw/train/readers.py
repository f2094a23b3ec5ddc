"""One reader for each kind of file: plain text in pieces, and rows of JSON, Parquet and Arrow."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from fretsaw.errors import DataError
from fretsaw.train.files import CANNOT_OPEN, TextFile, unreadable
from fretsaw.train.found import Tally

Row = Mapping[str, Any]
Wanted = Callable[[Sequence[str], str], Sequence[str]]
"""Names of all columns, and the place of the first row -> the columns that are read."""

FILE_PIECE_CHARS = 1_000_000
"""Longest document read from a plain text file; longer files give several documents."""

BATCH_ROWS = 256

SURROGATE = re.compile("[\ud800-\udfff]")
BAD_BYTES = "a byte that is not UTF-8, replaced"
BAD_CHARACTERS = "half a surrogate pair, replaced"


def read_plain(file: TextFile, tally: Tally) -> Iterator[str]:
    """A plain text file as documents of at most about a million characters.

    Raises:
        DataError: the file cannot be read.
    """
    yield from pieces(_lines(file, tally, size=FILE_PIECE_CHARS), FILE_PIECE_CHARS)


def pieces(lines: Iterator[str], size: int) -> Iterator[str]:
    """Lines joined to pieces of at least `size` characters, memory bounded."""
    kept: list[str] = []
    length = 0
    for line in lines:
        kept.append(line)
        length += len(line)
        if length >= size:
            yield "".join(kept)
            kept, length = [], 0
    if kept:
        yield "".join(kept)


def lines_of(stream: TextIO, size: int = -1) -> Iterator[str]:
    """Lines with their ends, cut after `size` characters."""
    return iter(lambda: stream.readline(size), "")


def _lines(file: TextFile, tally: Tally, *, size: int = -1) -> Iterator[str]:
    """Lines of a file; bytes that are no text are replaced and counted."""
    encoding = file.encoding()
    is_utf8 = encoding.startswith("utf-8")
    errors = "surrogateescape" if is_utf8 else "replace"
    try:
        with file.open() as raw, io.TextIOWrapper(raw, encoding, errors) as stream:
            for number, line in enumerate(lines_of(stream, size), start=1):
                bad = len(SURROGATE.findall(line)) if is_utf8 else line.count("\ufffd")
                if bad:
                    tally.count("repaired", BAD_BYTES, where=f"{file.shown}:{number}", number=bad)
                    line = line.encode("utf-8", errors).decode("utf-8", "replace")  # noqa: PLW2901
                yield line
    except CANNOT_OPEN as error:
        raise unreadable(file.path, error) from error


def whole(text: str, tally: Tally, *, where: str) -> str:
    """A string without halves of surrogate pairs, which no tokenizer takes."""
    if text.isascii() or not (bad := len(SURROGATE.findall(text))):
        return text
    tally.count("repaired", BAD_CHARACTERS, where=where, number=bad)
    return SURROGATE.sub("\ufffd", text)


def read_rows(file: TextFile, tally: Tally, *, wanted: Wanted) -> Iterator[tuple[Row, str]]:
    """Rows of a file of JSON, Parquet or Arrow, with the place of each.

    Raises:
        DataError: the file is damaged or cut short; says in which line or row.
    """
    if file.kind == "json":
        yield from _json_rows(file, tally, wanted=wanted)
        return
    batches = _parquet_batches if file.kind == "parquet" else _arrow_batches
    number = 0
    try:
        for batch in batches(file, wanted):
            for row in _plain(batch, file, first=number + 1, tally=tally):
                number += 1
                yield row, f"{file.shown}, row {number}"
    except (*CANNOT_OPEN, UnicodeDecodeError) as error:
        raise unreadable(file.path, error) from error


def _parquet_batches(file: TextFile, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(file.path)) as stream:
        found = pq.ParquetFile(stream)
        columns = wanted(found.schema_arrow.names, f"{file.shown}, row 1")
        for batch in found.iter_batches(BATCH_ROWS, columns=list(columns)):
            yield batch.select(columns)


def _arrow_batches(file: TextFile, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(file.path)) as stream:
        if file.head().startswith(b"ARROW1"):
            opened = pa.ipc.open_file(stream)
            batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
        else:
            opened = pa.ipc.open_stream(stream)
            batches = iter(opened)
        columns = wanted(opened.schema.names, f"{file.shown}, row 1")
        for batch in batches:
            yield batch.select(columns)


def _plain(batch: pa.RecordBatch, file: TextFile, *, first: int, tally: Tally) -> Iterator[Row]:
    """Rows of a batch; strings are decoded here, since files hold bytes that are no UTF-8."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column.validate(full=True)
            column = column.dictionary_decode()  # noqa: PLW2901
        if _is_string(column.type):
            columns[name] = [
                _decoded(value, tally, where=f"{file.shown}, row {number}")
                for number, value in enumerate(_bytes(column), start=first)
            ]
        else:
            column.validate(full=True)
            columns[name] = column.to_pylist()
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _bytes(column: pa.Array) -> list[bytes | None]:
    """Values of a column of strings; a damaged file has places outside of it, which crash."""
    if pa.types.is_string_view(column.type):
        column.validate(full=True)
        column = column.cast(pa.large_string())
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    raw = column.view(pa.large_binary() if is_large else pa.binary())
    raw.validate(full=True)
    values: list[bytes | None] = raw.to_pylist()
    return values


def _is_string(kind: pa.DataType) -> bool:
    names = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary")
    return any(getattr(pa.types, name)(kind) for name in names)


def _decoded(value: bytes | None, tally: Tally, *, where: str) -> str | None:
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        escaped = value.decode("utf-8", "surrogateescape")
        tally.count("repaired", BAD_BYTES, where=where, number=len(SURROGATE.findall(escaped)))
        return value.decode("utf-8", "replace")


# Numbers are never text: huge ones in columns that are not read must not stop a run.
JSON = json.JSONDecoder(parse_int=float, strict=False)


def _json_rows(file: TextFile, tally: Tally, *, wanted: Wanted) -> Iterator[tuple[Row, str]]:
    is_first = True
    for value, where in _json_values(file, tally):
        if not isinstance(value, dict):
            raise DataError(
                f"{where} is no JSON object but {spoken(value)}",
                'every row is an object, such as {"text": "…"}',
            )
        if is_first:
            wanted(list(value), where)
            is_first = False
        yield value, where


def _json_values(file: TextFile, tally: Tally) -> Iterator[tuple[Any, str]]:
    """Values line by line; of a `.json` that has none on its first line, of the whole file."""
    lines = enumerate(_lines(file, tally), start=1)
    full = ((number, line) for number, text in lines if (line := text.strip("\ufeff \t\r\n")))
    first = next(full, None)
    if first is None:
        return
    if first[1].startswith("[") or (file.suffix == ".json" and not _is_value(first[1])):
        text = "".join(line for line in _lines(file, Tally()))
        yield from _whole_values(file, text)
        return
    for number, line in itertools.chain([first], full):
        where = f"{file.shown}:{number}"
        try:
            yield JSON.decode(line), where
        except (ValueError, RecursionError) as error:
            raise _no_json(where, error) from error


def _is_value(line: str) -> bool:
    try:
        JSON.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _whole_values(file: TextFile, text: str) -> Iterator[tuple[Any, str]]:
    """Objects of a file that is one array, or has objects of several lines."""
    place, row = 0, 0
    text = text.lstrip("\ufeff")
    while rest := re.compile(r"\S").search(text, place):
        try:
            value, place = JSON.raw_decode(text, rest.start())
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", text.count("\n", 0, place) + 1)
            raise _no_json(f"{file.shown}:{line}", error) from error
        for one in value if isinstance(value, list) else [value]:
            row += 1
            yield one, f"{file.shown}, row {row}"


def _no_json(where: str, error: Exception) -> DataError:
    why = getattr(error, "msg", "it is nested too deeply")
    return DataError(
        f"{where} is no whole JSON value: {why}",
        "is the file cut short? Copy it again, or remove that line",
    )


def spoken(value: object) -> str:
    """What a JSON value is, in words."""
    words = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else words.get(type(value), "a number")
