"""Every tensor of a quantised checkpoint, known before a weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from fretsaw.checkpoint.reader import Checkpoint, main_dtype
from fretsaw.checkpoint.writer import Planned
from fretsaw.core.precision import LINEAR, QUANTISED, Precision, WeightKind, kind_of, num_bytes
from fretsaw.errors import RecipeError, ShapeError
from fretsaw.families import Row
from fretsaw.families.mixers import KV_SCALES
from fretsaw.families.quantised import (
    BESIDE,
    LayoutName,
    Quantisation,
    module_of,
    tree_of,
)
from fretsaw.families.shared_keys import with_dtype
from fretsaw.quant.formats import BLOCK, check_blocks

Part = Literal["copy", "weight", "block_scale", "scale", "input_scale", "cache_scale"]
DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
WRITABLE = ("fp8", "nvfp4")

Group = tuple[object, ...]


@dataclass(frozen=True)
class Piece:
    """One tensor of the file.

    Attributes:
        planned: Key, dtype and shape.
        source: Canonical name of the weight that it comes from; of a cache's scale its own.
        part: What it is of that weight.
        format: Number format of the weight.
        group: Weights that engines fuse, and that therefore share a scale.
    """

    planned: Planned
    source: str
    part: Part
    format: str
    group: Group


@dataclass(frozen=True)
class ExportPlan:
    """What will be written.

    Attributes:
        pieces: Tensors in file order; the parts of a group follow each other.
        members: Group -> canonical names of its weights.
        said: What the config will say.
        config: The whole config.json but for what is said.
        origins: Weight -> the one of the source that it is read from, where that is another: a
            head that is tied there has its own here, since transformers ties no nemotron_h.
    """

    pieces: tuple[Piece, ...]
    members: Mapping[Group, Sequence[str]]
    said: Quantisation
    config: Mapping[str, Any]
    origins: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(piece.planned.num_bytes for piece in self.pieces)

    @cached_property
    def needs_inputs(self) -> tuple[str, ...]:
        """Weights whose inputs need a static scale."""
        return tuple(p.source for p in self.pieces if p.part == "input_scale")


def plan_export(
    source: Checkpoint, precision: Precision, *, layout: LayoutName = "modelopt"
) -> ExportPlan:
    """Every tensor of a checkpoint under a precision.

    Kinds that no linear map multiplies by, and the prediction head, stay as they are stored.

    Args:
        source: In 16 or 32 bits.
        precision: Format of each kind of weight.
        layout: Whose names and keys.

    Raises:
        RecipeError: the precision has a rule that matches nothing, or that is not written.
        ShapeError: a weight's rows fall into no blocks.
    """
    shape = replace(source.shape, is_tied=False)
    table = source.family.rows(shape)
    rows = [(row, kind_of(row.tensor, part=row.part)) for row in table]
    _check(precision, rows)
    config = source.family.write_config(shape, source.config)
    config = with_dtype(config, main_dtype(source.stored.values()))
    planner = _Planner(source, precision, layout, config, _origins(source, table))
    members = planner.members(rows)
    pieces: list[Piece] = []
    written: set[Group] = set()
    for row, _ in rows:
        for name, bound in row.names():
            group = _group(row, bound=bound)
            if planner.format_of(row) not in QUANTISED:
                pieces.append(planner.copy(row, name))
            elif group not in written:
                written.add(group)
                for member, size in members[group]:
                    pieces += planner.parts(member, row, shape=size, group=group)
        pieces += planner.cache(row)
    names = {group: [name for name, _ in found] for group, found in members.items()}
    return ExportPlan(tuple(pieces), names, planner.said(rows), config, planner.origins)


def _origins(source: Checkpoint, table: Sequence[Row]) -> dict[str, str]:
    if not source.shape.is_tied:
        return {}
    named = {row.part: row.tensor.name for row in table}
    return {named["head"]: named["embedding"]}


def _check(precision: Precision, rows: Sequence[tuple[Row, WeightKind]]) -> None:
    precision.check_kinds({kind for _, kind in rows})
    if not precision.quantised:
        raise RecipeError(
            f"precision {precision.name!r} quantises nothing", "take fp8, nvfp4 or nvfp4-w4a16"
        )
    check_rows([row for row, _ in rows], precision)


def check_rows(rows: Sequence[Row], precision: Precision) -> None:
    """Check that weights can be written in the formats that a precision has for them.

    Raises:
        RecipeError: a format that is not written, or not for inputs in 16 bits.
        ShapeError: a weight's rows fall into no blocks.
    """
    for row in rows:
        kind = kind_of(row.tensor, part=row.part)
        number_format = format_of_row(row, precision)
        if number_format not in QUANTISED:
            continue
        if number_format not in WRITABLE:
            raise RecipeError(
                f"fretsaw writes no {number_format} (asked for by {precision.name!r})",
                f"take one of {', '.join(WRITABLE)} for {kind}",
            )
        if number_format == "fp8" and kind in precision.weight_only:
            raise RecipeError(
                f"precision {precision.name!r}: {kind} is weight-only in fp8, which no layout has",
                "take nvfp4 for it, or leave it out of weight_only",
            )
        if number_format == "nvfp4":
            try:
                check_blocks(row.tensor.shape(row.sizes)[-1])
            except ShapeError as error:
                raise ShapeError(f"{row.tensor.name}: {error.message}", error.hint) from error


def format_of_row(row: Row, precision: Precision) -> str:
    """Format of a row's weights under a precision; ``stored`` for those that stay as they are."""
    kind = kind_of(row.tensor, part=row.part)
    if kind not in (*LINEAR, "embedding") or len(row.tensor.axes) == 1:
        return "stored"
    return precision.format_of(kind, row.block if row.part == "block" else None)


