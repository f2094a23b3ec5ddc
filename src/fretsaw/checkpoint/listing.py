"""What the files of a checkpoint folder hold, and all that is wrong with them.

`Checkpoint` opens what is sound and refuses the rest at the first fault; this looks at everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.contents import (
    INDEX_NAME,
    ONE_FILE,
    PICKLES,
    WEIGHTS,
    not_a_file,
    read_index,
)
from fretsaw.checkpoint.header import Fault, length_faults, parse_header, span_faults
from fretsaw.checkpoint.reader import Stored, several
from fretsaw.errors import CheckpointError


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
    index = _read_index(folder, faults)
    named = set(index.values()) if index else set()
    found = {p.name: not_a_file(p) for p in sorted(folder.glob(f"*{WEIGHTS}"))}
    on_disk = [name for name, problem in found.items() if not problem]
    dead = {f: found.get(f, "not there") for f in named | set(found) if f not in on_disk}
    stored: list[Stored] = []
    unreadable = named - set(on_disk)
    for name in on_disk:
        try:
            header, end = parse_header(folder / name)
        except CheckpointError as error:
            faults.append(Fault(error.message, error.hint))
            unreadable.add(name)
            continue
        faults += length_faults(folder / name, end)
        faults += span_faults(name, header)
        stored += [Stored(name, k, e["dtype"], tuple(e["shape"])) for k, e in header.items()]
    faults += _double_faults(stored)
    files = {place.key: place.file for place in stored}
    faults += _missing_files(index, on_disk, dead=dead) if index else _without_index(on_disk, dead)
    faults += _misplaced(index, files) if index else ()
    lost = frozenset(key for key, file in (index or {}).items() if file in unreadable)
    return Listing(tuple(on_disk), tuple(stored), lost, tuple(faults))


def _read_index(folder: Path, faults: list[Fault]) -> dict[str, str] | None:
    try:
        return read_index(folder)
    except CheckpointError as error:
        faults.append(Fault(error.message, error.hint))
        return None


def _double_faults(stored: list[Stored]) -> Iterator[Fault]:
    files = defaultdict(list)
    for place in stored:
        files[place.key].append(place.file)
    for key, names in files.items():
        if len(names) > 1:
            yield Fault(
                f"{key} lies in {' and in '.join(names)}", "remove the file that is too much"
            )


def _missing_files(
    index: Mapping[str, str], on_disk: list[str], *, dead: Mapping[str, str]
) -> Iterator[Fault]:
    """Files that the folder or the index lacks."""
    named = set(index.values())
    for file in sorted(named - set(on_disk)):
        count = sum(f == file for f in index.values())
        what = "missing" if dead[file] == "not there" else dead[file]
        yield Fault(f"{file} is {what}; the index places {count} tensors in it", "copy it")
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


def _without_index(on_disk: list[str], dead: Mapping[str, str]) -> Iterator[Fault]:
    for file, problem in dead.items():
        if problem != "a folder":
            yield Fault(f"{file} is {problem}", "copy it, or remove it")
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
    promised = config.get("auto_map") or {}
    if not isinstance(promised, dict):
        yield Fault(f"auto_map is {promised!r:.60}, not an object", "remove it from config.json")
        return
    for name, target in sorted(promised.items()):
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
