"""`fretsaw export`: anybody's checkpoint in the form that engines take, and who takes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.errors import RunError
from fretsaw.quant.reader import open_checkpoint
from fretsaw.serving.engines.base import EngineSettings, engine_python
from fretsaw.serving.engines.llamacpp import INSTALL
from fretsaw.stages.export import PAGE
from fretsaw.stages.quantize import QuantizeOptions, quantize
from fretsaw.stages.verify import verify
from tests.flow.conftest import Finished, Said
from tests.flow.pico_run import QUIET, write_text
from tests.pico import write_pico_checkpoint

Command = Callable[..., Said]


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A checkpoint as someone's tool may leave it: other words, spelling and experts, tied."""
    folder = tmp_path / "odd"
    write_pico_checkpoint(folder, seed=4)
    tensors = load_file(folder / "model.safetensors")
    for place in ("backbone.layers.1", "backbone.layers.3"):
        for end in ("up_proj", "down_proj"):
            parts = [tensors.pop(f"{place}.mixer.experts.{e}.{end}.weight") for e in range(4)]
            tensors[f"{place}.mixer.experts.{end}"] = torch.stack(parts)
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    words = {"mamba": "linear_attention", "attention": "full_attention"}
    config["layers_block_type"] = [words.get(w, w) for w in config["layers_block_type"]]
    config |= {"tie_word_embeddings": True, "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("engine", ["vllm", "transformers", "sglang", "tensorrt-llm"])
def test_an_odd_checkpoint_is_rewritten_for_every_engine(
    odd: Path, tmp_path: Path, command: Command, engine: str
) -> None:
    names = {fault.message.split(" would")[0] for fault in verify(odd, generate=False).faults}
    assert {"vLLM", "SGLang", "llama.cpp", "transformers"} <= names

    said = command("export", odd, "--engine", engine, "--out", tmp_path / "new", "--quiet")

    assert (said.code, said.out.split()) == (0, [str(tmp_path / "new")]), said
    assert verify(tmp_path / "new").faults == ()
    old, new = Checkpoint(odd), Checkpoint(tmp_path / "new")
    assert new.config["layers_block_type"] == ["mamba", "moe", "attention", "moe"]
    for name in old.stored:
        assert torch.equal(new.read(name), old.read(name)), name
    assert torch.equal(new.read("lm_head.weight"), old.read("embeddings.weight"))


def test_a_page_beside_every_child_says_who_can_load_it(finished: Finished) -> None:
    for child in (finished.summary.child, *finished.out.glob("round-*/07-build/child")):
        page = (child / PAGE).read_text()
        rows = [line for line in page.splitlines() if line.startswith("| ")]
        engines = {row.split(" | ")[0].removeprefix("| "): row for row in rows}
        assert {"vLLM", "SGLang", "llama.cpp", "TensorRT-LLM", "transformers"} <= set(engines)
        assert "trust_remote_code" in engines["transformers"], "blocks differ"
        assert "state 12 in block 0" in engines["vLLM"]
        assert "bf16" in page


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pico parent in NVFP4 and FP8, its text beside it."""
    folder = tmp_path_factory.mktemp("quantised")
    write_pico_checkpoint(folder / "parent", seed=4)
    options = QuantizeOptions(
        text=write_text(folder / "text"), sequences=4, sequence_length=32, min_tokens=1
    )
    quantize(folder / "parent", out=folder / "packed", options=options, reporter=QUIET)
    return folder / "packed"


def test_u1_a_quantised_folder_is_written_dequantised(
    packed: Path, tmp_path: Path, command: Command
) -> None:
    said = command("export", packed, "--engine", "vllm", "--out", tmp_path / "plain")

    assert said.code == 0, said
    assert verify(tmp_path / "plain", generate=False).faults == ()
    old, new = open_checkpoint(packed), Checkpoint(tmp_path / "plain")
    assert not {"quantization_config", "transformers_weights", "auto_map"} & set(new.config)
    assert not list((tmp_path / "plain").glob("*.py"))
    for name in new.stored:
        assert torch.equal(new.read(name), old.read(name).to(new.read(name).dtype)), name
    assert new.dtype_of("layers.1.mixer.experts.0.up_proj.weight") == "BF16"
    refused = command("quantize", packed, "--to", "fp8", "--out", tmp_path / "again")
    assert (refused.code, "is quantised already" in refused.err) == (2, True)
    described = command("describe", packed)
    assert (described.code, "every stored tensor agrees" in described.out) == (0, True)
    planned = command("plan", packed, "--hardware", "H100", "--context", "512", "--to", "nvfp4")
    assert planned.code == 0, planned


def test_u1_a_quantised_parent_is_refused_with_the_way_out(
    tmp_path: Path, packed: Path, command: Command
) -> None:
    recipe = {"parent": str(packed), "data": {"path": str(packed.parent / "text")}}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    said = command("compress", tmp_path / "r.yaml", "--out", tmp_path / "run")
    assert said.code == 2
    assert f"`fretsaw export {packed} --engine vllm --out NEW` dequantises" in said.err


def test_what_is_there_is_not_overwritten(odd: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "mine").mkdir()
    said = command("export", odd, "--engine", "vllm", "--out", tmp_path / "mine")
    assert said.code == 2
    assert "is there already" in said.err
    assert not list((tmp_path / "mine").iterdir())


def test_an_engine_that_is_unknown_or_does_not_take_it_is_named(
    tmp_path: Path, command: Command
) -> None:
    write_pico_checkpoint(tmp_path / "unequal", seed=4, heterogeneous=True)
    said = command("export", tmp_path / "unequal", "--engine", "vlm", "--out", tmp_path / "new")
    assert (said.code, "did you mean 'vllm'" in said.err) == (2, True)
    said = command("export", tmp_path / "unequal", "--engine", "mlx-lm", "--out", tmp_path / "new")
    assert said.code == 2
    assert "mlx-lm: nemotron_h with unequal blocks is not taken" in said.err
    assert not (tmp_path / "new").exists()


def test_without_llama_cpp_it_says_how_to_get_it(
    odd: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = command("export", odd, "--engine", "llama.cpp", "--out", tmp_path / "new")
    assert said.code == 2
    assert "llama.cpp is not installed" in said.err
    assert "make engines" in said.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["odd"]


@pytest.mark.engines
def test_llama_cpp_takes_an_odd_checkpoint_and_an_unequal_child(
    odd: Path, finished: Finished, tmp_path: Path, command: Command
) -> None:
    settings = EngineSettings(context=0, sequences=0, scratch=tmp_path)
    try:
        engine_python("llama.cpp", module="xllamacpp", settings=settings, install=INSTALL)
    except RunError as error:
        pytest.skip(error.hint)
    for name, folder in {"odd": odd, "child": finished.summary.child}.items():
        said = command(
            "export", folder, "--engine", "llama.cpp", "--out", tmp_path / "out" / name, "--quiet"
        )
        assert said.code == 0, said.err
        (file,) = (tmp_path / "out" / name).iterdir()
        assert file.read_bytes()[:4] == b"GGUF"
