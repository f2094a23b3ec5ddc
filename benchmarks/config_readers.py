"""Do the config readers of SGLang and Megatron-Bridge accept what `fretsaw build` writes?

Neither can be run here: both want an NVIDIA GPU. Their wheels are plain Python, so the modules
that read a config, and Megatron-Bridge's table of weight names, run alone, with stand-ins for the
modules around them that they only mention.

    pip download --no-deps -d wheels sglang==0.5.23
    pip download --no-deps --ignore-requires-python -d wheels megatron-bridge==0.6.2
    python benchmarks/config_readers.py wheels

Parent and child: Super-120B, and a shape like Puzzle-75B's (src/fretsaw/data/configs).

Not run: the names of the prediction head in Megatron-Bridge, which it looks up from its own side;
its reader of unequal blocks, which is in no released wheel (PR #5265); TensorRT-LLM, whose wheel
was not looked into; any loading of weights.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import NemotronHConfig

from fretsaw.core.shape import ModelShape
from fretsaw.families.nemotron_h import read_config, rows, stored, write_config

CONFIGS = Path(__file__).parent.parent / "src" / "fretsaw" / "data" / "configs"
PARENT, CHILD = "super.json", "puzzle.json"

MENTIONED = (
    "megatron.core",
    "modelopt",
    "transformer_engine",
    "megatron.bridge.models.hybrid",
    "megatron.bridge.models.gpt_provider",
    "megatron.bridge.models.mla_provider",
    "megatron.bridge.models.model_provider",
    "megatron.bridge.peft",
    "megatron.bridge.training",
    "megatron.bridge.models.conversion.peft_bridge",
    "megatron.bridge.models.conversion.quant_bridge",
    "megatron.bridge.utils.common_utils",
    "sglang.srt.distributed",
    "sglang.srt.runtime_context",
)
"""Modules that are imported for names which reading a config never uses."""

PACKAGES = (
    "sglang",
    "sglang.srt",
    "sglang.srt.configs",
    "megatron",
    "megatron.bridge",
    "megatron.bridge.models",
    "megatron.bridge.models.conversion",
    "megatron.bridge.models.decorators",
    "megatron.bridge.models.hf_pretrained",
    "megatron.bridge.models.nemotronh",
    "megatron.bridge.utils",
)
"""Packages whose own __init__ would import everything."""


class _Nothing(type):
    """A class that answers every question with False."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: False


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Nothing(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in MENTIONED):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StandIn(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def prepare(folder: Path) -> None:
    """Make the two distributions importable in part."""
    sys.meta_path.insert(0, _Finder())
    for name in PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
    sys.modules["sglang.srt.distributed.utils"] = types.ModuleType("utils")
    sys.modules["sglang.srt.distributed.utils"].divide = lambda a, b: a // b  # type: ignore[attr-defined]
    context = types.ModuleType("sglang.srt.runtime_context")
    context.get_parallel = lambda: types.SimpleNamespace(attn_tp_size=1)  # type: ignore[attr-defined]
    sys.modules[context.__name__] = context


def read_with_sglang(shape: ModelShape, written: dict[str, Any]) -> str:
    """Every block of a written config as SGLang's class gives it, against the shape."""
    from sglang.srt.configs import nemotron_h  # noqa: PLC0415

    is_puzzle = written["model_type"] == "nemotron_h_puzzle"
    reader = nemotron_h.NemotronHPuzzleConfig if is_puzzle else nemotron_h.NemotronHConfig
    config = reader(**json.loads(json.dumps(written)))
    assert config.layers_block_type == [block.mixer for block in shape.blocks]
    heads = [(config.get_mtp_config(), i, block) for i, block in enumerate(shape.mtp)]
    for source, i, block in [*((config, i, b) for i, b in enumerate(shape.blocks)), *heads]:
        own = source.get_nemotron_h_config_for_layer(i)
        if block.mixer == "moe":
            values = block.values
            assert own.n_routed_experts == values["expert"]
            assert own.num_experts_per_tok == values["top_k"]
            assert own.moe_intermediate_size == values["ffn"]
            assert own.moe_shared_expert_intermediate_size == values["shared_ffn"]
            assert own.moe_latent_size == values.get("latent")
    mamba = next(block for block in shape.blocks if block.mixer == "mamba")
    cache = config.mamba2_cache_params
    sizes = mamba.sizes
    assert cache.shape.temporal == (sizes["mamba_head"], sizes["mamba_dim"], sizes["state"])
    assert config.mamba_n_groups == config.n_groups == sizes["group"]
    assert cache.layers == list(shape.indices("mamba"))
    assert config.max_n_routed_experts == max(
        block.sizes["expert"] for block in shape.blocks if block.mixer == "moe"
    )
    return f"{reader.__name__}: {len(shape.blocks)} blocks and {len(shape.mtp)} of the head agree"


def read_with_megatron_bridge(shape: ModelShape, written: dict[str, Any]) -> str:
    """Config and names of equal blocks as Megatron-Bridge's table gives them."""
    from megatron.bridge.models.nemotronh.nemotron_h_bridge import (  # noqa: PLC0415
        NemotronHBridge,
    )

    bridge = object.__new__(NemotronHBridge)
    bridge.hf_config = NemotronHConfig(
        **{k: v for k, v in written.items() if k != "num_hidden_layers"}
    )
    read = bridge.hf_config_to_provider_kwargs(bridge.hf_config)
    moe = next(block for block in shape.blocks if block.mixer == "moe").values
    mamba = next(block for block in shape.blocks if block.mixer == "mamba").sizes
    letters = {"mamba": "M", "moe": "E", "attention": "*", "mlp": "-"}
    assert read["hybrid_layer_pattern"] == "".join(letters[b.mixer] for b in shape.blocks)
    assert read["num_moe_experts"] == moe["expert"]
    assert read["moe_router_topk"] == moe["top_k"]
    assert read["moe_ffn_hidden_size"] == moe["ffn"]
    assert read["mamba_state_dim"] == mamba["state"]
    assert read["mamba_num_groups"] == mamba["group"]
    assert read["share_embeddings_and_output_weights"] is shape.is_tied
    trunk = [row for row in rows(shape) if row.part != "mtp"]
    names = [stored(name, written) for row in trunk for name, _ in row.names()]
    table = bridge.mapping_registry()
    unread = [name for name in names if table.hf_to_megatron_lookup(name) is None]
    assert not unread, unread[:5]
    return f"NemotronHBridge: config agrees, all {len(names)} names of the trunk found"


def main() -> None:
    """Read both configs with both readers, where they have one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("wheels", type=Path, help="folder of the two wheels")
    arguments = parser.parse_args()
    parent, like = (json.loads((CONFIGS / name).read_text()) for name in (PARENT, CHILD))
    with tempfile.TemporaryDirectory() as folder:
        for wheel in sorted(arguments.wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [n for n in archive.namelist() if n.endswith(".py")])
            print(wheel.name)
        prepare(Path(folder))
        for name, shape in {"parent": read_config(parent), "child": read_config(like)}.items():
            written = write_config(shape, parent)
            print(name, "SGLang", read_with_sglang(shape, written), sep=": ")
            if written["model_type"] == "nemotron_h":
                text = read_with_megatron_bridge(shape, written)
                print(name, "Megatron-Bridge", text, sep=": ")


if __name__ == "__main__":
    main()
