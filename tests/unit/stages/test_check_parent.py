"""What is refused of a parent, and said about it, before the first weight is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fretsaw.checkpoint.contents import LINEAGE_NAME
from fretsaw.checkpoint.verify import verify_files
from fretsaw.errors import CheckpointError
from fretsaw.reports.loaders import UNTIED
from fretsaw.stages.check_parent import check_parent
from fretsaw.stages.export import export
from fretsaw.stages.loaders import PAGE, write_who_can_load
from fretsaw.stages.progress import Reporter
from tests.pico import write_pico_checkpoint

QUIET = Reporter(is_quiet=True)


@pytest.fixture(scope="module")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pico") / "parent"
    write_pico_checkpoint(folder, seed=5)
    return folder


@pytest.fixture
def folder(pico: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pico, tmp_path / "parent"))


def _configure(folder: Path, change: Callable[[dict[str, Any]], object], name: str) -> None:
    data = json.loads((folder / name).read_text())
    change(data)
    (folder / name).write_text(json.dumps(data))


def _tied(folder: Path) -> Path:
    _configure(folder, lambda d: d.update(tie_word_embeddings=True), "config.json")
    file = folder / "model.safetensors"
    tensors = {name: t for name, t in load_file(file).items() if name != "lm_head.weight"}
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def _said(folder: Path) -> str:
    (said,) = check_parent(folder)[1]
    return said


def test_nothing_is_said_of_a_parent_as_it_should_be(pico: Path) -> None:
    parent, said = check_parent(pico)
    assert said == []
    assert parent.shape.num_blocks == 4


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tokenizer.json", lambda d: d["model"]["vocab"].update({"more": 128})),
        ("tokenizer.json", lambda d: d["added_tokens"].append({"id": 128, "content": "<t>"})),
        ("generation_config.json", lambda d: d.update(eos_token_id=[2, 128])),
        ("config.json", lambda d: d.update(pad_token_id=4096)),
    ],
)
def test_f13_what_verify_knows_of_a_tokenizer_stops_a_run_before_it_begins(
    folder: Path, file: str, change: Callable[[dict[str, Any]], object]
) -> None:
    _configure(folder, change, file)
    (fault,) = verify_files(folder).faults
    with pytest.raises(CheckpointError) as error:
        check_parent(folder)
    assert error.value.message == f"{folder}: {fault.message}"
    assert error.value.hint == fault.hint


def test_f5_a_tied_parents_child_is_said_to_be_larger(folder: Path, tmp_path: Path) -> None:
    _tied(folder)
    assert _said(folder) == (
        "the parent ties its head to the embedding; a child gets a head of its own, 8 KiB more, "
        "since transformers and vLLM tie none for this family"
    )
    written = export(folder, to="vllm", out=tmp_path / "written", reporter=QUIET)
    assert UNTIED.format(size="8 KiB") in (written / PAGE).read_text()
    assert verify_files(written).faults == ()


def test_f5_the_page_of_a_child_says_so_by_its_lineage(folder: Path) -> None:
    write_who_can_load(folder)
    assert "head" not in (folder / PAGE).read_text().split("## In Python")[0].split("|---")[-1]
    (folder / LINEAGE_NAME).write_text('{"head_untied_bytes": 8192}')
    write_who_can_load(folder)
    assert UNTIED.format(size="8 KiB") in (folder / PAGE).read_text()


def test_f5_a_tied_head_that_is_stored_too_must_be_the_embedding(folder: Path) -> None:
    _tied(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    head = tensors["backbone.embeddings.weight"].clone()
    save_file(tensors | {"lm_head.weight": head}, file, metadata={"format": "pt"})
    assert "8 KiB more" in _said(folder)
    save_file(tensors | {"lm_head.weight": head + 1}, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from it"):
        check_parent(folder)


def test_f5_a_head_that_is_missing_because_it_is_tied(folder: Path) -> None:
    _tied(folder)
    _configure(folder, lambda d: d.update(tie_word_embeddings=False), "config.json")
    with pytest.raises(CheckpointError, match=r"missing tensor \(1\): lm_head") as error:
        check_parent(folder)
    assert "tie_word_embeddings" in error.value.hint


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_f15_weights_in_another_dtype_than_stated_are_said(
    folder: Path, dtype: torch.dtype
) -> None:
    file = folder / "model.safetensors"
    tensors = {name: t.to(dtype) for name, t in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    said = _said(folder)
    assert "the config says BF16" in said
    assert said.endswith(
        "a child keeps what is stored and its config says so, unless build.dtype casts it"
    )


def test_f1_keys_that_nobody_knows_are_said(folder: Path) -> None:
    _configure(folder, lambda d: d.update(router_jitter=0.1, _note="mine"), "config.json")
    assert _said(folder) == (
        "config keys that nobody here knows: router_jitter; a child gets them as they are"
    )


def test_f14_what_no_child_gets_is_said(folder: Path) -> None:
    for name in ("modeling_x.py", "optimizer.pt", "trainer_state.json", "README.md", "LICENSE"):
        (folder / name).write_text("x")
    (folder / "logs").mkdir()
    left, card = check_parent(folder)[1]
    assert left == (
        "files of the parent that no child gets: logs (a folder); modeling_x.py (code is never "
        "copied); optimizer.pt (a pickle, by its name, is never opened or copied); "
        "trainer_state.json (not known to belong to a model)"
    )
    assert "goes along as PARENT_README.md" in card


def test_a_tokenizer_that_wants_code_is_said_and_read_without(folder: Path) -> None:
    _configure(
        folder, lambda d: d.update(auto_map={"AutoTokenizer": "t.T"}), "tokenizer_config.json"
    )
    assert "wants to run code; a child's does not" in _said(folder)
