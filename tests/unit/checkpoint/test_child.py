"""A child cut from its parent's file, without any running model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from fretsaw.checkpoint.assets import copy_assets
from fretsaw.checkpoint.child import plan_child, untied_bytes, write_child
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.verify import verify_files
from fretsaw.core.variant import Choice, Variant
from fretsaw.pricing.memory import model_costs
from tests.pico import write_pico_checkpoint

SHARD = 40_000


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("parent")
    write_pico_checkpoint(folder, seed=2, num_shards=2)
    return Checkpoint(folder)


def _choice(parent: Checkpoint, values: Mapping[int, Mapping[str, int] | None]) -> Choice:
    """The parent's blocks with some values changed; None leaves a block out."""
    variants = tuple(
        Variant(i, is_none=True)
        if i in values and values[i] is None
        else Variant(i, values.get(i) or {})
        for i in range(parent.shape.num_blocks)
    )
    return Choice(variants, score=0.0, costs={})


def _write(
    parent: Checkpoint, choice: Choice, folder: Path, orders: Mapping[int, Mapping[str, Tensor]]
) -> Checkpoint:
    folder.mkdir()
    return write_child(
        parent,
        choice,
        folder=folder,
        orders=orders,
        repaired=lambda block, pattern, bound: None,
        shard_bytes=SHARD,
    )


def test_nothing_cut_is_the_parent_again(parent: Checkpoint, tmp_path: Path) -> None:
    child = _write(parent, _choice(parent, {}), tmp_path / "child", {})

    assert child.shape == parent.shape
    assert {s.key for s in child.stored.values()} == {s.key for s in parent.stored.values()}
    for name in parent.stored:
        assert torch.equal(child.read(name), parent.read(name)), name
        assert child.dtype_of(name) == parent.dtype_of(name)
    assert len(list(child.folder.glob("*.safetensors"))) > 1
    assert not list(child.folder.glob("*.py")), "equal blocks need no code"
    config = json.loads((child.folder / "config.json").read_text())
    assert (config["model_type"], "auto_map" in config) == ("nemotron_h", False)


def test_first_units_in_the_given_order_are_kept(parent: Checkpoint, tmp_path: Path) -> None:
    orders = {
        0: {"state": torch.stack([torch.randperm(16) for _ in range(2)])},
        1: {"ffn": torch.stack([torch.randperm(32) for _ in range(4)])},
    }
    choice = _choice(parent, {0: {"state": 12}, 1: {"ffn": 24, "top_k": 1}})

    child = _write(parent, choice, tmp_path / "child", orders)

    for expert in range(4):
        kept = orders[1]["ffn"][expert][:24]
        up, down = (f"layers.1.mixer.experts.{expert}.{p}_proj.weight" for p in ("up", "down"))
        assert torch.equal(child.read(up), parent.read(up)[kept])
        assert torch.equal(child.read(down), parent.read(down)[:, kept])
    bias, start = "layers.0.mixer.conv1d.bias", 4 * 16
    per_group = parent.read(bias)[start : start + 32].reshape(2, 16)
    expected = torch.stack([per_group[g][orders[0]["state"][g][:12]] for g in range(2)])
    assert torch.equal(child.read(bias)[start : start + 24].reshape(2, 12), expected)
    untouched = {n for n in parent.stored if n.startswith(("layers.2.", "layers.3.", "mtp."))}
    for name in untouched:
        assert torch.equal(child.read(name), parent.read(name)), name
    assert child.shape.sizes["state"] == 12
    assert child.shape.blocks[1].settings == {"top_k": 1}
    assert (child.folder / "modeling_nemotron_h_puzzle.py").is_file()


