from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fretsaw.checkpoint.tensors import TORCH_DTYPES, TensorFile
from fretsaw.errors import CheckpointError


def test_every_dtype_is_read_as_safetensors_reads_it(tmp_path: Path) -> None:
    values = torch.randn(3, 4, 5)
    tensors = {name: values.to(dtype).clone() for name, dtype in TORCH_DTYPES.items()}
    save_file(tensors | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 7)}, tmp_path / "a")
    file = TensorFile(tmp_path / "a")
    for name, tensor in tensors.items():
        assert file.read(name).dtype == tensor.dtype
        assert torch.equal(file.read(name).view(torch.uint8), tensor.view(torch.uint8))
        assert torch.equal(file.read(name, part=2).float(), tensor[2].float())
    assert file.read("scalar").item() == 2.5
    assert file.read("empty").shape == (0, 7)


def test_what_is_read_is_ones_own(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "a")
    file = TensorFile(tmp_path / "a")
    file.read("a").zero_()
    assert file.read("a").sum() == 4


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "a")
    file = TensorFile(tmp_path / "a")
    os.truncate(tmp_path / "a", 2000)
    with pytest.raises(CheckpointError, match="was cut short"):
        file.read("a")


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    entry = {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(CheckpointError, match="a is stored as C64"):
        TensorFile(tmp_path / "a").read("a")


def test_files_are_closed(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "a")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        TensorFile(tmp_path / "a").read("a")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
