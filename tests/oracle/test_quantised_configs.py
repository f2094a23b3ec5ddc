"""What a quantised checkpoint says of itself, against Model Optimizer and compressed-tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme

from fretsaw.families.quantised import (
    LAYOUTS,
    Quantisation,
    compressed_tensors_config,
    model_optimizer_config,
    model_optimizer_file,
    read_quantisation,
)

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden" / "quantised_configs.json").read_text()
)
IGNORED = ("backbone.embeddings", "lm_head", "mtp*")
ALGORITHMS: dict[str, dict[str, str]] = {
    "fp8": {"a.in_proj": "FP8"},
    "nvfp4": {"b.experts.0.up_proj": "NVFP4"},
    "w4a16": {"c.up_proj": "W4A16_NVFP4"},
    "mixed": {
        "a.in_proj": "FP8",
        "b.experts.1.up_proj": "NVFP4",
        "b.experts.0.up_proj": "NVFP4",
        "c.up_proj": "W4A16_NVFP4",
    },
}


def said(name: str, layout: Any = "modelopt") -> Quantisation:
    return Quantisation(layout, ALGORITHMS[name], IGNORED, has_fp8_cache=name != "w4a16")


@pytest.mark.parametrize("name", GOLDEN)
def test_both_files_are_model_optimizers(name: str) -> None:
    assert model_optimizer_file(said(name)) == GOLDEN[name]["file"]
    assert model_optimizer_config(said(name)) == GOLDEN[name]["config"]


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("key", ["file", "config"])
def test_model_optimizers_files_are_read(name: str, key: str) -> None:
    found = read_quantisation(GOLDEN[name][key])
    for module, algorithm in ALGORITHMS[name].items():
        assert found.algorithm_of(module) == algorithm
    for module in ("backbone.embeddings", "lm_head", "mtp.layers.0.mixer.q_proj"):
        assert found.algorithm_of(module) is None
        assert found.ignores(module)
    assert found.has_fp8_cache == (name != "w4a16")


@pytest.mark.parametrize("name", GOLDEN)
def test_compressed_tensors_takes_its_config(name: str) -> None:
    config = compressed_tensors_config(said(name, "compressed-tensors"))
    taken = QuantizationConfig.model_validate(config)
    presets = {"FP8": "FP8", "NVFP4": "NVFP4", "W4A16_NVFP4": "NVFP4A16"}
    for group in taken.config_groups.values():
        (algorithm,) = {ALGORITHMS[name][target] for target in group.targets}
        scheme = preset_name_to_scheme(presets[algorithm], group.targets)
        assert numbers(group.weights) == numbers(scheme.weights)
        assert numbers(group.input_activations) == numbers(scheme.input_activations)
    assert taken.ignore == ["backbone.embeddings", "lm_head", "re:mtp.*"]
    found = read_quantisation(config)
    assert found.algorithms == ALGORITHMS[name]
    assert found.ignores("mtp.layers.0.mixer.q_proj")
    assert not found.ignores("a.in_proj")


def numbers(arguments: Any) -> dict[str, Any]:
    """What of a scheme decides how numbers are stored: not how they were observed."""
    data: dict[str, Any] = arguments.model_dump() if arguments else {}
    return {k: v for k, v in data.items() if k not in ("observer", "observer_kwargs")}


def test_weight_only_says_so() -> None:
    """R48: no reader can take weight-only experts for ones whose inputs are quantised."""
    config = model_optimizer_config(said("w4a16"))
    assert config["quant_algo"] == "W4A16_NVFP4"
    assert all("input_activations" not in group for group in config["config_groups"].values())
    mixed = model_optimizer_config(said("mixed"))["quantized_layers"]
    assert mixed["c.up_proj"]["quant_algo"] == "W4A16_NVFP4"
    half = compressed_tensors_config(said("w4a16", "compressed-tensors"))
    assert half["config_groups"]["group_0"]["input_activations"] is None
    loose = GOLDEN["nvfp4"]["config"] | {"config_groups": {"group_0": {"weights": {}}}}
    assert read_quantisation(loose).single == "W4A16_NVFP4"


def test_layouts_are_known() -> None:
    assert LAYOUTS == ("modelopt", "compressed-tensors")
