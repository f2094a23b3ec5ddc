"""A child from its parent's file: which tensor comes from which, ordered, sliced, and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from fretsaw.checkpoint.assets import copy_assets, write_remote_code
from fretsaw.checkpoint.reader import Checkpoint, main_dtype, num_bytes
from fretsaw.checkpoint.slicing import prefix, reorder
from fretsaw.checkpoint.writer import Planned, write_json, write_weights
from fretsaw.core.axes import TensorAxes
from fretsaw.core.precision import may_stay_float32
from fretsaw.core.shape import ModelShape
from fretsaw.core.variant import Choice
from fretsaw.errors import CheckpointError
from fretsaw.families import Row
from fretsaw.families.shared_keys import with_dtype

Orders = Mapping[int, Mapping[str, Tensor]]
Repaired = Callable[[int, str, Mapping[str, int]], Tensor | None]
"""(parent's block, name pattern inside it, dimensions of the name) -> weights, or None."""


@dataclass(frozen=True)
class Origin:
    """Where one tensor of the child comes from.

    Attributes:
        target: Key, dtype and shape in the child.
        source: Canonical name in the parent.
        row: The parent's table row of that tensor.
        bound: Dimensions spelled in the name, such as ``{"expert": 3}``.
        new_sizes: Sizes of the dimensions in the child.
    """

    target: Planned
    source: str
    row: Row
    bound: Mapping[str, int]
    new_sizes: Mapping[str, int]


def write_child(
    parent: Checkpoint,
    choice: Choice,
    *,
    folder: Path,
    orders: Orders,
    repaired: Repaired,
    shard_bytes: int,
    dtype: str = "",
    on_tensor: Callable[[int], None] = lambda _: None,
) -> Checkpoint:
    """Stream the child of a choice into a folder, one tensor in memory at a time, and check it.

    Args:
        parent: What is cut.
        choice: One variant per block of the parent.
        folder: Existing, empty, private to the caller.
        orders: Importance order of units per block and dimension.
        repaired: Weights that stand in for a plain slice.
        shard_bytes: Size of a shard.
        dtype: As `plan_child`.
        on_tensor: Told how many tensors are written.

    Returns:
        The written checkpoint, its headers checked against the shape that was asked for.

    Raises:
        CheckpointError: what was written is not what was asked for.
        RunError: the disk is too small.
    """
    shape = choice.child_shape(parent.shape)
    origins = {o.target.key: o for o in plan_child(parent, choice, dtype=dtype)}
    config = parent.family.write_config(shape, parent.config)
    config = with_dtype(config, main_dtype(o.target for o in origins.values()))
    done = iter(range(1, len(origins) + 1))

    def read(key: str) -> Tensor:
        on_tensor(next(done))
        origin = origins[key]
        block = origin.row.block if origin.row.part == "block" else None
        if block is not None:
            weights = repaired(block, origin.row.local, origin.bound)
            if weights is not None:
                return weights
        return cut(parent, origin, orders=orders.get(block, {}) if block is not None else {})

    write_json(folder / "config.json", config)
    write_weights(folder, (o.target for o in origins.values()), read=read, shard_bytes=shard_bytes)
    copy_assets(parent.folder, folder)
    write_remote_code(folder, config)
    return _checked(folder, shape)


def plan_child(parent: Checkpoint, choice: Choice, *, dtype: str = "") -> Iterator[Origin]:
    """The origin of every tensor of the child, in file order: known before a weight is read.

    Args:
        parent: What is cut.
        choice: One variant per block of the parent.
        dtype: Of the child's weights, in safetensors' word; empty for that of each in the parent.
            What rightly is in float32 stays so.
    """
    shape = choice.child_shape(parent.shape)
    config = parent.family.write_config(shape, parent.config)
    for row, source in zip(parent.family.rows(shape), _sources(parent, choice), strict=True):
        names = zip(row.names(), source.names(), strict=False)
        for (name, bound), (source_name, _) in names:
            target = Planned(
                parent.family.stored(name, config),
                _dtype(parent.dtype_of(source_name), row, wanted=dtype),
                row.tensor.shape(row.sizes),
            )
            yield Origin(target, source_name, source, bound, row.sizes)


def _dtype(stored: str, row: Row, *, wanted: str) -> str:
    is_kept = stored == "F32" and may_stay_float32(row.tensor)
    return stored if is_kept or not wanted else wanted


def untied_bytes(parent: Checkpoint) -> int:
    """Bytes of the head that a child has and its parent shares with the embedding; else 0."""
    if not parent.shape.is_tied:
        return 0
    embedding = next(row.tensor.name for row in parent.rows if row.part == "embedding")
    return num_bytes(parent.stored[embedding])


def _sources(parent: Checkpoint, choice: Choice) -> Iterator[Row]:
    """The parent's row behind each row of the child; behind a tied head it is the embedding's."""
    gone = {v.block for v in choice.variants if v.is_none}
    for row in parent.family.rows(replace(parent.shape, is_tied=False)):
        if row.part == "block" and row.block in gone:
            continue
        is_tied_head = row.part == "head" and parent.shape.is_tied
        yield next(r for r in parent.rows if r.part == "embedding") if is_tied_head else row


def cut(parent: Checkpoint, origin: Origin, *, orders: Mapping[str, Tensor]) -> Tensor:
    """One tensor of the child: read, put into importance order, first units kept."""
    tensor = parent.read(origin.source)
    pattern: TensorAxes = origin.row.tensor
    relevant = {dim: order for dim, order in orders.items() if pattern.has(dim)}
    sizes = origin.row.sizes
    tensor = reorder(tensor, pattern.axes, sizes=sizes, orders=relevant, bound=origin.bound)
    return prefix(tensor, pattern.axes, old=sizes, new=origin.new_sizes)


def _checked(folder: Path, shape: ModelShape) -> Checkpoint:
    child = Checkpoint(folder)
    child.check()
    if child.shape != shape:
        raise CheckpointError(
            f"{folder} was written with another shape than was asked for",
            "this is a fault of fretsaw: please report it with the choice",
        )
    return child
