from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from fretsaw.checkpoint.contents import INDEX_NAME
from fretsaw.checkpoint.header import read_header
from fretsaw.checkpoint.writer import Planned, need_disk, plan_shards, write_json, write_weights
from fretsaw.errors import RunError, ShapeError

PLANNED = [
    Planned("a", "F32", (3, 5)),
    Planned("b", "BF16", (7,)),
    Planned("c", "F16", (2, 2, 2)),
    Planned("d", "F32", ()),
]


def _values(key: str) -> Tensor:
    shape = next(p.shape for p in PLANNED if p.key == key)
    return torch.randn(shape, generator=torch.Generator().manual_seed(ord(key)))


def test_shards_are_filled_in_order_and_never_split_a_tensor() -> None:
    tensors = [Planned(str(i), "F32", (n,)) for i, n in enumerate([10, 10, 30, 5, 5, 100])]
    shards = [[t.key for t in shard] for shard in plan_shards(tensors, 100)]
    assert shards == [["0", "1"], ["2"], ["3", "4"], ["5"]]


def test_what_was_written_reads_back_bit_for_bit(tmp_path: Path) -> None:
    names = write_weights(tmp_path, PLANNED, read=_values, shard_bytes=80)

    index = json.loads((tmp_path / INDEX_NAME).read_text())
    assert names == [*sorted(set(index["weight_map"].values())), INDEX_NAME]
    assert index["metadata"]["total_size"] == sum(p.num_bytes for p in PLANNED)
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    for planned in PLANNED:
        file = tmp_path / index["weight_map"][planned.key]
        with safe_open(file, framework="pt") as stored:
            tensor = stored.get_tensor(planned.key)
            assert stored.metadata() == {"format": "pt"}
        assert torch.equal(tensor, _values(planned.key).to(dtypes[planned.dtype]))


def test_the_order_of_the_file_is_the_order_of_the_plan(tmp_path: Path) -> None:
    write_weights(tmp_path, PLANNED, read=_values)
    header = read_header(tmp_path / "model-00001-of-00001.safetensors")
    assert list(header) == ["a", "b", "c", "d"]
    assert [entry["data_offsets"][0] for entry in header.values()] == [0, 60, 74, 90]


def test_one_tensor_is_asked_for_at_a_time_and_in_order(tmp_path: Path) -> None:
    asked: list[str] = []

    def read(key: str) -> Tensor:
        asked.append(key)
        return _values(key)

    write_weights(tmp_path, PLANNED, read=read, shard_bytes=1)
    assert asked == ["a", "b", "c", "d"]


def test_slices_and_transposes_are_written_as_they_look(tmp_path: Path) -> None:
    square = torch.arange(12.0).reshape(3, 4)
    planned = [Planned("t", "F32", (4, 3)), Planned("s", "F32", (2, 2))]
    tensors = {"t": square.T, "s": square[:2, ::2]}
    write_weights(tmp_path, planned, read=tensors.__getitem__)
    with safe_open(tmp_path / "model-00001-of-00001.safetensors", framework="pt") as stored:
        assert torch.equal(stored.get_tensor("t"), square.T)
        assert torch.equal(stored.get_tensor("s"), square[:2, ::2])


def test_another_shape_than_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"a came out as \(2,\); \(3, 5\) was planned"):
        write_weights(tmp_path, PLANNED, read=lambda key: torch.zeros(2))


def test_too_small_a_disk_is_found_before_the_first_tensor(tmp_path: Path) -> None:
    huge = [Planned("x", "F32", (10**15,))]
    with pytest.raises(RunError, match=r"needs 3638 TiB more; its disk has"):
        write_weights(tmp_path, huge, read=lambda key: pytest.fail("read"))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_yet_lies_on_its_parents_disk(tmp_path: Path) -> None:
    need_disk(tmp_path / "new" / "run", 1)
    with pytest.raises(RunError, match=r"[KMG]iB free"):
        need_disk(tmp_path / "new" / "run", 10**18)


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}
