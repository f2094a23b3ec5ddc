"""`fretsaw verify` on what `build` and `distill` have written, and on what was spoiled since."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fretsaw.stages.loaders import PAGE
from fretsaw.stages.quantize import QuantizeOptions, quantize
from fretsaw.stages.verify import NAME, PROMPTS, verify
from tests.flow.conftest import Finished, Said
from tests.flow.pico_run import QUIET, write_text
from tests.pico import write_pico_checkpoint

Command = Callable[..., Said]
Edit = Callable[[dict[str, Any]], object]


def test_a_built_and_a_healed_child_are_sound(finished: Finished, command: Command) -> None:
    for child in (finished.summary.child, *finished.out.glob("round-*/07-build/child")):
        said = command("verify", child)
        assert (said.code, said.err) == (0, ""), said
        assert "no fault found" in said.out


def test_the_folders_own_code_gives_the_same_text_when_it_is_allowed(
    finished: Finished, command: Command
) -> None:
    without, allowed = (
        json.loads(command("verify", finished.summary.child, "--json", *options).out)
        for options in ((), ("--allow-remote-code",))
    )
    assert [t["prompt"] for t in without["texts"]] == list(PROMPTS)
    assert without["texts"] == allowed["texts"]
    for said in (without, allowed):
        assert "trust_remote_code=True (the folder's code is fretsaw's)" in _how(said)


def _how(said: dict[str, Any]) -> str:
    """By whose reader the text came."""
    text: str = said["checks"][-1]["looked_at"]
    return text


def test_u1_another_folders_code_is_not_run_and_the_reader_is_named(
    finished: Finished, tmp_path: Path
) -> None:
    child = Path(shutil.copytree(finished.summary.child, tmp_path / "child"))
    for code in child.glob("*.py"):
        code.write_text('raise SystemExit("code of the folder was run")')
    result = verify(child)
    assert result.faults == ()
    assert result.checks[-1].looked_at.endswith("fretsaw's reader, not plain transformers")
    assert result.texts == verify(finished.summary.child).texts


def test_a_parent_opens_with_transformers_alone(finished: Finished) -> None:
    result = verify(finished.setting.parent)
    assert result.faults == ()
    assert result.checks[-1].looked_at.endswith("plain transformers")
    assert len(result.texts) == len(PROMPTS)


def test_every_fault_is_printed_and_the_exit_code_is_two(
    finished: Finished, tmp_path: Path, command: Command
) -> None:
    child = Path(shutil.copytree(finished.summary.child, tmp_path / "child"))
    config = json.loads((child / "config.json").read_text())
    config["block_configs"][1]["moe_intermediate_size"] = 8
    (child / "config.json").write_text(json.dumps(config))
    (child / "tokenizer.json").unlink()

    said = command("verify", child)

    assert said.code == 2
    assert "1. block_configs[1].moe_intermediate_size is 8, but" in said.out.replace("\n", " ")
    assert "2. no tokenizer" in said.out
    assert "2 faults" in said.out
    found = json.loads(command("verify", child, "--json").out)
    assert found["is_sound"] is False
    assert found["checks"][-1]["not_run"] == "the faults above come first"


@pytest.fixture
def pico(tmp_path: Path) -> Path:
    write_pico_checkpoint(tmp_path / "pico", seed=3)
    return tmp_path / "pico"


def test_a_head_that_transformers_leaves_random_is_a_fault(pico: Path) -> None:
    config = json.loads((pico / "config.json").read_text()) | {"tie_word_embeddings": True}
    (pico / "config.json").write_text(json.dumps(config))
    tensors = load_file(pico / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, pico / "model.safetensors", metadata={"format": "pt"})

    (fault,) = verify(pico).faults

    assert "transformers finds no weights for lm_head.weight" in fault.message


def test_what_keeps_nobody_from_opening_it_does_not_keep_us(pico: Path) -> None:
    tensors = load_file(pico / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].float()
    tensors = {name.replace("backbone.", "model."): tensor for name, tensor in tensors.items()}
    save_file(tensors, pico / "model.safetensors", metadata={"format": "pt"})
    (pico / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")

    result = verify(pico)

    said = {check.name: len(check.faults) for check in result.checks if check.faults}
    assert said == {"no code": 1, "dtypes": 1, "names": 1}
    assert len(result.texts) == len(PROMPTS)


def test_logits_that_are_not_finite_are_a_fault(pico: Path) -> None:
    tensors = load_file(pico / "model.safetensors")
    tensors["backbone.norm_f.weight"][0] = torch.inf
    save_file(tensors, pico / "model.safetensors", metadata={"format": "pt"})

    (fault,) = verify(pico).faults

    assert fault.message == "logits are not finite after 8 of 8 prompts"


def test_no_code_of_a_strangers_folder_is_run(pico: Path) -> None:
    trap = pico / "ran"
    (pico / "configuration_x.py").write_text(f"open({str(trap)!r}, 'w')\n")
    config = json.loads((pico / "config.json").read_text()) | {
        "model_type": "unheard_of",
        "auto_map": {"AutoConfig": "configuration_x.X"},
    }
    (pico / "config.json").write_text(json.dumps(config))

    result = verify(pico)

    assert not trap.exists()
    assert result.faults == ()
    (text,) = [check for check in result.checks if check.name == NAME]
    assert text.not_run == "unheard_of needs the folder's own code: --allow-remote-code"
    (fault,) = verify(pico, allow_remote_code=True).faults
    assert fault.message.startswith("transformers cannot open it:")
    assert trap.exists(), "allowed, the code is run: the trap works"


def test_a_model_that_fits_nowhere_is_not_opened(
    pico: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fretsaw.stages.verify.FLOAT32_BYTES", 10**12)
    result = verify(pico)
    assert result.faults == ()
    assert "of memory in float32" in result.checks[-1].not_run
    assert verify(pico, generate=False).checks[-1].not_run == "not asked for"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pico parent in NVFP4 and FP8."""
    folder = tmp_path_factory.mktemp("packed")
    write_pico_checkpoint(folder / "parent", seed=1)
    options = QuantizeOptions(
        text=write_text(folder / "text"), sequences=8, sequence_length=32, min_tokens=1
    )
    quantize(folder / "parent", out=folder / "nvfp4", options=options, reporter=QUIET)
    return folder / "nvfp4"


