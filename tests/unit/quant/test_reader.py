"""Quantised checkpoints that are damaged or say one thing and hold another are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import preset
from fretsaw.errors import CheckpointError
from fretsaw.quant.export import ExportSettings, write_quantized
from fretsaw.quant.plan import plan_export
from fretsaw.quant.reader import QuantizedCheckpoint, dequantized, open_checkpoint
from fretsaw.stages.describe import describe
from tests.pico import write_pico_checkpoint
from tests.unit.quant.test_export import all_peaks

UP = "backbone.layers.1.mixer.experts.2.up_proj"
Q = "backbone.layers.2.mixer.q_proj"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_pico_checkpoint(folder / "source", seed=3)
    source = Checkpoint(folder / "source")
    (folder / "out").mkdir()
    write_quantized(
        source,
        plan_export(source, preset("nvfp4")),
        folder=folder / "out",
        activations=all_peaks(source),
        settings=ExportSettings(),
    )
    return folder / "out"


def changed(
    good: Path,
    folder: Path,
    *,
    weights: Callable[[dict[str, Tensor]], object] = lambda _: None,
    config: Callable[[dict[str, Any]], object] = lambda _: None,
) -> Path:
    shutil.copytree(good, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    weights(tensors)
    save_file(tensors, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, file.name)}))
    data = json.loads((folder / "config.json").read_text())
    config(data["quantization_config"])
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def test_a_good_one_is_described(good: Path) -> None:
    assert isinstance(open_checkpoint(good), QuantizedCheckpoint)
    assert describe(good).is_checked


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (f"{UP}.input_scale", "has no input_scale, which NVFP4 needs"),
        (f"{UP}.weight_scale", "has no block_scale, which NVFP4 needs"),
        (f"{UP}.weight_scale_2", "has no scale, which NVFP4 needs"),
        (f"{UP}.weight", "is missing"),
        (f"{Q}.weight", "is missing"),
        ("mtp.layers.0.mixer.q_proj.weight", "is missing"),
    ],
)
def test_a_missing_part_is_named(good: Path, tmp_path: Path, lost: str, message: str) -> None:
    """R48: a scale that is not there is no scale of one."""
    folder = changed(good, tmp_path / "out", weights=lambda t: t.pop(lost))
    with pytest.raises(CheckpointError, match=message):
        describe(folder)


def test_attention_in_fp8_that_the_config_excludes(good: Path, tmp_path: Path) -> None:
    """R52."""

    def to_fp8(tensors: dict[str, Tensor]) -> None:
        tensors[f"{Q}.weight"] = tensors[f"{Q}.weight"].to(torch.float8_e4m3fn)
        tensors[f"{Q}.weight_scale"] = torch.tensor(1.0)
        tensors[f"{Q}.input_scale"] = torch.tensor(1.0)

    folder = changed(good, tmp_path / "out", weights=to_fp8)
    with pytest.raises(CheckpointError, match=rf"not quantised of {Q}, its weight is in fp8"):
        describe(folder)


def test_a_module_that_the_config_forgets_or_invents(good: Path, tmp_path: Path) -> None:
    forgotten = changed(good, tmp_path / "one", config=lambda c: c["quantized_layers"].pop(UP))
    with pytest.raises(CheckpointError, match=rf"not quantised of {UP}, its weight is in nvfp4"):
        describe(forgotten)
    invented = changed(
        good,
        tmp_path / "two",
        config=lambda c: c["quantized_layers"].update(x={"quant_algo": "FP8"}),
    )
    with pytest.raises(CheckpointError, match="config quantises x, which is no linear map"):
        describe(invented)


@pytest.mark.parametrize(
    ("ignored", "message"),
    [
        (lambda c: c["ignore"].remove("lm_head"), "lm_head is in 16 bits but not ignored"),
        (lambda c: c["ignore"].append("*experts*"), "is quantised but ignored"),
        (lambda c: c["ignore"].append("backbone.layers.*.conv\x00"), "matches no module"),
    ],
)
def test_the_list_of_ignored_modules(
    good: Path, tmp_path: Path, ignored: Callable[[dict[str, Any]], object], message: str
) -> None:
    """R49, R50, R63."""
    folder = changed(good, tmp_path / "out", config=ignored)
    with pytest.raises(CheckpointError, match=message):
        QuantizedCheckpoint(folder).check_ignored()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number(good: Path, tmp_path: Path, value: float) -> None:
    """R45."""

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[f"{UP}.weight_scale_2"] = torch.tensor(value)

    folder = changed(good, tmp_path / "out", weights=spoil)
    with pytest.raises(CheckpointError, match="no positive number"):
        open_checkpoint(folder).read("layers.1.mixer.experts.2.up_proj.weight")


def test_the_legacy_file_alone_is_enough(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(good, folder)
    data = json.loads((folder / "config.json").read_text())
    said = QuantizedCheckpoint(good).said
    del data["quantization_config"]
    (folder / "config.json").write_text(json.dumps(data))
    found = open_checkpoint(folder)
    found.check()
    assert isinstance(found, QuantizedCheckpoint)
    assert found.said.algorithms == said.algorithms


def test_what_is_not_known_is_refused(good: Path, tmp_path: Path) -> None:
    awq = changed(
        good, tmp_path / "one", config=lambda c: c.update(quant_method="awq", quant_algo="AWQ")
    )
    with pytest.raises(CheckpointError, match="quantised by"):
        open_checkpoint(_without(awq, "quantized_layers"))
    gptq = _without(changed(good, tmp_path / "two"), "quant_algo")
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint(gptq)


def _without(folder: Path, key: str) -> Path:
    data = json.loads((folder / "config.json").read_text())
    del data["quantization_config"][key]
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def test_a_quantised_one_cannot_be_cut(good: Path) -> None:
    with pytest.raises(CheckpointError, match="dtype that cannot be cut"):
        Checkpoint(good).check()


def test_a_plain_one_is_left_as_it_is(good: Path) -> None:
    plain = Checkpoint(good.parent / "source")
    assert dequantized(plain) is plain
    found = open_checkpoint(good)
    assert dequantized(found) is found
