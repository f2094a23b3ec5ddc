"""Whether the tensors of a checkpoint are those that its config describes, axis by axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from fretsaw.checkpoint.header import Fault
from fretsaw.checkpoint.listing import Listing
from fretsaw.checkpoint.reader import Stored, main_dtype, named_places, several
from fretsaw.core.engines import has_equal_blocks
from fretsaw.core.precision import may_stay_float32
from fretsaw.core.shape import ModelShape
from fretsaw.errors import nearest
from fretsaw.families import Family, Row
from fretsaw.families.shared_keys import stated_dtype

DISAGREEMENT = "config.json and weights do not belong together: correct the one that is wrong"


@dataclass(frozen=True)
class Named:
    """A listing under a family's canonical names.

    Attributes:
        folder: The checkpoint.
        config: Its config.
        family: Who reads it.
        shape: What the config describes.
        places: Canonical name -> where it lies.
        lost: Canonical names in files that are missing or unreadable, which are faults already.
        doubles: Keys that mean the same tensor as another.
    """

    folder: Path
    config: Mapping[str, Any]
    family: Family
    shape: ModelShape
    places: Mapping[str, Stored]
    lost: frozenset[str]
    doubles: tuple[str, ...]

    @classmethod
    def of(
        cls, folder: Path, listing: Listing, *, config: Mapping[str, Any], family: Family
    ) -> Named:
        """Name what was listed.

        Raises:
            CheckpointError, UnsupportedModelError: the config describes no model.
        """
        shape = family.read_config(config)
        places: dict[str, Stored] = {}
        doubles = []
        for name, place in (n for stored in listing.stored for n in named_places(stored, family)):
            if places.setdefault(name, place).key != place.key:
                doubles.append(f"{places[name].key} and {place.key}")
        lost = frozenset(family.canonical(key) for key in listing.lost)
        return cls(folder, config, family, shape, places, lost, tuple(doubles))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The tensor table of the config."""
        return self.family.rows(self.shape)


def presence_faults(named: Named, extra: Iterable[str]) -> Iterator[Fault]:
    """Tensors that the config promises and the folder lacks, and the other way round.

    Args:
        named: The checkpoint.
        extra: Stored names that the table does not know; companions of quantised weights left out.
    """
    extra = list(extra)
    missing: dict[bool, list[str]] = defaultdict(list)
    for row in named.rows:
        names = [name for name, _ in row.names()]
        missing[row.part == "mtp"] += [
            n for n in names if n not in named.places and n not in named.lost
        ]
    if named.doubles:
        message = f"the same tensor under two names: {several(named.doubles)}"
        yield Fault(message, "remove the one that does not belong to the model")
    if names := missing[False]:
        near = nearest(names[0], extra)
        hint = f"stored under another name, perhaps {near!r}?" if near else "copy them again"
        yield Fault(
            f"missing: {len(names)} tensors that the config asks for: {several(names)}", hint
        )
    by_part = defaultdict(list)
    for name in extra:
        by_part[named.family.part_of(name)].append(name)
    yield from _mtp_faults(named, missing=missing[True], extra=by_part.pop("mtp", []))
    if named.shape.is_tied:
        yield from _tied_faults(named, by_part.pop("head", []))
    if others := [name for names in by_part.values() for name in names]:
        message = f"extra: {len(others)} tensors that the config knows nothing of: "
        yield Fault(message + several(others), "remove them, or correct config.json")


def _mtp_faults(named: Named, *, missing: list[str], extra: list[str]) -> Iterator[Fault]:
    promised = [n for row in named.rows if row.part == "mtp" for n, _ in row.names()]
    hint = "copy the head too, or say in config.json that there is none"
    if promised and len(missing) == len(promised):
        message = "the config promises a prediction head (MTP), but none of its tensors are stored"
        yield Fault(message, hint)
    elif missing:
        message = f"the prediction head (MTP) lacks {len(missing)} tensors: {several(missing)}"
        yield Fault(message, hint)
    if extra:
        what = "no such head" if not promised else "a head without them"
        yield Fault(
            f"{len(extra)} tensors of a prediction head (MTP) are stored, but the config promises "
            f"{what}: {several(extra)}",
            "say in config.json that there is one, or remove them",
        )


def _tied_faults(named: Named, heads: list[str]) -> Iterator[Fault]:
    embedding = next(row.tensor.name for row in named.rows if row.part == "embedding")
    for name in heads:
        if embedding in named.places and _are_same(named, (name, embedding)):
            yield Fault(
                f"the tied head is stored twice: {named.places[name].key} repeats "
                f"{named.places[embedding].key}",
                "remove it, or untie the head in config.json: some engines tie, some read it",
            )
        else:
            yield Fault(
                f"the config ties the head to the embedding, but {named.places[name].key} differs "
                "from it: engines that tie ignore it, the others use it",
                "untie the head in config.json if the stored one is meant; else remove it",
            )


def _are_same(named: Named, names: Iterable[str]) -> bool:
    tensors = []
    for place in (named.places[name] for name in names):
        with safe_open(named.folder / place.file, framework="pt") as file:
            tensors.append(file.get_tensor(place.key))
    return bool(tensors[0].shape == tensors[1].shape and tensors[0].equal(tensors[1]))


