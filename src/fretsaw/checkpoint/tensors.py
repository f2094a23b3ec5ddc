"""A safetensors file held open: the header is read once, each tensor by its place."""

from __future__ import annotations

import os
import struct
import weakref
from pathlib import Path

import torch
from torch import Tensor

from fretsaw.checkpoint.header import read_header
from fretsaw.errors import CheckpointError

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
"""Dtype in safetensors' words -> torch's."""


class TensorFile:
    """One open file of tensors.

    safetensors' own `safe_open` parses the header at each opening (a tenth of the time of a plain
    copy per 1,000 tensors of a file of 10,000), and kept open its memory map counts every page that
    was ever read as the process's memory. Plain reads into a tensor do neither.

    Args:
        path: The file.

    Raises:
        CheckpointError: its header is damaged, or its length is not what the header says.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, read_header(path)
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._data = 8 + struct.unpack("<Q", os.pread(self._file, 8, 0))[0]

    def read(self, key: str, *, part: int | None = None) -> Tensor:
        """A tensor as stored, or one slice of its first axis; memory of its own.

        Raises:
            CheckpointError: a dtype that is not known, or the file is cut short.
        """
        entry = self.header[key]
        if entry["dtype"] not in TORCH_DTYPES:
            raise CheckpointError(
                f"{self.path}: {key} is stored as {entry['dtype']}",
                f"known here: {', '.join(TORCH_DTYPES)}",
            )
        dtype, shape = TORCH_DTYPES[entry["dtype"]], list(entry["shape"])
        start, stop = entry["data_offsets"]
        if part is not None:
            size = (stop - start) // shape.pop(0)
            start, stop = start + part * size, start + (part + 1) * size
        tensor = torch.empty(stop - start, dtype=torch.uint8)
        self._fill(tensor.numpy().data, self._data + start)
        return tensor.view(dtype).view(shape)

    def _fill(self, buffer: memoryview, offset: int) -> None:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._file, [buffer[done:]], offset + done)
            if not count:
                raise CheckpointError(
                    f"{self.path} was cut short: it ends {len(buffer) - done} bytes too early",
                    "copy it again",
                )
            done += count