def fused_with(row: Row) -> Group:
    """What engines fuse into one product: weights of a block and kind that read the same."""
    return (row.part, row.block, kind_of(row.tensor, part=row.part), row.tensor.axes[-1])


def _group(row: Row, *, bound: Mapping[str, int]) -> Group:
    """The same of one copy of a row's weights, such as one expert's."""
    return (*fused_with(row), tuple(bound.items()))


def row_bytes(row: Row, number_format: str) -> int:
    """Bytes of a row's weights in a format, scales of weights and inputs included."""
    shape = row.tensor.shape(row.sizes)
    if number_format not in QUANTISED:
        return round(num_bytes(row.tensor.numel(row.sizes), number_format))
    parts = parts_of("", shape, number_format=number_format, layout="modelopt", has_inputs=True)
    return row.tensor.copies(row.sizes) * sum(part.num_bytes for part in parts.values())


def parts_of(
    key: str,
    shape: tuple[int, ...],
    *,
    number_format: str,
    layout: LayoutName,
    has_inputs: bool,
) -> dict[Part, Planned]:
    """Codes and scales that one weight is stored as, in file order.

    Args:
        key: Of the weight, canonical or stored: those of the parts follow from it.
        shape: (out, in).
        number_format: ``fp8`` or ``nvfp4``.
        layout: Whose names.
        has_inputs: Whether its inputs have a static scale.
    """
    beside = BESIDE[layout, number_format]
    shapes: dict[Part, tuple[str, tuple[int, ...]]] = {"weight": ("F8_E4M3", shape)}
    if number_format == "nvfp4":
        shapes["weight"] = ("U8", (*shape[:-1], shape[-1] // 2))
        shapes["block_scale"] = ("F8_E4M3", (*shape[:-1], shape[-1] // BLOCK))
    shapes["scale"] = ("F32", beside.scale_shape)
    if has_inputs:
        shapes["input_scale"] = ("F32", beside.scale_shape)
    return {part: Planned(beside.key(key, part), *rest) for part, rest in shapes.items()}


@dataclass(frozen=True)
class _Planner:
    source: Checkpoint
    precision: Precision
    layout: LayoutName
    config: Mapping[str, Any]
    origins: Mapping[str, str]

    def format_of(self, row: Row) -> str:
        return format_of_row(row, self.precision)

    def key(self, name: str) -> str:
        return self.source.family.stored(name, self.config)

    def members(
        self, rows: Sequence[tuple[Row, WeightKind]]
    ) -> dict[Group, list[tuple[str, tuple[int, ...]]]]:
        """Name and shape of the weights of each quantised group."""
        found: dict[Group, list[tuple[str, tuple[int, ...]]]] = {}
        for row, _ in rows:
            if self.format_of(row) in QUANTISED:
                shape = row.tensor.shape(row.sizes)
                for name, bound in row.names():
                    found.setdefault(_group(row, bound=bound), []).append((name, shape))
        return found

    def copy(self, row: Row, name: str) -> Piece:
        number_format = self.format_of(row)
        dtype = DTYPES.get(number_format, self.source.dtype_of(self.origins.get(name, name)))
        planned = Planned(self.key(name), dtype, row.tensor.shape(row.sizes))
        return Piece(planned, name, "copy", number_format, ())

    def parts(
        self, name: str, row: Row, *, shape: tuple[int, ...], group: Group
    ) -> Iterator[Piece]:
        """Codes and scales of one quantised weight of a group that this row begins."""
        number_format = self.format_of(row)
        found = parts_of(
            self.key(name),
            shape,
            number_format=number_format,
            layout=self.layout,
            has_inputs=kind_of(row.tensor, part=row.part) not in self.precision.weight_only,
        )
        for part, planned in found.items():
            yield Piece(planned, name, part, number_format, group)

    def cache(self, row: Row) -> Iterator[Piece]:
        """The scale of what a weight puts into an FP8 cache."""
        if row.part == "block" and self.precision.kv == "fp8" and row.local in KV_SCALES:
            name = row.tensor.name.removesuffix(row.local) + KV_SCALES[row.local]
            shape = BESIDE[self.layout, "fp8"].scale_shape
            yield Piece(Planned(self.key(name), "F32", shape), name, "cache_scale", "fp8", ())

    def said(self, rows: Sequence[tuple[Row, WeightKind]]) -> Quantisation:
        """What the config says: algorithm of each module, and every matrix that is left alone."""
        algorithms: dict[str, str] = {}
        ignored: dict[str, None] = {}
        for row, kind in rows:
            keys = [self.key(name) for name, _ in row.names()]
            if self.format_of(row) in QUANTISED:
                algorithms |= dict.fromkeys(map(module_of, keys), self._algorithm(row, kind))
            elif len(row.tensor.axes) > 1:
                ignored |= dict.fromkeys(self._patterns(row, keys))
        return Quantisation(self.layout, algorithms, tuple(ignored), self.precision.kv == "fp8")

    def _algorithm(self, row: Row, kind: WeightKind) -> str:
        name = self.format_of(row).upper()
        return f"W4A16_{name}" if kind in self.precision.weight_only else name

    def _patterns(self, row: Row, keys: Sequence[str]) -> list[str]:
        """Modules of a row; one pattern for the prediction head, one for a block's experts."""
        if row.part == "mtp":
            return [tree_of(key) for key in keys[:1]]
        if row.tensor.name_dims:
            before, _, _ = self.key(row.tensor.name).partition(".{")
            return [before + "*"]
        return [module_of(key) for key in keys]
