"""Everything about a checkpoint that can be verified from its files: all faults, check by check.

Nothing is unpickled, no code of the folder is run, and no weight is read but a tied head's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.agreement import (
    Named,
    dtype_faults,
    naming_faults,
    presence_faults,
    shape_faults,
)
from fretsaw.checkpoint.contents import TOKENIZER_FILES
from fretsaw.checkpoint.header import Fault
from fretsaw.checkpoint.listing import Listing, foreign_files, list_tensors
from fretsaw.checkpoint.reader import read_config, several
from fretsaw.checkpoint.tokenizer import code_faults, tokenizer_faults
from fretsaw.errors import CheckpointError, FretsawError, UnsupportedModelError
from fretsaw.families import family_of
from fretsaw.families.quantised import CONFIG_KEY, LEGACY_FILE

HALVES = ("BF16", "F16")
WHOLE_FLOATS = ("F64", "F32", *HALVES)


@dataclass(frozen=True)
class Check:
    """One check and what it found.

    Attributes:
        name: In a word or two.
        looked_at: What it has seen, for the reader of the table.
        faults: What is wrong.
        not_run: Why it was not run; empty if it was.
        answer: What it says where sound or not is no answer.
    """

    name: str
    looked_at: str = ""
    faults: tuple[Fault, ...] = ()
    not_run: str = ""
    answer: str = ""


@dataclass(frozen=True)
class Verification:
    """What was verified of a checkpoint, and what is wrong with it.

    Attributes:
        folder: The checkpoint.
        family: Who reads its config; empty for a model that fretsaw cannot cut.
        checks: In the order in which they were run.
        texts: Prompt and greedy continuation, where text was generated.
    """

    folder: Path
    family: str
    checks: tuple[Check, ...]
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All that is wrong."""
        return tuple(fault for check in self.checks for fault in check.faults)

    def with_check(self, check: Check, texts: Iterable[tuple[str, str]] = ()) -> Verification:
        """With one more check."""
        return replace(self, checks=(*self.checks, check), texts=(*self.texts, *texts))

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "folder": str(self.folder),
            "family": self.family,
            "is_sound": not self.faults,
            "checks": [asdict(check) for check in self.checks],
            "texts": [{"prompt": p, "continuation": t} for p, t in self.texts],
        }


def verify_files(folder: Path) -> Verification:
    """Verify files, index, headers, config, dtypes, names and tokenizer of anybody's checkpoint.

    Args:
        folder: In Hugging Face layout, of any architecture; one that fretsaw cannot cut is verified
            without its tensor table.

    Raises:
        CheckpointError: there is no such folder.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder", "give the folder that holds config.json")
    listing = list_tensors(folder)
    checks = [Check("files", _files_seen(listing), listing.faults)]
    try:
        config = read_config(folder)
    except CheckpointError as error:
        return Verification(folder, "", (*checks, Check("config", faults=(_as_fault(error),))))
    checks.append(Check("no code", "*.bin, *.pt, auto_map", tuple(foreign_files(folder, config))))
    try:
        named = Named.of(folder, listing, config=config, family=family_of(config))
    except UnsupportedModelError as error:
        family = ""
        checks.append(Check("config", not_run=f"{error.message}: no tensor table to compare with"))
        checks.append(_general_dtypes(folder, listing, config=config))
    except CheckpointError as error:
        family = ""
        checks.append(Check("config", str(config.get("model_type")), (_as_fault(error),)))
    else:
        family = named.family.name
        checks += _table_checks(named, is_quantised=is_quantised(folder, config))
    checks.append(_tokenizer(folder, config))
    return Verification(folder, family, tuple(checks))


def _as_fault(error: FretsawError) -> Fault:
    return Fault(error.message, error.hint)


def _files_seen(listing: Listing) -> str:
    return f"{len(listing.stored)} tensors in {len(listing.files)} files, index and headers"


def is_quantised(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint says that its weights are in packed formats."""
    return CONFIG_KEY in config or (folder / LEGACY_FILE).is_file()


def _table_checks(named: Named, *, is_quantised: bool) -> list[Check]:
    if is_quantised:
        return [_names(named)]
    known = {name for row in named.rows for name, _ in row.names()}
    extra = [name for name in named.places if name not in known]
    dtypes = Counter(place.dtype for place in named.places.values())
    return [
        Check(
            "tensors",
            f"{len(known)} that config.json asks for",
            tuple(presence_faults(named, extra)),
        ),
        Check("shapes", "every axis against config.json", tuple(shape_faults(named))),
        Check(
            "dtypes",
            ", ".join(f"{dtype} × {count}" for dtype, count in dtypes.most_common()),
            tuple(dtype_faults(named, quantised=())),
        ),
        _names(named),
    ]


def _names(named: Named) -> Check:
    readers = ", ".join(naming.engine for naming in named.family.namings)
    return Check("names", f"as {readers} look for them", tuple(naming_faults(named)))


def _general_dtypes(folder: Path, listing: Listing, *, config: Mapping[str, Any]) -> Check:
    """What can be said of dtypes without knowing the tensors: no packed ones, no mixed halves."""
    dtypes = Counter(place.dtype for place in listing.stored)
    seen = ", ".join(f"{dtype} × {count}" for dtype, count in dtypes.most_common())
    if is_quantised(folder, config):
        return Check("dtypes", seen, not_run="quantised, and no tensor table to compare with")
    return Check("dtypes", seen, tuple(_odd_dtypes(listing, dtypes)))


def _odd_dtypes(listing: Listing, dtypes: Counter[str]) -> Iterator[Fault]:
    packed = [p.key for p in listing.stored if p.dtype not in WHOLE_FLOATS and len(p.shape) > 1]
    if packed:
        yield Fault(
            f"wrong dtype: {len(packed)} matrices are not stored as floating point, but "
            f"config.json has no {CONFIG_KEY}: {several(packed)}",
            "say in config.json how they are quantised",
        )
    if all(dtypes[half] for half in HALVES):
        rare = min(HALVES, key=lambda half: dtypes[half])
        names = [p.key for p in listing.stored if p.dtype == rare]
        yield Fault(
            f"wrong dtype: {len(names)} tensors are stored in {rare}, the others are not: "
            f"{several(names)}",
            "convert them",
        )


def _tokenizer(folder: Path, config: Mapping[str, Any]) -> Check:
    found = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    faults = (*code_faults(folder), *tokenizer_faults(folder, config))
    return Check("tokenizer", ", ".join(found), faults)
