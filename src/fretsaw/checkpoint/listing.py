"""What the files of a checkpoint folder hold, and all that is wrong with them.

`Checkpoint` opens what is sound and refuses the rest at the first fault; this looks at everything.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.reader import (
    DTYPE_BYTES,
    INDEX_NAME,
    Stored,
    parse_header,
    several,
)
from fretsaw.errors import CheckpointError

ONE_FILE = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
"""Endings of files that are opened by unpickling: whoever wrote them can run code."""


@dataclass(frozen=True)
class Fault:
    """Something wrong with a checkpoint: what is seen, what was expected, and what to do."""

    message: str
    hint: str = ""


@dataclass(frozen=True)
class Listing:
    """What lies in a folder.

    Attributes:
        files: Names of the weight files.
        stored: Every tensor that a readable header lists.
        lost: Keys that the index places in files that are missing or unreadable.
        faults: What is wrong with files, headers and index.
    """

    files: tuple[str, ...]
    stored: tuple[Stored, ...]
    lost: frozenset[str]
    faults: tuple[Fault, ...]


def list_tensors(folder: Path) -> Listing:
    """Read index and headers; no weight is read.

    Raises:
        OSError: the folder cannot be read.
    """
    faults: list[Fault] = []
    on_disk = sorted(p.name for p in folder.glob("*.safetensors"))
    index = _read_index(folder, faults)
    stored: list[Stored] = []
    unreadable = set(index.values()) - set(on_disk) if index else set()
    for name in on_disk:
        try:
            header, end = parse_header(folder / name)
        except CheckpointError as error:
            faults.append(Fault(error.message, error.hint))
            unreadable.add(name)
            continue
        faults += _length_faults(folder / name, end)
        faults += _span_faults(name, header)
        stored += [Stored(name, k, e["dtype"], tuple(e["shape"])) for k, e in header.items()]
    faults += _double_faults(stored)
    files = {place.key: place.file for place in stored}
    faults += _missing_files(index, on_disk) if index else _without_index(on_disk)
    faults += _misplaced(index, files) if index else ()
    lost = frozenset(key for key, file in (index or {}).items() if file in unreadable)
    return Listing(tuple(on_disk), tuple(stored), lost, tuple(faults))


def _read_index(folder: Path, faults: list[Fault]) -> dict[str, str] | None:
    file = folder / INDEX_NAME
    if not file.is_file():
        return None
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        faults.append(Fault(f"{INDEX_NAME} is damaged: {error!r}", "copy it again"))
        return None


def _length_faults(file: Path, end: int) -> Iterator[Fault]:
    size = file.stat().st_size
    if size < end:
        message = f"{file.name} was cut short: it has {size} bytes, its header says {end}"
        yield Fault(message, "copy it again")
    elif size > end:
        message = f"{file.name} has {size} bytes, but its header ends at {end}"
        yield Fault(message, "copy it again: safetensors refuses bytes that belong to no tensor")


def _span_faults(file: str, header: Mapping[str, Mapping[str, Any]]) -> Iterator[Fault]:
    """Tensors whose bytes do not fit their dtype and shape, or overlap, or leave a gap."""
    end = 0
    for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        num_bytes = DTYPE_BYTES.get(entry["dtype"], 0) * math.prod(entry["shape"])
        if entry["dtype"] in DTYPE_BYTES and stop - start != num_bytes:
            yield Fault(
                f"{file}: {key} takes {stop - start} bytes; {entry['dtype']} "
                f"{list(entry['shape'])} takes {num_bytes}",
                "write the file again",
            )
        if start != end:
            yield Fault(
                f"{file}: {key} begins at byte {start} of the data; the tensor before it ends at "
                f"{end}",
                "write the file again",
            )
        end = stop


def _double_faults(stored: list[Stored]) -> Iterator[Fault]:
    files = defaultdict(list)
    for place in stored:
        files[place.key].append(place.file)
    for key, names in files.items():
        if len(names) > 1:
            yield Fault(
                f"{key} lies in {' and in '.join(names)}", "remove the file that is too much"
            )


def _missing_files(index: Mapping[str, str], on_disk: list[str]) -> Iterator[Fault]:
    """Files that the folder or the index lacks."""
    named = set(index.values())
    for file in sorted(named - set(on_disk)):
        count = sum(f == file for f in index.values())
        yield Fault(f"{file} is missing; the index places {count} tensors in it", "copy it")
    for file in sorted(set(on_disk) - named):
        yield Fault(f"{file} is in no line of the index: no engine reads it", f"mend {INDEX_NAME}")


def _misplaced(index: Mapping[str, str], files: Mapping[str, str]) -> Iterator[Fault]:
    """Keys that lie elsewhere than the index says, nowhere, or without its knowing."""
    moved, gone, unlisted = defaultdict(list), defaultdict(list), defaultdict(list)
    readable, named = set(files.values()), set(index.values())
    for key, file in index.items():
        if files.get(key, file) != file:
            moved[file, files[key]].append(key)
        elif key not in files and file in readable:
            gone[file].append(key)
    for key in [key for key, file in files.items() if key not in index and file in named]:
        unlisted[files[key]].append(key)
    for (said, file), keys in moved.items():
        message = f"the index places {_counted(keys)} in {said}, but {_they(keys)} in {file}"
        yield Fault(message, f"mend {INDEX_NAME}")
    for file, keys in gone.items():
        message = f"the index places {_counted(keys)} in {file}, which does not hold {_it(keys)}"
        yield Fault(message, "copy the file again, or mend the index")
    for file, keys in unlisted.items():
        message = f"missing in the index: {_counted(keys)}, in {file}; engines will not load "
        yield Fault(message + _it(keys), f"add {_it(keys)} to {INDEX_NAME}")


def _without_index(on_disk: list[str]) -> Iterator[Fault]:
    if not on_disk:
        yield Fault("no *.safetensors in the folder", "weights in other formats are not read")
    elif on_disk != [ONE_FILE]:
        yield Fault(
            f"{several(on_disk)}, but no {INDEX_NAME}: transformers looks for it, or for "
            f"{ONE_FILE} alone",
            "write the index",
        )


def _counted(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{len(keys)} tensors ({several(sorted(keys))})"


def _they(keys: list[str]) -> str:
    return "it lies" if len(keys) == 1 else "they lie"


def _it(keys: list[str]) -> str:
    return "it" if len(keys) == 1 else "them"


def foreign_files(folder: Path, config: Mapping[str, Any]) -> Iterator[Fault]:
    """Files that run code when they are opened, and code that the config promises but is not here.

    Args:
        folder: The checkpoint.
        config: Its config.json.
    """
    for file in sorted(p.name for p in folder.iterdir() if p.suffix.lower() in PICKLES):
        yield Fault(
            f"{file} is, by its name, a pickle: whoever opens it runs what its writer put in",
            "remove it: safetensors and JSON say all that a checkpoint needs",
        )
    for name, target in sorted((config.get("auto_map") or {}).items()):
        for value in target if isinstance(target, list) else [target]:
            if not isinstance(value, str):
                continue
            repository, _, place = value.rpartition("--")
            module = place.split(".")[0] + ".py"
            if repository:
                yield Fault(
                    f"auto_map.{name} takes code from another repository, {repository}",
                    "put the file beside the checkpoint and name it without '--'",
                )
            elif not (folder / module).is_file():
                yield Fault(
                    f"auto_map.{name} names {module}, which is not in the folder",
                    "copy it, or remove auto_map from config.json",
                )