@pytest.mark.parametrize("values", [{}, {1: {"ffn": 24}}], ids=["plain", "unequal"])
def test_a_child_of_a_tied_parent_has_a_head_of_its_own_in_every_engine(
    tmp_path: Path, values: Mapping[int, Mapping[str, int] | None]
) -> None:
    model = write_pico_checkpoint(tmp_path / "parent", seed=2, tie_word_embeddings=True)
    tensors = load_file(tmp_path / "parent" / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "parent" / "model.safetensors")
    parent = Checkpoint(tmp_path / "parent")
    assert "lm_head.weight" not in parent.stored

    child = _write(parent, _choice(parent, values), tmp_path / "child", {})

    embeddings = model.model.embeddings.weight.detach().bfloat16()
    assert torch.equal(child.read("lm_head.weight"), embeddings)
    assert child.config["tie_word_embeddings"] is False
    opened, info = AutoModelForCausalLM.from_pretrained(
        child.folder, trust_remote_code=True, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert torch.equal(opened.lm_head.weight, embeddings)


def test_a_block_that_is_gone_takes_its_tensors_along(parent: Checkpoint, tmp_path: Path) -> None:
    child = _write(parent, _choice(parent, {1: None}), tmp_path / "child", {})

    assert [b.mixer for b in child.shape.blocks] == ["mamba", "attention", "moe"]
    for name in child.stored:
        old = name.replace("layers.1.", "layers.2.") if name.startswith("layers.1.") else name
        old = name.replace("layers.2.", "layers.3.") if name.startswith("layers.2.") else old
        assert torch.equal(child.read(name), parent.read(name if name.startswith("mtp.") else old))
    config = json.loads((child.folder / "config.json").read_text())
    assert config["num_hidden_layers"] == 3


def test_the_headers_are_known_before_a_weight_is_read(parent: Checkpoint) -> None:
    choice = _choice(parent, {1: {"ffn": 16}, 3: {"ffn": 8, "top_k": 1}})
    planned = [origin.target for origin in plan_child(parent, choice)]

    shape = choice.child_shape(parent.shape)
    assert len({p.key for p in planned}) == len(planned)
    trunk = [p for p in planned if not p.key.startswith("mtp.")]
    assert sum(torch.Size(p.shape).numel() for p in trunk) == model_costs(shape)["params"]


def test_a_child_with_orders_computes_the_same_in_another_order(
    parent: Checkpoint, tmp_path: Path
) -> None:
    orders = {3: {"ffn": torch.stack([torch.randperm(32) for _ in range(4)])}}
    child = _write(parent, _choice(parent, {}), tmp_path / "child", orders)
    for expert in range(4):
        up = f"layers.3.mixer.experts.{expert}.up_proj.weight"
        assert torch.equal(child.read(up), parent.read(up)[orders[3]["ffn"][expert]])


def test_only_known_files_travel_along(parent: Checkpoint, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json", "LICENSE"):
        (source / name).write_text("{}")
    for name in ("modeling.py", "optimizer.pt", "pytorch_model.bin", "training_args.bin", ".env"):
        (source / name).write_text("not this")
    copied = copy_assets(source, target)
    assert sorted(copied) == sorted(p.name for p in target.iterdir())
    assert set(copied) == {
        "tokenizer.json",
        "chat_template.jinja",
        "generation_config.json",
        "LICENSE",
    }


def _parent_in(
    folder: Path, dtypes: Callable[[str, Tensor], torch.dtype], **config: Any
) -> Checkpoint:
    """The pico parent with its tensors in other dtypes than its config states."""
    write_pico_checkpoint(folder, seed=2, **config)
    file = folder / "model.safetensors"
    tensors = {name: t.to(dtypes(name, t)) for name, t in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return Checkpoint(folder)


def test_f15_a_child_of_float32_weights_says_so_whatever_its_parent_states(tmp_path: Path) -> None:
    parent = _parent_in(tmp_path / "parent", lambda name, t: torch.float32)
    assert "the config says BF16" in verify_files(parent.folder).faults[0].message

    child = _write(parent, _choice(parent, {1: {"ffn": 24}}), tmp_path / "child", {})

    assert child.config["dtype"] == "float32"
    assert verify_files(child.folder).faults == ()


@pytest.mark.parametrize(
    ("key", "wanted", "said"),
    [("dtype", "BF16", "bfloat16"), ("torch_dtype", "F16", "float16"), ("", "F32", "float32")],
)
def test_f15_a_child_is_cast_as_asked(key: str, wanted: str, said: str, tmp_path: Path) -> None:
    parent = _parent_in(tmp_path / "parent", lambda name, t: torch.float32)
    config = json.loads((parent.folder / "config.json").read_text())
    del config["dtype"]
    (parent.folder / "config.json").write_text(
        json.dumps(config | ({key: "bfloat16"} if key else {}))
    )
    (tmp_path / "child").mkdir()
    child = write_child(
        Checkpoint(parent.folder),
        _choice(parent, {}),
        folder=tmp_path / "child",
        orders={},
        repaired=lambda block, pattern, bound: None,
        shard_bytes=SHARD,
        dtype=wanted,
    )
    assert child.dtype_of("lm_head.weight") == wanted
    assert child.dtype_of("layers.0.mixer.A_log") == "F32"
    assert child.config[key or "dtype"] == said
    assert verify_files(child.folder).faults == ()


def test_f15_a_mixture_is_said_by_its_larger_part_and_cured_by_a_cast(tmp_path: Path) -> None:
    mixed = lambda name, t: torch.float16 if "lm_head" in name else t.dtype  # noqa: E731
    parent = _parent_in(tmp_path / "parent", mixed, dtype="float16")
    child = _write(parent, _choice(parent, {}), tmp_path / "child", {})
    assert child.config["dtype"] == "bfloat16"
    (fault,) = verify_files(child.folder).faults
    assert "one tensor is stored in F16, the config says BF16: lm_head.weight" in fault.message


def test_f5_the_head_of_a_tied_parent_is_counted(parent: Checkpoint, tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path, seed=2, tie_word_embeddings=True)
    assert untied_bytes(Checkpoint(tmp_path)) == 128 * 32 * 2
    assert untied_bytes(parent) == 0