def shape_faults(named: Named) -> Iterator[Fault]:
    """Tensors of another shape than the config's, told by the entry of the config that disagrees.

    Where another value of one dimension explains every wrong tensor of a block, and no right
    tensor contradicts it, that entry is named; otherwise the tensors are.
    """
    blocks: dict[tuple[str, int | None], list[Row]] = defaultdict(list)
    for row in named.rows:
        blocks[row.part, row.block].append(row)
    blamed: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for rows in blocks.values():
        wrong = [(row, name) for row in rows for name in _names(named, row, are_right=False)]
        causes = _causes(named, rows, wrong=wrong) if wrong else ()
        if causes:
            blamed[causes] += [name for _, name in wrong]
        else:
            yield from (_wrong_shape(named.places[name], row) for row, name in wrong)
    for causes, names in blamed.items():
        seen = named.places[names[0]]
        others = f" ({len(names)} tensors disagree)" if len(names) > 1 else ""
        yield Fault(
            f"{', or '.join(causes)}: {seen.key} is {list(seen.shape)}{others}", DISAGREEMENT
        )


def _names(named: Named, row: Row, *, are_right: bool) -> list[str]:
    """Stored tensors of a row that have the config's shape, or another."""
    expected = row.tensor.shape(row.sizes)
    stored = [name for name, _ in row.names() if name in named.places]
    return [name for name in stored if (named.places[name].shape == expected) is are_right]


def _wrong_shape(place: Stored, row: Row) -> Fault:
    expected = list(row.tensor.shape(row.sizes))
    return Fault(
        f"{place.key} is {list(place.shape)}, the config says {expected}",
        DISAGREEMENT,
    )


def _causes(
    named: Named, rows: Sequence[Row], *, wrong: Sequence[tuple[Row, str]]
) -> tuple[str, ...]:
    """What could be wrong in the config, in words; empty if no single dimension explains it."""
    right = [row for row in rows if _names(named, row, are_right=True)]
    fixed = {dim for row in right for dim in _dims(row)}
    explained = [_explanations(row, named.places[name].shape) for row, name in wrong]
    keys = named.family.config_keys(named.config, wrong[0][0])
    causes = []
    for dim, value in sorted(frozenset.intersection(*explained)):
        if dim not in fixed and dim in keys:
            says = wrong[0][0].sizes[dim]
            causes.append(f"{keys[dim]} is {says}, but the tensors say {value}")
    return tuple(causes)


def _dims(row: Row) -> frozenset[str]:
    """Dimensions on the axes of a row."""
    terms = (term for axis in row.tensor.axes for term in axis.terms)
    return frozenset(dim for term in terms for dim in term if not dim.isdigit())


def _explanations(row: Row, stored: tuple[int, ...]) -> frozenset[tuple[str, int]]:
    """Each dimension that would give the stored shape with one other value, and that value.

    The length of an axis is linear in every dimension: length = step * value + rest.
    """
    found = set()
    for dim in _dims(row):
        for axis, length in zip(row.tensor.axes, stored, strict=False):
            rest = axis.size({**row.sizes, dim: 0})
            step = axis.size({**row.sizes, dim: 1}) - rest
            value = (length - rest) // step if step else 0
            if value > 0 and row.tensor.shape({**row.sizes, dim: value}) == stored:
                found.add((dim, value))
    return frozenset(found)


def dtype_faults(named: Named, quantised: Container[str]) -> Iterator[Fault]:
    """Weights in another dtype than the config says.

    float32 is right beside any other for vectors, routers and what the table keeps in float32;
    where the config gives no dtype, the one of most bytes is taken.

    Args:
        named: The checkpoint.
        quantised: Canonical names that a quantisation plan accounts for.
    """
    plain = {
        name: (named.places[name], row)
        for row in named.rows
        for name, _ in row.names()
        if name in named.places and name not in quantised
    }
    said = stated_dtype(named.config)
    expected = said or main_dtype(place for place, _ in plain.values())
    wrong: dict[str, list[str]] = defaultdict(list)
    for name, (place, row) in plain.items():
        is_small = may_stay_float32(row.tensor)
        if place.dtype != expected and not (is_small and place.dtype == "F32"):
            wrong[place.dtype].append(name)
    source = "the config says" if said else "most of the weights are"
    for dtype, names in wrong.items():
        what = f"{len(names)} tensors are" if len(names) > 1 else "one tensor is"
        yield Fault(
            f"wrong dtype: {what} stored in {dtype}, {source} {expected}: {several(names)}",
            "convert them, or correct dtype in config.json",
        )


def naming_faults(named: Named) -> Iterator[Fault]:
    """Keys of the trunk that an engine would not find under its own naming rules."""
    is_equal = has_equal_blocks(named.shape)
    keys = {
        place.key
        for name, place in named.places.items()
        if named.family.part_of(name) not in ("head", "mtp")
    }
    for naming in named.family.namings:
        unread = sorted(key for key in keys if not naming.finds(key, is_equal=is_equal))
        if unread:
            yield Fault(
                f"{naming.engine} would not find {len(unread)} of {len(keys)} tensors: "
                f"{several(unread)}",
                f"it looks for {naming.expects}; `fretsaw export` writes them so",
            )
