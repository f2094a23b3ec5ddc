"""Open a checkpoint folder: config, index and headers first; a tensor only when it is asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fretsaw.checkpoint.contents import (
    CONFIG,
    INDEX_NAME,
    not_a_file,
    read_index,
    read_object,
    weight_files,
)
from fretsaw.checkpoint.header import DTYPE_BYTES, read_header
from fretsaw.core.shape import ModelShape
from fretsaw.errors import CheckpointError, nearest
from fretsaw.families import Family, Row, family_of
from fretsaw.families.base import Part

if TYPE_CHECKING:
    from torch import Tensor

    from fretsaw.checkpoint.tensors import TensorFile

CUT_DTYPES = ("BF16", "F16", "F32")
"""Dtypes in which a checkpoint can be cut; a quantised one cannot."""

SEVERAL = 5
OPEN_FILES = 4
"""Weight files that a checkpoint keeps open at a time."""


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: file, key, and which slice of a fused tensor it is."""

    file: str
    key: str
    dtype: str
    shape: tuple[int, ...]
    slice: int | None = None


class HasDtype(Protocol):
    """A tensor, stored or planned."""

    @property
    def dtype(self) -> str:
        """In safetensors' word."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""


class Checkpoint:
    """A checkpoint folder in Hugging Face layout, read lazily by canonical tensor name.

    Raises:
        CheckpointError: the folder, its config, index or a header is missing or damaged.
        UnsupportedModelError: no family reads its config.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_config(folder)
        self.family: Family = family_of(self.config)
        self.shape: ModelShape = self.family.read_config(self.config)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The tensor table of this model."""
        return self.family.rows(self.shape)

    @cached_property
    def stored(self) -> Mapping[str, Stored]:
        """Canonical name -> where it lies; fused tensors appear once per slice."""
        found: dict[str, Stored] = {}
        for name, place in self._named_places():
            if name in found:
                raise CheckpointError(
                    f"{self.folder} holds {name!r} twice: as {found[name].key!r} in "
                    f"{found[name].file} and as {place.key!r} in {place.file}",
                    "remove the file that does not belong to the model",
                )
            found[name] = place
        return found

    def _named_places(self) -> Iterator[tuple[str, Stored]]:
        for place in _places(self.folder):
            yield from named_places(place, self.family)

    def check(self) -> None:
        """Compare every tensor with the table: none missing or extra, shapes and dtypes right.

        Raises:
            CheckpointError: the first few differences, by name.
        """
        packed = [f"{n} ({p.dtype})" for n, p in self.stored.items() if p.dtype not in CUT_DTYPES]
        if packed:
            hint = (
                f"give the checkpoint in {', '.join(CUT_DTYPES)}; "
                f"`fretsaw export {self.folder} --engine vllm --out NEW` dequantises"
            )
            _complain(self.folder, "dtype that cannot be cut", names=packed, hint=hint)
        stored = dict(self.stored)
        missing, wrong = [], []
        for row in self.rows:
            expected = row.tensor.shape(row.sizes)
            for name, _ in row.names():
                place = stored.pop(name, None)
                if place is None:
                    missing.append(name)
                elif place.shape != expected:
                    wrong.append(f"{name} is {list(place.shape)}, config says {list(expected)}")
        if wrong:
            _complain(
                self.folder, "wrong shape", names=wrong, hint="config.json and weights disagree"
            )
        if missing:
            parts = {self.family.part_of(name) for name in missing}
            hint = _hint_for_missing(missing[0], stored, parts=parts)
            _complain(self.folder, "missing tensor", names=missing, hint=hint)
        if self.shape.is_tied:
            self._drop_copy_of_embedding(stored)
        if stored:
            hint = "remove them from the folder, or correct config.json (layers, prediction head)"
            _complain(self.folder, "extra tensor", names=list(stored), hint=hint)

    def _drop_copy_of_embedding(self, extra: dict[str, Stored]) -> None:
        """A tied head that is stored all the same does no harm where it is the embedding."""
        embedding = next(row.tensor.name for row in self.rows if row.part == "embedding")
        for name in [n for n in extra if self.family.part_of(n) == "head"]:
            if not self.read(name).equal(self.read(embedding)):
                raise CheckpointError(
                    f"{self.folder}: config.json ties the head to the embedding, but {name} "
                    "differs from it",
                    "untie them in config.json if the stored head is meant; else remove it",
                )
            del extra[name]

    def read(self, name: str) -> Tensor:
        """One tensor by canonical name, as stored."""
        if name not in self.stored:
            raise CheckpointError(
                f"{self.folder} has no tensor {name!r}", "run `fretsaw describe` on the folder"
            )
        place = self.stored[name]
        return self._file(place.file).read(place.key, part=place.slice)

    @cached_property
    def _file(self) -> Callable[[str], TensorFile]:
        """Name of a file -> the file, the last few held open."""
        from fretsaw.checkpoint.tensors import TensorFile  # noqa: PLC0415 - headers need no torch

        def opened(name: str) -> TensorFile:
            return TensorFile(self.folder / name)

        return lru_cache(maxsize=OPEN_FILES)(opened)

    def dtype_of(self, name: str) -> str:
        """Stored dtype of a tensor, in safetensors' words (``BF16``, ``F32``)."""
        return self.stored[name].dtype


