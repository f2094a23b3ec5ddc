"""Write a checkpoint tensor by tensor: headers first, shards, index, then one rename."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fretsaw.checkpoint.contents import INDEX_NAME
from fretsaw.checkpoint.header import DTYPE_BYTES, read_header
from fretsaw.checkpoint.tensors import TORCH_DTYPES
from fretsaw.core.units import format_bytes
from fretsaw.errors import RunError, ShapeError


@dataclass(frozen=True)
class Planned:
    """A tensor that will be written: its key, dtype (safetensors' word) and shape."""

    key: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return DTYPE_BYTES[self.dtype] * torch.Size(self.shape).numel()


def plan_shards(tensors: Iterable[Planned], shard_bytes: int) -> list[list[Planned]]:
    """Tensors in order, split into shards of at most `shard_bytes` (one tensor may exceed it)."""
    shards: list[list[Planned]] = []
    filled = 0
    for tensor in tensors:
        if not shards or filled + tensor.num_bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.num_bytes
    return shards


def write_weights(
    folder: Path,
    tensors: Iterable[Planned],
    *,
    read: Callable[[str], Tensor],
    shard_bytes: int = 5 * 10**9,
    is_resumed: bool = False,
) -> list[str]:
    """Stream tensors into safetensors shards with an index; one tensor in memory at a time.

    Args:
        folder: Existing folder, still private to the caller.
        tensors: What to write, in order.
        read: Key -> tensor of the planned shape; cast to the planned dtype here.
        shard_bytes: Size at which a new shard begins.
        is_resumed: Shards that are there, whole and as planned, are kept: the same tensors were
            being written.

    Returns:
        Names of the written files.

    Raises:
        ShapeError: `read` gave another shape than planned.
        RunError: the disk is too small for it.
    """
    shards = plan_shards(tensors, shard_bytes)
    there = sum(file.stat().st_size for file in folder.glob("*.safetensors*"))
    need_disk(folder, sum(t.num_bytes for shard in shards for t in shard) - there)
    weight_map: dict[str, str] = {}
    names = []
    for i, shard in enumerate(shards, start=1):
        name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        if not (is_resumed and _is_written(folder / name, shard)):
            _write_shard(folder / name, shard, read=read)
        weight_map |= {tensor.key: name for tensor in shard}
        names.append(name)
    total = sum(t.num_bytes for shard in shards for t in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(folder / INDEX_NAME, index)
    return [*names, INDEX_NAME]


def need_disk(folder: Path, num_bytes: int) -> None:
    """Check that the disk of a folder, which need not be there yet, has room.

    Raises:
        RunError: it has not.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free < num_bytes:
        raise RunError(
            f"{folder} needs {format_bytes(num_bytes)} more; its disk has {format_bytes(free)} "
            "free",
            "free some space, or give another --out",
        )


def write_json(path: Path, data: object) -> None:
    """Write JSON: all of it on the disk, or none."""
    aside = path.with_name(path.name + ".new")
    with aside.open("w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)


def _write_shard(path: Path, shard: list[Planned], *, read: Callable[[str], Tensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in shard:
        span = [offset, offset + tensor.num_bytes]
        header[tensor.key] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        offset = span[1]
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    aside = path.with_name(path.name + ".new")
    with aside.open("wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in shard:
            stream.write(_bytes(tensor, read(tensor.key)))
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)


def _is_written(path: Path, shard: list[Planned]) -> bool:
    """Whether a shard is there; it has got its name last, so it is whole."""
    if not path.is_file():
        return False
    found = [
        Planned(key, entry["dtype"], tuple(entry["shape"]))
        for key, entry in read_header(path).items()
    ]
    return found == shard


def _bytes(planned: Planned, tensor: Tensor) -> memoryview:
    if tuple(tensor.shape) != planned.shape:
        raise ShapeError(
            f"{planned.key} came out as {tuple(tensor.shape)}; {planned.shape} was planned",
            "this is a fault of fretsaw: please report it",
        )
    data = tensor.detach().to(TORCH_DTYPES[planned.dtype]).contiguous().cpu()
    return data.flatten().view(torch.uint8).numpy().data
