"""Verifying files: each fault has its own message, all are listed, and sound folders have none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fretsaw.checkpoint.contents import INDEX_NAME
from fretsaw.checkpoint.header import read_header
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.verify import Verification, verify_files
from fretsaw.errors import CheckpointError
from tests.pico import write_pico_checkpoint

Tensors = dict[str, Tensor]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pico")
    write_pico_checkpoint(folder / "equal", seed=5)
    write_pico_checkpoint(folder / "unequal", seed=5, heterogeneous=True)
    write_pico_checkpoint(folder / "sharded", seed=5, num_shards=2)
    write_pico_checkpoint(folder / "headless", seed=5, with_mtp=False)
    write_pico_checkpoint(folder / "tied", seed=5, tie_word_embeddings=True)
    return folder


@pytest.fixture
def copy(pico: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(pico / name, tmp_path / name))


def _said(folder: Path) -> list[str]:
    return [fault.message for fault in verify_files(folder).faults]


def _only(folder: Path) -> str:
    (message,) = _said(folder)
    return message


def _edit(folder: Path, change: Callable[[Tensors], Mapping[str, Tensor]]) -> None:
    file = folder / "model.safetensors"
    save_file(dict(change(load_file(file))), file, metadata={"format": "pt"})


def _configure(folder: Path, change: Callable[[dict[str, Any]], object], name: str = "") -> None:
    file = folder / (name or "config.json")
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


@pytest.mark.parametrize("name", ["equal", "sharded", "headless"])
def test_a_sound_checkpoint_has_no_fault(pico: Path, name: str) -> None:
    result = verify_files(pico / name)
    assert result.faults == ()
    assert result.family == "nemotron_h"
    names = [check.name for check in result.checks]
    assert names == ["files", "no code", "tensors", "shapes", "dtypes", "names", "tokenizer"]
    assert result.to_json()["is_sound"] is True


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no folder"):
        verify_files(tmp_path / "gone")


def test_an_empty_folder_has_two_faults(tmp_path: Path) -> None:
    weights, config = _said(tmp_path)
    assert weights == "no *.safetensors in the folder"
    assert "no config.json" in config


def test_a_tensor_that_the_index_does_not_list(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    _configure(folder, lambda d: d["weight_map"].pop("lm_head.weight"), INDEX_NAME)
    message = _only(folder)
    assert message.startswith("missing in the index: lm_head.weight, in model-0000")
    assert message.endswith("engines will not load it")


def test_a_tensor_that_no_file_holds(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    _configure(folder, lambda d: d["weight_map"].update({"backbone.x": FIRST}), INDEX_NAME)
    assert _only(folder) == f"the index places backbone.x in {FIRST}, which does not hold it"


def test_a_tensor_in_another_file_than_the_index_says(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    key = next(iter(read_header(folder / FIRST)))
    _configure(folder, lambda d: d["weight_map"].update({key: SECOND}), INDEX_NAME)
    assert _only(folder) == f"the index places {key} in {SECOND}, but it lies in {FIRST}"


def test_a_missing_shard_is_one_fault_not_one_per_tensor(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    count = len(read_header(folder / SECOND))
    (folder / SECOND).unlink()
    assert _only(folder) == f"{SECOND} is missing; the index places {count} tensors in it"


def test_a_shard_outside_the_index(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    save_file({"extra": torch.ones(2)}, folder / "more.safetensors")
    first, *_ = _said(folder)
    assert first == "more.safetensors is in no line of the index: no engine reads it"


def test_an_index_that_is_no_index(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    (folder / INDEX_NAME).write_text("{}")
    assert any(f"{INDEX_NAME} is damaged: no weight_map" in message for message in _said(folder))


def test_shards_without_an_index(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    (folder / INDEX_NAME).unlink()
    assert f"but no {INDEX_NAME}: transformers looks for it" in _only(folder)


def test_a_shard_cut_short(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    data = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(data[:-10])
    size = len(data)
    assert _only(folder) == (
        f"{SECOND} was cut short: it has {size - 10} bytes, its header says {size}"
    )
    (folder / SECOND).write_bytes(data + b"more")
    assert _only(folder) == f"{SECOND} has {size + 4} bytes, but its header ends at {size}"
    (folder / SECOND).write_bytes(data[:20])
    assert "is damaged" in _only(folder)


def test_bytes_that_do_not_fit_the_header(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    file = folder / "model.safetensors"
    old = file.read_bytes()
    length = int.from_bytes(old[:8], "little")
    header = json.loads(old[8 : 8 + length])
    header["lm_head.weight"]["shape"] = [64, 32]
    new = json.dumps(header).encode()
    file.write_bytes(len(new).to_bytes(8, "little") + new + old[8 + length :])
    assert "model.safetensors: lm_head.weight takes 8192 bytes; BF16 [64, 32] takes 4096" in _said(
        folder
    )


@pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.pt", "a.pkl", "b.CKPT"])
def test_a_pickle_is_named_and_not_opened(copy: Callable[[str], Path], name: str) -> None:
    folder = copy("equal")
    (folder / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert _only(folder).startswith(f"{name} is, by its name, a pickle")


def test_code_that_is_promised_and_not_there(copy: Callable[[str], Path]) -> None:
    folder = copy("unequal")
    assert _said(folder) == []
    auto_map = {"AutoConfig": "configuration_x.X", "AutoModel": "someone/else--modeling_x.X"}
    _configure(folder, lambda d: d.update(auto_map=auto_map))
    assert _said(folder) == [
        "auto_map.AutoConfig names configuration_x.py, which is not in the folder",
        "auto_map.AutoModel takes code from another repository, someone/else",
    ]


def test_a_missing_tensor_of_the_config(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    _edit(folder, lambda t: {n: v for n, v in t.items() if "backbone.layers.1.mixer.gate" not in n})
    assert _only(folder) == (
        "missing: 2 tensors that the config asks for: layers.1.mixer.gate.weight, "
        "layers.1.mixer.gate.e_score_correction_bias"
    )


def test_a_tensor_that_the_config_knows_nothing_of(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    _edit(folder, lambda t: t | {"backbone.layers.9.norm.weight": torch.ones(32)})
    assert _only(folder) == (
        "extra: 1 tensors that the config knows nothing of: layers.9.norm.weight"
    )


def test_the_same_tensor_under_two_names(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    _edit(folder, lambda t: t | {"model.norm_f.weight": t["backbone.norm_f.weight"].clone()})
    assert _only(folder) == (
        "the same tensor under two names: backbone.norm_f.weight and model.norm_f.weight"
    )


def test_a_block_config_that_disagrees_with_a_shape(copy: Callable[[str], Path]) -> None:
    folder = copy("unequal")
    entry = {"moe_intermediate_size": 32}
    _configure(folder, lambda d: d["block_configs"][1].update(entry))
    assert _only(folder) == (
        "block_configs[1].moe_intermediate_size is 32, but the tensors say 24: "
        "model.layers.1.mixer.experts.0.up_proj.weight is [24, 16] (8 tensors disagree)"
    )


def test_every_block_config_that_disagrees_is_named(copy: Callable[[str], Path]) -> None:
    folder = copy("unequal")

    def change(config: dict[str, Any]) -> None:
        config["block_configs"][3]["moe_shared_expert_intermediate_size"] = 8
        config["block_configs"][1]["moe_latent_size"] = 32
        config["mtp_block_configs"][1]["moe_intermediate_size"] = 8

    _configure(folder, change)
    places = [message.split(" is ")[0] for message in _said(folder)]
    assert places == [
        "block_configs[1].moe_latent_size",
        "block_configs[3].moe_shared_expert_intermediate_size",
        "mtp_block_configs[1].moe_intermediate_size",
    ]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ssm_state_size", 12, "ssm_state_size is 12, but the tensors say 16"),
        ("moe_intermediate_size", 40, "moe_intermediate_size is 40, but the tensors say 32"),
        ("vocab_size", 256, "vocab_size is 256, but the tensors say 128"),
        ("mamba_num_heads", 8, "mamba_num_heads is 8, but the tensors say 4"),
        ("conv_kernel", 3, "conv_kernel is 3, but the tensors say 4"),
    ],
)
def test_a_global_key_that_disagrees_with_shapes(
    copy: Callable[[str], Path], key: str, value: int, said: str
) -> None:
    folder = copy("equal")
    _configure(folder, lambda d: d.update({key: value}))
    messages = _said(folder)
    assert all(said in message for message in messages), messages
    assert messages


def test_a_single_tensor_of_the_wrong_shape_is_not_blamed_on_the_config(
    copy: Callable[[str], Path],
) -> None:
    folder = copy("equal")
    key = "backbone.layers.1.mixer.experts.2.up_proj.weight"
    _edit(folder, lambda t: t | {key: t[key][:8].clone()})
    assert _only(folder) == f"{key} is [8, 16], the config says [32, 16]"


def test_a_config_that_contradicts_itself(copy: Callable[[str], Path]) -> None:
    folder = copy("unequal")
    _configure(folder, lambda d: d["block_configs"][0].update(block_type="moe"))
    assert _only(folder) == "block_configs[0] is of type 'moe', but block 0 is mamba"


def test_a_prediction_head_that_is_promised_and_not_stored(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    _edit(folder, lambda t: {n: v for n, v in t.items() if not n.startswith("mtp.")})
    assert _only(folder) == (
        "the config promises a prediction head (MTP), but none of its tensors are stored"
    )


def test_a_prediction_head_that_is_stored_in_part(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    _edit(folder, lambda t: {n: v for n, v in t.items() if n != "mtp.layers.0.enorm.weight"})
    assert _only(folder) == ("the prediction head (MTP) lacks 1 tensors: mtp.layers.0.enorm.weight")


def test_a_prediction_head_that_is_stored_and_not_promised(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    _configure(folder, lambda d: d.update(num_nextn_predict_layers=0))
    message = _only(folder)
    assert message.startswith("24 tensors of a prediction head (MTP) are stored, but the config")
    assert "promises no such head" in message


def test_a_tied_head_that_is_stored_twice(copy: Callable[[str], Path]) -> None:
    folder = copy("tied")
    _edit(folder, lambda t: t | {"lm_head.weight": t["backbone.embeddings.weight"].clone()})
    assert _only(folder) == (
        "the tied head is stored twice: lm_head.weight repeats backbone.embeddings.weight"
    )
    Checkpoint(folder).check()


def test_a_tied_head_that_differs_from_the_embedding(copy: Callable[[str], Path]) -> None:
    folder = copy("tied")
    said = "the config ties the head to the embedding, but lm_head.weight differs from it"
    assert _only(folder).startswith(said)
    with pytest.raises(CheckpointError, match="ties the head to the embedding, but lm_head"):
        Checkpoint(folder).check()


def test_a_tied_head_that_is_not_stored_is_sound(copy: Callable[[str], Path]) -> None:
    folder = copy("tied")
    _edit(folder, lambda t: {n: v for n, v in t.items() if n != "lm_head.weight"})
    assert _said(folder) == []


def test_a_wrong_dtype(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    names = [f"backbone.layers.1.mixer.experts.{e}.up_proj.weight" for e in (0, 2)]
    _edit(
        folder,
        lambda t: (
            t | {n: t[n].half() for n in names} | {"lm_head.weight": t["lm_head.weight"].float()}
        ),
    )
    halves, whole = _said(folder)
    assert halves == (
        "wrong dtype: 2 tensors are stored in F16, the config says BF16: "
        "layers.1.mixer.experts.0.up_proj.weight, layers.1.mixer.experts.2.up_proj.weight"
    )
    said = "wrong dtype: one tensor is stored in F32, the config says BF16: lm_head.weight"
    assert whole == said


def test_float32_beside_bfloat16_is_right_for_vectors_and_routers(
    copy: Callable[[str], Path],
) -> None:
    folder = copy("equal")
    _edit(
        folder, lambda t: {n: v.float() if v.ndim == 1 or "gate" in n else v for n, v in t.items()}
    )
    assert _said(folder) == []


def test_without_a_dtype_in_the_config_the_commonest_is_right(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    _configure(folder, lambda d: d.pop("dtype"))
    assert _said(folder) == []
    _edit(folder, lambda t: t | {"lm_head.weight": t["lm_head.weight"].half()})
    assert "one tensor is stored in F16, most of the weights are BF16" in _only(folder)


@pytest.mark.parametrize(
    ("rename", "engines"),
    [
        (("backbone.embeddings", "backbone.embedding"), 6),
        (("backbone.embeddings", "backbone.embed_tokens"), 3),
        (("backbone.", "model."), 1),
        (("backbone.", ""), 6),
    ],
)
def test_keys_that_an_engine_would_not_find(
    copy: Callable[[str], Path], rename: tuple[str, str], engines: int
) -> None:
    folder = copy("equal")
    _edit(folder, lambda t: {n.replace(*rename): v for n, v in t.items()})
    messages = _said(folder)
    assert len(messages) == engines
    assert all(" would not find " in message for message in messages)


def test_fused_experts_are_found_by_some_engines_only(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")

    def fuse(tensors: Tensors) -> Tensors:
        for place in ("backbone.layers.1", "backbone.layers.3", "mtp.layers.1"):
            for end in ("up_proj", "down_proj"):
                parts = [tensors.pop(f"{place}.mixer.experts.{e}.{end}.weight") for e in range(4)]
                tensors[f"{place}.mixer.experts.{end}"] = torch.stack(parts)
        return tensors

    _edit(folder, fuse)
    engines = [message.split(" would")[0] for message in _said(folder)]
    assert engines == ["SGLang", "llama.cpp", "Megatron-Bridge"]


def test_the_tokenizer_must_be_there_and_fit(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "t.T"}}')
    assert "tokenizer wants to run code" in _only(folder)
    (folder / "tokenizer_config.json").unlink()
    added = [{"id": 131_071, "content": "<x>"}]
    _configure(folder, lambda d: d.update(added_tokens=added), "tokenizer.json")
    assert _only(folder) == (
        "tokenizer.json gives ids up to 131071 ('<x>'); the embedding has 128 rows"
    )
    (folder / "tokenizer.json").write_text("[]")
    assert "tokenizer.json holds no JSON object" in _only(folder)
    (folder / "tokenizer.json").unlink()
    assert _only(folder).startswith("no tokenizer: none of tokenizer.json")


def test_all_faults_are_listed_at_once(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    _configure(folder, lambda d: d["weight_map"].pop("lm_head.weight"), INDEX_NAME)
    _configure(folder, lambda d: d.update(moe_intermediate_size=40, num_nextn_predict_layers=0))
    (folder / "tokenizer.json").unlink()
    (folder / "weights.bin").touch()
    assert len(_said(folder)) == 5


def _stranger(folder: Path, tensors: Tensors, **config: object) -> Verification:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return verify_files(folder)


def test_a_model_that_cannot_be_cut_is_verified_without_a_table(tmp_path: Path) -> None:
    half = torch.ones(2, 2, dtype=torch.bfloat16)
    sound = {"a": half, "a2": half.clone(), "b": torch.ones(2)}
    result = _stranger(tmp_path / "sound", sound)
    assert (result.faults, result.family) == ((), "")
    (config,) = [check for check in result.checks if check.name == "config"]
    assert "model_type='llama'" in config.not_run
    assert "no tensor table" in config.not_run

    mixed = {**sound, "c": torch.ones(2, dtype=torch.float16)}
    (fault,) = _stranger(tmp_path / "mixed", mixed).faults
    assert fault.message == "wrong dtype: 1 tensors are stored in F16, the others are not: c"

    packed = {**sound, "c": torch.ones(2, 2, dtype=torch.uint8)}
    (fault,) = _stranger(tmp_path / "packed", packed).faults
    assert "1 matrices are not stored as floating point" in fault.message
    said = _stranger(tmp_path / "said", packed, quantization_config={"quant_method": "x"})
    assert said.faults == ()
    assert "quantised" in next(c.not_run for c in said.checks if c.name == "dtypes")


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (
            "tokenizer.json",
            lambda d: d["model"]["vocab"].update({"more": 128}),
            "tokenizer.json gives ids up to 128 ('more'); the embedding has 128 rows",
        ),
        (
            "tokenizer.json",
            lambda d: d["added_tokens"].append({"id": 130, "content": "<tool>"}),
            "tokenizer.json gives ids up to 130 ('<tool>'); the embedding has 128 rows",
        ),
        (
            "tokenizer_config.json",
            lambda d: d.update(added_tokens_decoder={"128": {"content": "<im>"}}),
            "tokenizer_config.json gives ids up to 128 ('<im>'); the embedding has 128 rows",
        ),
        (
            "generation_config.json",
            lambda d: d.update(eos_token_id=[2, 200]),
            "generation_config.json has eos_token_id 200; the embedding has 128 rows",
        ),
        (
            "config.json",
            lambda d: d.update(pad_token_id=128),
            "config.json has pad_token_id 128; the embedding has 128 rows",
        ),
        (
            "config.json",
            lambda d: d.update(bos_token_id=-2),
            "config.json has bos_token_id -2; token ids begin at 0",
        ),
    ],
)
def test_f13_a_token_id_beyond_the_embedding(
    copy: Callable[[str], Path], file: str, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    folder = copy("equal")
    _configure(folder, change, file)
    assert _only(folder) == said


def test_f13_no_padding_may_be_written_as_minus_one(copy: Callable[[str], Path]) -> None:
    folder = copy("equal")
    _configure(folder, lambda d: d.update(pad_token_id=-1))
    assert _said(folder) == []