def _spoiled(packed: Path, folder: Path, *, said: Edit = bool, tensors: Edit = bool) -> list[str]:
    """Faults of a copy whose quantization_config, or tensors, were edited in place."""
    shutil.copytree(packed, folder)
    config = json.loads((folder / "config.json").read_text())
    said(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    tensors(weights)
    save_file(weights, file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").unlink()
    file.rename(folder / "model.safetensors")
    return [fault.message for fault in verify(folder, generate=False).faults]


def test_a_quantised_checkpoint_is_compared_with_what_it_says_of_itself(packed: Path) -> None:
    result = verify(packed)
    assert result.faults == ()
    seen = {check.name: check.looked_at for check in result.checks}
    assert seen["number formats"] == "nvfp4 × 16, fp8 × 6"
    assert len(result.texts) == len(PROMPTS), "dequantised, it runs"
    assert "plain transformers and trust_remote_code=True" in result.checks[-1].looked_at


def test_u1_a_page_beside_a_quantised_folder_says_who_can_load_it(packed: Path) -> None:
    page = (packed / PAGE).read_text()
    assert "nvfp4 (experts), bf16 (all others)" in page.replace("\n", " ")
    (row,) = [line for line in page.splitlines() if line.startswith("| transformers")]
    assert "| yes, slowly | tried |" in row
    assert "without trust_remote_code transformers stops" in row
    (row,) = [line for line in page.splitlines() if line.startswith("| vLLM")]
    assert "| no | read |" in row, "no kernel for a latent size of 16"


def test_u1_verify_says_what_plain_transformers_makes_of_a_folder_without_our_code(
    packed: Path, tmp_path: Path, command: Command
) -> None:
    """As other tools write it, and fretsaw wrote it before."""
    folder = Path(shutil.copytree(packed, tmp_path / "theirs"))
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"], config["transformers_weights"]
    (folder / "config.json").write_text(json.dumps(config))
    for code in folder.glob("*.py"):
        code.unlink()

    said = command("verify", folder, "--json")

    assert said.code == 0, said
    found = json.loads(said.out)
    assert "fretsaw's reader, which dequantises, not plain transformers" in _how(found)
    answers = {check["name"]: check["answer"] for check in found["checks"]}
    assert "transformers: no; ModelOpt's quantisation is unknown" in answers["who can load"]
    ours = {check.name: check.answer for check in verify(packed, generate=False).checks}
    assert "transformers: yes, slowly (tried); needs" in ours["who can load"]
    assert found["texts"] == [{"prompt": p, "continuation": t} for p, t in verify(packed).texts]


def test_an_exclude_list_is_wrong_both_ways(packed: Path, tmp_path: Path) -> None:
    (missing,) = _spoiled(packed, tmp_path / "a", said=lambda said: said["ignore"].remove("mtp*"))
    assert "mtp.layers.0.eh_proj is in 16 bits but not ignored" in missing
    extra = ["backbone.layers.0.mixer.in_proj", "nothing*"]
    (message,) = _spoiled(packed, tmp_path / "b", said=lambda said: said["ignore"].extend(extra))
    assert message.startswith(f"exclude list, 3 entries: {extra[0]} is quantised but ignored")
    assert message.endswith("'nothing*' matches no module")


def test_a_scale_that_is_missing_or_no_number(packed: Path, tmp_path: Path) -> None:
    stem = "backbone.layers.1.mixer.experts.2.up_proj"
    missing = _spoiled(packed, tmp_path / "a", tensors=lambda t: t.pop(f"{stem}.input_scale"))
    name = "layers.1.mixer.experts.2.up_proj.weight"
    assert missing == [f"{name} has no input_scale, which NVFP4 needs"]
    zero = _spoiled(packed, tmp_path / "b", tensors=lambda t: t[f"{stem}.weight_scale_2"].zero_())
    assert zero == ["layers.1.mixer.experts.2.up_proj.weight_scale_2 is 0.0"]


def test_a_format_that_the_config_does_not_say(packed: Path, tmp_path: Path) -> None:
    module = "backbone.layers.0.mixer.in_proj"
    messages = _spoiled(
        packed,
        tmp_path / "copy",
        said=lambda said: said["quantized_layers"].pop(module),
    )
    assert messages == [f"config says not quantised of {module}, its weight is in fp8"]
