"""The manifest of a finished stage: what went in, what came out, and what was said on the way."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.contents import decides
from fretsaw.checkpoint.lineage import hash_file
from fretsaw.checkpoint.writer import write_json
from fretsaw.errors import RunError

CHILD = "child"
"""Folder of a checkpoint inside a stage's."""

MANIFEST = "manifest.json"
STARTED = "started.json"
VERSIONED = ("fretsaw", "torch", "transformers", "scipy")


@dataclass(frozen=True)
class Account:
    """What is kept of the making of a result, beside the result.

    Attributes:
        seconds: It took.
        peak_bytes: Largest resident memory of a process meanwhile.
        warnings: That were given.
    """

    seconds: float
    peak_bytes: int
    warnings: Sequence[str]


def write_manifest(
    folder: Path,
    name: str,
    *,
    inputs: Mapping[str, Any],
    account: Account,
    texts: Mapping[str, Any] | None = None,
) -> None:
    """Write what a stage was made from, the checksums of what lies in its folder, its account.

    `texts` is what was found in the text of each purpose that the stage reads.
    """
    ours = [folder / (own + end) for own in (STARTED, MANIFEST) for end in ("", ".new")]
    files = (p for p in folder.rglob("*") if p.is_file() and p not in ours)
    manifest = {
        "stage": name,
        "inputs": inputs,
        "texts": dict(texts or {}),
        "results": {str(p.relative_to(folder)): hash_file(p) for p in sorted(files)},
        "versions": {name: version(name) for name in VERSIONED},
        "seconds": round(account.seconds, 3),
        "peak_bytes": account.peak_bytes,
        "warnings": list(dict.fromkeys(account.warnings)),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_json(folder / MANIFEST, manifest | {"sha256": digest(manifest)})


def stage_digest(folder: Path) -> str:
    """Fingerprint of a finished stage's results, from its manifest.

    Of a checkpoint among them, what decides nothing (licences, templates) is left out.
    """
    results = read_manifest(folder)["results"]
    return digest({name: value for name, value in results.items() if _decides(name)})


def _decides(name: str) -> bool:
    place, _, inside = name.partition("/")
    return place != CHILD or decides(inside)


def account_of(folder: Path) -> Account:
    """Account of a finished stage, from its manifest."""
    manifest = read_manifest(folder)
    return Account(manifest["seconds"], manifest.get("peak_bytes", 0), manifest.get("warnings", ()))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Manifest of a finished stage.

    Raises:
        RunError: it is missing or damaged.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        is_whole = manifest.pop("sha256") == digest(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise RunError(
            f"{folder / MANIFEST} is missing or damaged",
            "run that stage again, or `fretsaw compress`",
        )
    return manifest


def digest(data: object) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def damage(folder: Path) -> str | None:
    """Which results of a finished stage are gone or differ from their checksums, in words."""
    results = read_manifest(folder)["results"]
    gone = [name for name in results if not (folder / name).is_file()]
    if gone:
        return f"{', '.join(gone[:3])} is missing"
    bad = [name for name, value in results.items() if hash_file(folder / name) != value]
    return f"{', '.join(bad[:3])} does not match its checksum" if bad else None


def warnings_of(folder: Path) -> tuple[str, ...]:
    """Warnings that a finished stage gave; they are shown again where it is skipped."""
    return tuple(read_manifest(folder).get("warnings", ()))
