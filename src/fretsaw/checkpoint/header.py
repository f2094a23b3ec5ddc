"""The header of a safetensors file: read without a weight, and checked against the file."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.contents import not_a_file
from fretsaw.checkpoint.strange import unlike
from fretsaw.errors import CheckpointError

HEADER_LIMIT = 100_000_000
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "U32": 4,
    "I32": 4,
    "U64": 8,
    "I64": 8,
    "BOOL": 1,
}
START = 512
LENGTH_BYTES = 8
SPAN = 2

Header = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Fault:
    """Something wrong with a checkpoint: what is seen, what was expected, and what to do."""

    message: str
    hint: str = ""


def read_header(file: Path) -> Header:
    """Header of a safetensors file, checked against the length of the file.

    Raises:
        CheckpointError: damaged, cut short, or its tensors overlap.
    """
    header, end = parse_header(file)
    size = file.stat().st_size
    if end != size:
        raise CheckpointError(
            f"{file} has {size} bytes; its header says {end}", "it was cut short: copy it again"
        )
    if fault := next(span_faults(file.name, header), None):
        raise CheckpointError(f"{file.parent}: {fault.message}", fault.hint)
    return header


def parse_header(file: Path) -> tuple[Header, int]:
    """Header of a safetensors file, and the length that the file should have.

    Raises:
        CheckpointError: it is no such file, or damaged; says what it is.
    """
    if problem := not_a_file(file):
        raise CheckpointError(f"{file} is {problem}", "copy the file itself")
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            text = _header_text(stream.read(LENGTH_BYTES), stream.read(START), size=size, file=file)
            stream.seek(LENGTH_BYTES)
            header = _entries(stream.read(text), file=file)
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read: {error.strerror}", "allow reading it, or copy it"
        ) from error
    ends = [entry["data_offsets"][1] for entry in header.values()]
    return header, LENGTH_BYTES + text + max(ends, default=0)


def _header_text(first: bytes, more: bytes, *, size: int, file: Path) -> int:
    """Length of the header's text, in bytes.

    Raises:
        CheckpointError: the file does not begin like one.
    """
    if not more.startswith(b"{") and (what := unlike(first + more)):
        raise CheckpointError(f"{file} is {what.name}, not safetensors", what.hint)
    if len(first) < LENGTH_BYTES:
        raise CheckpointError(
            f"{file} is damaged: it has {size} bytes, which hold no header", "copy it again"
        )
    (length,) = struct.unpack("<Q", first)
    if not more.startswith(b"{") or length > HEADER_LIMIT:
        raise CheckpointError(
            f"{file} is damaged: it does not begin with the header of a safetensors file",
            "copy it again",
        )
    if length > size - LENGTH_BYTES:
        raise CheckpointError(
            f"{file} is damaged: it was cut short inside its header, at {size} bytes of "
            f"{length + LENGTH_BYTES}",
            "copy it again",
        )
    return int(length)


def _entries(text: bytes, *, file: Path) -> Header:
    """Entries of the tensors, each of the right types.

    Raises:
        CheckpointError: the text is no header.
    """
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is damaged: its header is not JSON: {error}", "copy it again"
        ) from error
    header.pop("__metadata__", None)
    for key, entry in header.items():
        if problem := _problem(entry):
            raise CheckpointError(
                f"{file} is damaged: its header says of {key} {problem}", "copy it again"
            )
    return dict(header)


def _problem(entry: object) -> str:
    """What is wrong with the types of a header's entry; empty if nothing is."""
    if not isinstance(entry, dict):
        return f"{str(entry)[:40]}, where an object was expected"
    shape, span = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(entry.get("dtype"), str):
        return f"dtype={entry.get('dtype')!r:.40}"
    if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
        return f"shape={shape!r:.40}"
    if not isinstance(span, list) or len(span) != SPAN or not all(map(_is_count, span)):
        return f"data_offsets={span!r:.40}"
    return "" if span[0] <= span[1] else f"data_offsets={span}, which end before they begin"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def length_faults(file: Path, end: int) -> Iterator[Fault]:
    """A file of another length than its header says."""
    size = file.stat().st_size
    if size < end:
        message = f"{file.name} was cut short: it has {size} bytes, its header says {end}"
        yield Fault(message, "copy it again")
    elif size > end:
        message = f"{file.name} has {size} bytes, but its header ends at {end}"
        yield Fault(message, "copy it again: safetensors refuses bytes that belong to no tensor")


def span_faults(file: str, header: Mapping[str, Mapping[str, Any]]) -> Iterator[Fault]:
    """Tensors of a dtype that does not exist, or whose bytes do not fit, overlap or leave a gap."""
    end = 0
    for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        size = DTYPE_BYTES.get(entry["dtype"])
        if size is not None and stop - start != size * math.prod(entry["shape"]):
            yield Fault(
                f"{file}: {key} takes {stop - start} bytes; {entry['dtype']} "
                f"{list(entry['shape'])} takes {size * math.prod(entry['shape'])}",
                "write the file again",
            )
        if start != end:
            yield Fault(
                f"{file}: {key} begins at byte {start} of the data; the tensor before it ends at "
                f"{end}",
                "write the file again",
            )
        end = stop
