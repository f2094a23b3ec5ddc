"""What lies in a folder: what decides, what travels, what is left alone, and what is no weight."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fretsaw.checkpoint.assets import copy_assets
from fretsaw.checkpoint.contents import INDEX_NAME, contents
from fretsaw.checkpoint.header import read_header
from fretsaw.checkpoint.lineage import hash_checkpoint, hash_travelling
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.verify import verify_files
from fretsaw.errors import CheckpointError
from fretsaw.stages.describe import describe
from tests.pico import write_pico_checkpoint

SECOND = "model-00002-of-00002.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 40000\n".format("a" * 64)


@pytest.fixture(scope="module")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pico") / "parent"
    write_pico_checkpoint(folder, seed=5, num_shards=2)
    return folder


@pytest.fixture
def folder(pico: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pico, tmp_path / "parent"))


def _said(folder: Path) -> list[str]:
    return [fault.message for fault in verify_files(folder).faults]


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket is at most 107 bytes long
        try:
            sock.bind(path.name)
        finally:
            os.chdir(here)


UNRELATED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "dead link": ("training_args.json", lambda p: p.symlink_to("../nothere")),
    "folder": ("foo.json", lambda p: p.mkdir()),
    "folder of weights": ("old.safetensors", lambda p: p.mkdir()),
    "pipe": ("pipe.json", _pipe),
    "socket": ("agent.json", _socket),
    "link to itself": ("loop.json", lambda p: p.symlink_to(p.name)),
}


@pytest.mark.parametrize("kind", UNRELATED)
def test_f7_what_is_no_part_of_a_checkpoint_is_left_alone(folder: Path, kind: str) -> None:
    name, make = UNRELATED[kind]
    before = hash_checkpoint(folder), hash_travelling(folder)
    make(folder / name)

    describe(folder)

    assert (hash_checkpoint(folder), hash_travelling(folder)) == before
    assert _said(folder) == []
    assert contents(folder).left[name]


def test_f7_a_dead_shard_is_a_fault_and_is_refused_by_name(folder: Path) -> None:
    count = len(read_header(folder / SECOND))
    (folder / SECOND).unlink()
    (folder / SECOND).symlink_to("../blobs/gone")
    said = f"{SECOND} is a link to ../blobs/gone, which is not there"
    assert _said(folder) == [f"{said}; the index places {count} tensors in it"]
    for refuse in (describe, hash_checkpoint):
        with pytest.raises(CheckpointError, match=r"00002-of-00002\.safetensors"):
            refuse(folder)


@pytest.mark.parametrize("name", ["config.json", INDEX_NAME])
def test_f7_a_dead_config_or_index_is_said_to_be_one(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to("gone")
    assert any(f"{name} is a link to gone, which is not there" in text for text in _said(folder))
    with pytest.raises(CheckpointError, match="a link to gone, which is not there"):
        Checkpoint(folder).check()


def test_f7_links_as_in_the_cache_of_the_hub_are_followed(folder: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "rev"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted(folder.iterdir())):
        shutil.copyfile(file, blobs / f"{i}")
        (snapshot / file.name).symlink_to(f"../../blobs/{i}")
    (tmp_path / "link").symlink_to(snapshot)
    for place in (snapshot, tmp_path / "link"):
        assert hash_checkpoint(place) == hash_checkpoint(folder)
        assert describe(place).params == describe(folder).params
        assert _said(place) == []


@pytest.mark.parametrize("outside", ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors"])
def test_f7_an_index_that_names_files_elsewhere_is_refused(folder: Path, outside: str) -> None:
    index = json.loads((folder / INDEX_NAME).read_text())
    index["weight_map"]["backbone.norm_f.weight"] = outside
    (folder / INDEX_NAME).write_text(json.dumps(index))
    assert f"places tensors in {outside!r}, which is no file name" in _said(folder)[0]
    with pytest.raises(CheckpointError, match="no file name in the folder"):
        Checkpoint(folder).check()


def _with_papers(folder: Path) -> set[str]:
    names = {"LICENSE", "NOTICE.txt", "USE_POLICY.md", "preprocessor_config.json", "README.md"}
    for name in (*names, "chat_template.jinja"):
        (folder / name).write_text("{}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")
    for name in (
        "modeling.py",
        "optimizer.pt",
        "additional_chat_templates/x.py",
        "trainer_state.json",
    ):
        (folder / name).write_text("not this")
    return {*names, "chat_template.jinja", "additional_chat_templates/tools.jinja"}


def test_f14_licences_and_templates_travel_and_the_rest_is_named(
    folder: Path, tmp_path: Path
) -> None:
    travelling = _with_papers(folder)
    (tmp_path / "child").mkdir()

    copied = copy_assets(folder, tmp_path / "child")

    expected = {"PARENT_README.md", "tokenizer.json", "tokenizer_config.json"} | travelling
    assert set(copied) == (expected | {"generation_config.json"}) - {"README.md"}
    assert {str(p.relative_to(tmp_path / "child")) for p in (tmp_path / "child").rglob("*.*")} | {
        "LICENSE"
    } == set(copied)
    assert set(contents(folder).left) == {
        "modeling.py",
        "optimizer.pt",
        "trainer_state.json",
        "additional_chat_templates/x.py",
    }


def test_f14_the_card_of_the_first_parent_goes_on_from_child_to_child(tmp_path: Path) -> None:
    for name, card in {"parent": "of the parent", "child": "ours", "next": ""}.items():
        write_pico_checkpoint(tmp_path / name, seed=5)
        (tmp_path / name / "README.md").write_text(card)
    copy_assets(tmp_path / "parent", tmp_path / "child")
    copied = copy_assets(tmp_path / "child", tmp_path / "next")
    assert "PARENT_README.md" in copied
    assert (tmp_path / "next" / "PARENT_README.md").read_text() == "of the parent"
    assert (tmp_path / "next" / "README.md").read_text() == ""


def test_f14_the_fingerprint_is_of_what_decides_and_another_of_what_travels(folder: Path) -> None:
    decides, travels = hash_checkpoint(folder), hash_travelling(folder)
    (folder / "trainer_state.json").write_text("{}")
    (folder / "notes.json").write_text("{}")
    assert (hash_checkpoint(folder), hash_travelling(folder)) == (decides, travels)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert hash_checkpoint(folder) == decides
    assert set(hash_travelling(folder)) - set(travels) == {"chat_template.jinja"}
    (folder / "special_tokens_map.json").write_text("{}")
    assert set(hash_checkpoint(folder)) - set(decides) == {"special_tokens_map.json"}


@pytest.mark.parametrize(
    ("name", "fate"),
    [
        ("LICENSE-APACHE", True),
        ("license.md", True),
        ("NVIDIA_OPEN_MODEL_LICENSE.txt", True),
        ("THIRD_PARTY_NOTICES", True),
        ("COPYING", True),
        ("licenses.py", False),
        ("notice_board.json", False),
        ("LICENSE.bin", False),
    ],
)
def test_f14_papers_under_their_common_names(folder: Path, name: str, fate: bool) -> None:
    (folder / name).write_text("text")
    assert (name in contents(folder).travelling) is fate
    assert (name in contents(folder).left) is not fate


HTML = b"<!DOCTYPE html>\n<html><body>404</body></html>"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (POINTER.encode(), "is a Git-LFS pointer that stands for 40,000 bytes, not safetensors"),
        (HTML, "is a web page (often that of an error), not safetensors"),
        (b'{"error": "Repository not found"}', "is JSON text (often that of an error), not"),
        (b"PK\x03\x04" + bytes(60), "is a ZIP archive"),
        (b"GGUF" + bytes(60), "is a GGUF file, not safetensors"),
        (b"", "is empty, not safetensors"),
        (b"abc", "is damaged: it has 3 bytes, which hold no header"),
        (bytes(64), "is damaged: it does not begin with the header of a safetensors file"),
        ((500).to_bytes(8, "little") + b'{"a": ', "was cut short inside its header, at 14 bytes"),
    ],
)
def test_u19_what_is_no_safetensors_is_named_for_what_it_is(
    folder: Path, data: bytes, said: str
) -> None:
    (folder / SECOND).write_bytes(data)
    (message,) = _said(folder)
    assert said in message
    with pytest.raises(CheckpointError) as error:
        describe(folder)
    assert said in error.value.message
    assert error.value.hint


def _header(entry: object) -> bytes:
    text = json.dumps({"backbone.norm_f.weight": entry}).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ([1, 2], "says of backbone.norm_f.weight [1, 2], where an object was expected"),
        ({"dtype": 5, "shape": [1], "data_offsets": [0, 2]}, "dtype=5"),
        ({"dtype": "BF16", "shape": "1", "data_offsets": [0, 2]}, "shape='1'"),
        ({"dtype": "BF16", "shape": [-1], "data_offsets": [0, 2]}, "shape=[-1]"),
        ({"dtype": "BF16", "shape": [1], "data_offsets": [0]}, "data_offsets=[0]"),
        ({"dtype": "BF16", "shape": [1], "data_offsets": [4, 2]}, "which end before they begin"),
        ({"dtype": "BF16", "shape": [1]}, "data_offsets=None"),
    ],
)
def test_u19_a_header_of_wrong_types_is_named(folder: Path, entry: object, said: str) -> None:
    (folder / SECOND).write_bytes(_header(entry) + bytes(8))
    assert any(said in message for message in _said(folder))
    with pytest.raises(CheckpointError) as error:
        describe(folder)
    assert said in error.value.message


def test_u19_tensors_that_overlap_are_refused_before_they_are_read(folder: Path) -> None:
    entry = {"dtype": "BF16", "shape": [32], "data_offsets": [0, 64]}
    text = json.dumps({"a": entry, "b": entry}).encode()
    (folder / SECOND).write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with pytest.raises(CheckpointError, match="b begins at byte 0 of the data"):
        describe(folder)


@pytest.mark.parametrize("name", ["config.json", INDEX_NAME, "tokenizer.json"])
def test_u19_a_pointer_or_a_page_in_place_of_json_is_named(folder: Path, name: str) -> None:
    for data, said in ((POINTER.encode(), "a Git-LFS pointer that stands"), (HTML, "a web page")):
        (folder / name).write_bytes(data)
        assert any(f"{name} is {said}" in message for message in _said(folder))
