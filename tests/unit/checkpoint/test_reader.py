"""Reading a checkpoint folder under every spelling, lazily, and refusing damaged ones by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fretsaw.checkpoint.contents import INDEX_NAME, LINEAGE_NAME
from fretsaw.checkpoint.header import read_header
from fretsaw.checkpoint.lineage import hash_checkpoint
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.errors import CheckpointError
from fretsaw.runtime.load import load_model
from tests.pico import (
    FLOAT32,
    disk_tensors,
    pico_config,
    pico_model,
    puzzle_config,
    write_pico_checkpoint,
)
from tests.views import pico_ids


@pytest.fixture(scope="module")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pico")
    write_pico_checkpoint(folder, seed=5)
    return folder


@pytest.fixture
def folder(pico: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pico, tmp_path / "pico"))


def _rewrite(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _fused(tensors: dict[str, torch.Tensor], end: str) -> dict[str, torch.Tensor]:
    """The same weights with all experts of a projection in one tensor."""
    fused: dict[str, torch.Tensor] = {}
    for name in sorted(tensors):
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(up_proj|down_proj)\.weight", name)
        if match is None:
            fused[name] = tensors[name]
        elif match[2] == "0":
            parts = [tensors[f"{match[1]}.{e}.{match[3]}.weight"] for e in range(4)]
            fused[f"{match[1]}.{match[3]}{end}"] = torch.stack(parts)
    return fused


def _same(one: Path, other: Path) -> None:
    a, b = Checkpoint(one), Checkpoint(other)
    b.check()
    assert set(a.stored) == set(b.stored)
    for name in a.stored:
        assert torch.equal(a.read(name), b.read(name)), name
    ids = pico_ids(1)
    with torch.no_grad():
        assert torch.equal(load_model(a)(ids).logits, load_model(b)(ids).logits)


@pytest.mark.parametrize("prefix", ["model.", "backbone."])
@pytest.mark.parametrize("word", ["embeddings", "embedding", "embed_tokens"])
def test_prefix_and_spelling_of_the_embedding_do_not_matter(
    pico: Path, folder: Path, prefix: str, word: str
) -> None:
    renamed = {
        re.sub(r"^backbone\.", prefix, name).replace("embeddings", word): tensor
        for name, tensor in _tensors(folder).items()
    }
    _rewrite(folder, renamed)
    _same(pico, folder)


@pytest.mark.parametrize("end", ["", ".weight"])
def test_fused_experts_are_read_as_single_ones(pico: Path, folder: Path, end: str) -> None:
    fused = _fused(_tensors(folder), end)
    assert len(fused) < len(_tensors(folder))
    _rewrite(folder, fused)
    _same(pico, folder)


def test_shards_with_an_index_are_one_checkpoint(pico: Path, tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path / "shards", seed=5, num_shards=3)
    _same(pico, tmp_path / "shards")


def test_old_keys_of_the_config_make_the_same_model(pico: Path, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["mamba_n_groups"] = config.pop("n_groups")
    config["mamba_d_conv"] = config.pop("conv_kernel")
    config["num_local_experts"] = config.pop("n_routed_experts")
    config["hybrid_override_pattern"] = "ME*E"
    del config["layers_block_type"]
    (folder / "config.json").write_text(json.dumps(config))
    _same(pico, folder)


def test_a_running_model_keeps_float32_what_is_computed_in_float32(folder: Path) -> None:
    state = load_model(Checkpoint(folder), dtype=torch.bfloat16).state_dict()
    kept = {name for name, tensor in state.items() if tensor.dtype == torch.float32}
    assert kept == {name for name in state if name.endswith((*FLOAT32, "gate.weight"))}
    assert Checkpoint(folder).dtype_of("layers.0.mixer.A_log") == "F32"


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_the_running_model_is_the_one_that_transformers_wrote(
    tmp_path: Path, heterogeneous: bool
) -> None:
    model = write_pico_checkpoint(tmp_path, seed=6, heterogeneous=heterogeneous)
    ours = load_model(Checkpoint(tmp_path))
    assert _kl(model(pico_ids(2)).logits, ours(pico_ids(2)).logits) < 1e-9


def test_blocks_may_differ_in_their_number_of_experts(tmp_path: Path) -> None:
    per_block = {1: {"n_routed_experts": 8}, 3: {"n_routed_experts": 6, "num_experts_per_tok": 3}}
    model = pico_model(7, per_block=per_block)
    config = puzzle_config(pico_config(num_nextn_predict_layers=0), per_block)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(dict(disk_tensors(model, "model.")), tmp_path / "model.safetensors")

    checkpoint = Checkpoint(tmp_path)

    checkpoint.check()
    assert [b.sizes.get("expert") for b in checkpoint.shape.blocks] == [None, 8, None, 6]
    assert _kl(model(pico_ids(2)).logits, load_model(checkpoint)(pico_ids(2)).logits) < 1e-9


def _kl(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    p, q = (logits.detach().double().log_softmax(-1) for logits in (ours, theirs))
    return float((p.exp() * (p - q)).sum(-1).mean())


def test_only_headers_are_read_before_a_tensor_is_asked_for(folder: Path) -> None:
    header = read_header(folder / "model.safetensors")
    assert header["lm_head.weight"]["shape"] == [128, 32]
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    (folder / "model.safetensors").write_bytes(data[: 8 + length] + bytes(len(data) - 8 - length))
    Checkpoint(folder).check()
    assert not Checkpoint(folder).read("lm_head.weight").any()


def test_a_tensor_by_an_unknown_name(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor 'layers\.0\.gone'"):
        Checkpoint(folder).read("layers.0.gone")


def test_the_same_tensor_under_two_names_is_refused(folder: Path) -> None:
    tensors = _tensors(folder)
    _rewrite(folder, tensors | {"model.norm_f.weight": tensors["backbone.norm_f.weight"].clone()})
    with pytest.raises(CheckpointError, match=r"'norm_f\.weight' twice"):
        Checkpoint(folder).check()


def test_a_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path, seed=5, num_shards=2)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "model-00002-of-00002.safetensors"
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=f"holds {name!r}, which the index places in"):
        Checkpoint(tmp_path).check()


def test_a_tensor_in_the_index_alone(tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path, seed=5, num_shards=2)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    index["weight_map"]["backbone.extra"] = "model-00002-of-00002.safetensors"
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(
        CheckpointError, match=r"in the index but in no file \(1\): backbone\.extra"
    ):
        Checkpoint(tmp_path).check()


def test_a_missing_tensor_is_sought_under_a_similar_name(folder: Path) -> None:
    tensors = _tensors(folder)
    tensors["backbone.layers.0.mixer.A_logs"] = tensors.pop("backbone.layers.0.mixer.A_log")
    _rewrite(folder, tensors)
    with pytest.raises(CheckpointError, match=r"layers\.0\.mixer\.A_log") as error:
        Checkpoint(folder).check()
    assert "perhaps 'layers.0.mixer.A_logs'?" in error.value.hint


def test_a_folder_without_a_tokenizer_or_head_is_still_a_checkpoint(tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path, seed=5, with_tokenizer=False, with_mtp=False)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.check()
    assert checkpoint.shape.mtp == ()


def test_unequal_blocks_are_checked_block_by_block(tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path, seed=5, heterogeneous=True)
    Checkpoint(tmp_path).check()
    (tmp_path / "config.json").write_text(json.dumps(pico_config()))
    with pytest.raises(CheckpointError, match=r"wrong shape \(16\): layers\.1\.mixer\.experts"):
        Checkpoint(tmp_path).check()


def test_the_fingerprint_covers_what_decides_and_not_the_lineage(folder: Path) -> None:
    names = set(hash_checkpoint(folder))
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    before = hash_checkpoint(folder)
    (folder / LINEAGE_NAME).write_text("{}")
    assert hash_checkpoint(folder) == before
