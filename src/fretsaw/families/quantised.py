"""Names and config keys of quantised checkpoints: what lies beside a weight, and what says so.

Two layouts: ModelOpt's, which vLLM, SGLang and TensorRT-LLM read, and that of compressed-tensors.

Source: Model Optimizer 0.47 (`export/convert_hf_config.py`, `export/quant_utils.py`); vLLM 0.32
(`quantization/modelopt.py`); compressed-tensors 0.20 (`compressors/nvfp4`, `quantization`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, get_args

LayoutName = Literal["modelopt", "compressed-tensors"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)

CONFIG_KEY, LEGACY_FILE = "quantization_config", "hf_quant_config.json"
GROUP_SIZE = 16

STOP = "these-weights-are-packed-and-need-trust_remote_code.safetensors"
"""What transformers asks for, and its error names, where it would read packed bytes as weights."""

PACKED_CODE = {
    "AutoModelForCausalLM": "modeling_nemotron_h_puzzle.NemotronHPuzzleForCausalLM",
}

Algorithm = Literal["FP8", "NVFP4", "W4A16_NVFP4"]
FORMAT_OF: dict[str, str] = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4"}
"""Algorithm -> number format of the weight."""

PRODUCER = {"name": "modelopt", "version": "0.47.0"}
"""The layout, not the program: SGLang refuses a `hf_quant_config.json` of any other producer."""


@dataclass(frozen=True)
class Beside:
    """What a quantised weight is stored as: suffixes after its module's name.

    Attributes:
        weight: Codes.
        scale: Scale of the whole tensor, float32.
        block_scale: Scales of its blocks, where the format has them.
        input_scale: Static scale of what it multiplies, float32.
        is_inverse: Scales of whole tensors are stored as one over them.
        scale_shape: Shape of those.
    """

    weight: str
    scale: str
    block_scale: str | None
    input_scale: str
    is_inverse: bool
    scale_shape: tuple[int, ...]

    def key(self, weight_key: str, part: str) -> str:
        """Key of a part (``weight``, ``scale``, ``block_scale``, ``input_scale``) of a weight."""
        return f"{module_of(weight_key)}.{getattr(self, part)}"


BESIDE: dict[tuple[LayoutName, str], Beside] = {
    ("modelopt", "fp8"): Beside("weight", "weight_scale", None, "input_scale", False, ()),
    ("modelopt", "nvfp4"): Beside(
        "weight", "weight_scale_2", "weight_scale", "input_scale", False, ()
    ),
    ("compressed-tensors", "fp8"): Beside(
        "weight", "weight_scale", None, "input_scale", False, (1,)
    ),
    ("compressed-tensors", "nvfp4"): Beside(
        "weight_packed", "weight_global_scale", "weight_scale", "input_global_scale", True, (1,)
    ),
}


@dataclass(frozen=True)
class Quantisation:
    """What a checkpoint says about itself.

    Attributes:
        layout: Whose names and keys.
        algorithms: Module -> algorithm; empty with `single` where all but `ignore` share one.
        ignore: Modules, or patterns of them, in 16 bits or more.
        has_fp8_cache: Whether keys and values are kept in FP8.
        single: The algorithm of every module that is not ignored.
    """

    layout: LayoutName
    algorithms: Mapping[str, str]
    ignore: tuple[str, ...]
    has_fp8_cache: bool
    single: str | None = None

    def algorithm_of(self, module: str) -> str | None:
        """Algorithm of a linear map's module; None where it is not quantised."""
        if self.single is None or module in self.algorithms:
            return self.algorithms.get(module)
        return None if self.ignores(module) else self.single

    def ignores(self, module: str) -> bool:
        """Whether a module is in the list of those left alone."""
        exact, patterns = self._ignored
        return module in exact or any(is_match(pattern, module) for pattern in patterns)

    @cached_property
    def _ignored(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Names and patterns apart: there are tens of thousands of modules to ask about."""
        patterns = tuple(name for name in self.ignore if "*" in name)
        return frozenset(self.ignore), patterns


def is_match(pattern: str, module: str) -> bool:
    """Whether a pattern of the list of modules left alone means a module."""
    if pattern.startswith("re:"):
        return fnmatchcase(module, pattern.removeprefix("re:").replace(".*", "*"))
    return fnmatchcase(module, pattern)


def packed_config(config: Mapping[str, Any], said: Quantisation) -> dict[str, Any]:
    """The config of a checkpoint with packed weights; `config` is that of the same model without.

    transformers skips a quantisation that it does not know and reads the codes as weights. So that
    it stops instead, `transformers_weights` sends its own loader to a file that is not there (its
    pull request 38152, since 4.52; engines do not read the key); `auto_map` names our loader, which
    dequantises.
    """
    is_optimizer = said.layout == "modelopt"
    return {
        **config,
        CONFIG_KEY: (model_optimizer_config if is_optimizer else compressed_tensors_config)(said),
        "transformers_weights": STOP,
        "auto_map": PACKED_CODE | config.get("auto_map", {}),
    }


def module_of(weight_key: str) -> str:
    """Module that a weight belongs to."""
    return weight_key.removesuffix(".weight")


def tree_of(weight_key: str) -> str:
    """Pattern of the modules below the first component of a key, as ``mtp*``."""
    return weight_key.partition(".")[0] + "*"


def model_optimizer_file(said: Quantisation) -> dict[str, Any]:
    """Content of `hf_quant_config.json`.

    One algorithm goes by itself, several as MIXED_PRECISION with a list of modules; every key that
    a reader asks for is there, empty or not.
    """
    found = sorted(set(said.algorithms.values()))
    inside: dict[str, Any] = {
        "quant_algo": found[0] if len(found) == 1 else "MIXED_PRECISION",
        "kv_cache_quant_algo": "FP8" if said.has_fp8_cache else None,
    }
    if any(FORMAT_OF[a] == "nvfp4" for a in found):
        inside["group_size"] = GROUP_SIZE
    inside["exclude_modules"] = list(said.ignore)
    if len(found) > 1:
        inside["quantized_layers"] = {m: _layer(a) for m, a in said.algorithms.items()}
    return {"producer": PRODUCER, "quantization": inside}


def _layer(algorithm: str) -> dict[str, Any]:
    size = {"group_size": GROUP_SIZE} if FORMAT_OF[algorithm] == "nvfp4" else {}
    return {"quant_algo": algorithm, **size}


def model_optimizer_config(said: Quantisation) -> dict[str, Any]:
    """`quantization_config` of config.json in Model Optimizer's layout."""
    file = model_optimizer_file(said)["quantization"]
    is_mixed = "quantized_layers" in file
    groups = {}
    for i, algorithm in enumerate(dict.fromkeys(said.algorithms.values())):
        modules = sorted(m for m, a in said.algorithms.items() if a == algorithm)
        groups[f"group_{i}"] = {
            **_numbers(algorithm),
            "targets": modules if is_mixed else ["Linear"],
        }
    config: dict[str, Any] = {"config_groups": groups}
    if is_mixed:
        config["quantized_layers"] = file["quantized_layers"]
    config |= {"ignore": file["exclude_modules"], "quant_algo": file["quant_algo"]}
    if said.has_fp8_cache:
        config["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    return {**config, "producer": PRODUCER, "quant_method": "modelopt"}


def _numbers(algorithm: str) -> dict[str, Any]:
    """Number formats of an algorithm; weight-only says so by naming no inputs."""
    if algorithm == "FP8":
        eighth = {"dynamic": False, "num_bits": 8, "type": "float"}
        return {"input_activations": eighth, "weights": eighth}
    fourth = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": GROUP_SIZE}
    return {"weights": fourth} | ({"input_activations": fourth} if algorithm == "NVFP4" else {})


def compressed_tensors_config(said: Quantisation) -> dict[str, Any]:
    """`quantization_config` of config.json in the layout of compressed-tensors."""
    groups = {}
    for i, algorithm in enumerate(dict.fromkeys(said.algorithms.values())):
        modules = sorted(m for m, a in said.algorithms.items() if a == algorithm)
        groups[f"group_{i}"] = {**_scheme(algorithm), "targets": modules}
    formats = {group["format"] for group in groups.values()}
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": [_as_regex(pattern) for pattern in said.ignore],
        "kv_cache_scheme": {**cache, "dynamic": False} if said.has_fp8_cache else None,
    }


def _as_regex(pattern: str) -> str:
    return "re:" + pattern.replace("*", ".*") if "*" in pattern else pattern


def _scheme(algorithm: str) -> dict[str, Any]:
    if algorithm == "FP8":
        eighth = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
        fixed = {**eighth, "dynamic": False}
        return {"weights": fixed, "input_activations": fixed, "format": "float-quantized"}
    fourth = {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": GROUP_SIZE,
        "symmetric": True,
        "scale_dtype": "torch.float8_e4m3fn",
    }
    inputs = {**fourth, "dynamic": "local"} if algorithm == "NVFP4" else None
    return {
        "weights": {**fourth, "dynamic": False},
        "input_activations": inputs,
        "format": "nvfp4-pack-quantized",
    }


def read_quantisation(config: Mapping[str, Any]) -> Quantisation:
    """What a `quantization_config`, or the content of a `hf_quant_config.json`, says.

    Args:
        config: Either of them, of either layout.

    Raises:
        KeyError, TypeError, AttributeError: it is of neither, or damaged.
    """
    if config.get("quant_method") == "compressed-tensors":
        return _read_compressed_tensors(config)
    inside: Mapping[str, Any] = config.get("quantization", config)
    algorithm = str(inside["quant_algo"]).upper()
    layers = inside.get("quantized_layers") or {}
    cache = inside.get("kv_cache_quant_algo", inside.get("kv_cache_scheme"))
    groups = inside.get("config_groups") or {}
    if algorithm == "NVFP4" and groups and not any(map(_has_inputs, groups.values())):
        algorithm = "W4A16_NVFP4"
    return Quantisation(
        "modelopt",
        {module: str(layer["quant_algo"]).upper() for module, layer in layers.items()},
        _words(inside.get("exclude_modules", inside.get("ignore"))),
        bool(cache),
        None if layers else algorithm,
    )


def _words(names: object) -> tuple[str, ...]:
    """Names in a list; none where there is no list."""
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{names!r:.60} is no list of names")
    return tuple(names)


def _has_inputs(group: Mapping[str, Any]) -> bool:
    return group.get("input_activations") is not None


def _read_compressed_tensors(config: Mapping[str, Any]) -> Quantisation:
    algorithms: dict[str, str] = {}
    for group in config["config_groups"].values():
        algorithms |= dict.fromkeys(_words(group["targets"]), _algorithm(group))
    single = algorithms.pop("Linear", None)
    return Quantisation(
        "compressed-tensors",
        algorithms,
        _words(config.get("ignore")),
        bool(config.get("kv_cache_scheme")),
        single,
    )


def _algorithm(group: Mapping[str, Any]) -> str:
    if group["weights"]["num_bits"] == 8:  # noqa: PLR2004
        return "FP8"
    return "NVFP4" if _has_inputs(group) else "W4A16_NVFP4"