def num_bytes(place: HasDtype) -> int:
    """Bytes of a tensor on disk."""
    return math.prod(place.shape) * DTYPE_BYTES.get(place.dtype, 1)


def main_dtype(places: Iterable[HasDtype]) -> str:
    """The dtype of most bytes, in safetensors' word; empty if there are none."""
    found: Counter[str] = Counter()
    for place in places:
        found[place.dtype] += num_bytes(place)
    return found.most_common(1)[0][0] if found else ""


def named_places(place: Stored, family: Family) -> Iterator[tuple[str, Stored]]:
    """Canonical names of a stored tensor, each with its place: several for a fused one."""
    name = family.canonical(place.key)
    fused = family.fused_axes(name)
    if fused is None or len(place.shape) != 3:  # noqa: PLR2004 - (expert, out, in)
        yield name, place
        return
    pattern, dim = fused
    for i in range(place.shape[0]):
        yield pattern.format(**{dim: i}), replace(place, shape=place.shape[1:], slice=i)


def read_config(path: Path) -> dict[str, Any]:
    """The config of a folder, or of a config file itself.

    Raises:
        CheckpointError: there is none, or it is not a JSON object.
    """
    file = path / CONFIG if path.is_dir() else path
    if problem := not_a_file(file):
        what = f"has no {CONFIG}" if path.is_dir() else "does not exist"
        if problem != "not there":
            what = f"cannot be read: {file.name} is {problem}"
        raise CheckpointError(
            f"{path} {what}; a checkpoint folder in Hugging Face layout was expected",
            f"give the folder that holds {CONFIG} and *.safetensors, or a {CONFIG} itself",
        )
    return read_object(file)


def _places(folder: Path) -> Iterator[Stored]:
    files, indexed = _weight_files(folder)
    seen: set[str] = set()
    for file in files:
        for key, entry in read_header(folder / file).items():
            if indexed is not None and indexed.get(key) != file:
                raise CheckpointError(
                    f"{folder / file} holds {key!r}, which the index places in "
                    f"{indexed.get(key, 'no file')}",
                    f"repair {INDEX_NAME}",
                )
            seen.add(key)
            yield Stored(file, key, entry["dtype"], tuple(entry["shape"]))
    if indexed is not None and (lost := sorted(set(indexed) - seen)):
        _complain(
            folder, "tensor in the index but in no file", names=lost, hint="copy the shards again"
        )


def _weight_files(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    index, files = read_index(folder), weight_files(folder)
    if not files:
        raise CheckpointError(
            f"{folder} has no *.safetensors", "fretsaw reads safetensors only, never pickles"
        )
    if gone := [f"{f} is {p}" for f in files if (p := not_a_file(folder / f))]:
        _complain(folder, "missing shard", names=gone, hint="copy the missing files")
    return files, index


def _hint_for_missing(name: str, extra: Mapping[str, Stored], *, parts: set[Part]) -> str:
    if parts == {"head"}:
        return (
            "if the model ties its head to the embedding, say tie_word_embeddings true in "
            "config.json; else copy the head"
        )
    if parts == {"mtp"}:
        return "config.json promises a prediction head: copy it too, or say that there is none"
    near = nearest(name, extra)
    return f"stored under another name, perhaps {near!r}?" if near else "copy it again"


def _complain(folder: Path, what: str, *, names: list[str], hint: str) -> None:
    raise CheckpointError(f"{folder}: {what} ({len(names)}): {several(names)}", hint)


def several(names: Sequence[str]) -> str:
    """The first few of many names."""
    return ", ".join(names[:SEVERAL]) + (" …" if len(names) > SEVERAL else "")
