"""The walk around other members of the family: MLP blocks, no latents, tied, fused, unequal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.runtime.load import load_model
from fretsaw.stages.compress import compress
from tests.flow.pico_run import QUIET, Setting, write_text
from tests.pico import write_pico_checkpoint
from tests.views import pico_ids

Tensors = dict[str, Tensor]
LIBRARY = {
    "moe": {"ffn": [8, 16, 24], "top_k": [1]},
    "mamba": {"state": [12]},
    "granularity": {"ffn": 8, "state": 4},
    "repair_sequences": 8,
}


def _fused(tensors: Tensors) -> Tensors:
    """All experts of a projection in one tensor."""
    fused: Tensors = {}
    for name in sorted(tensors):
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(up_proj|down_proj)\.weight", name)
        if match is None:
            fused[name] = tensors[name]
        elif match[2] == "0":
            parts = [tensors[f"{match[1]}.{e}.{match[3]}.weight"] for e in range(4)]
            fused[f"{match[1]}.{match[3]}"] = torch.stack(parts)
    return fused


class Case(NamedTuple):
    """A model that differs from pico, and what is asked of it."""

    name: str
    config: Mapping[str, Any]
    change: Callable[[Tensors], Tensors] = lambda tensors: tensors
    library: Mapping[str, Any] = LIBRARY
    budget: Mapping[str, Any] = {"state_bytes": "75%", "active_routed_params": "60%"}


CASES = [
    Case(
        "mlp blocks, and blocks that may go",
        {
            "layers_block_type": ["mamba", "moe", "attention", "mlp", "moe", "mamba"],
            "num_hidden_layers": 6,
            "intermediate_size": 48,
        },
        library={**LIBRARY, "none": ["mlp", "moe", "mamba"]},
        budget={"params": "75%"},
    ),
    Case("no latents and no prediction head", {"moe_latent_size": None, "with_mtp": False}),
    Case("fused experts", {}, change=_fused),
    Case(
        "tied head",
        {"tie_word_embeddings": True},
        change=lambda tensors: {n: t for n, t in tensors.items() if n != "lm_head.weight"},
    ),
    Case("unequal blocks", {"heterogeneous": True}, library={**LIBRARY, "none": ["mamba"]}),
    Case(
        "all in bfloat16",
        {},
        change=lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()},
    ),
]


def _logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(ids).logits
    return logits


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_walk_goes_around_any_member_of_the_family(case: Case, tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    write_pico_checkpoint(setting.parent, seed=1, **case.config)
    file = setting.parent / "model.safetensors"
    save_file(case.change(load_file(file)), file, metadata={"format": "pt"})
    write_text(setting.text)
    setting.data["distill"]["tokens"] = 256
    setting.data["library"] = dict(case.library)
    setting.data["rounds"] = [{"search": {"budget": dict(case.budget)}}]

    summary = compress(setting.recipe, out=setting.out, reporter=QUIET)

    parent, cut, healed = summary.lines
    assert 0 < healed.kl <= cut.kl
    for name, share in case.budget.items():
        assert healed.costs[name] <= float(share.rstrip("%")) / 100 * parent.costs[name]
    ids = pico_ids(1)
    theirs = AutoModelForCausalLM.from_pretrained(
        summary.child, trust_remote_code=True, dtype=torch.float32
    )
    for module in theirs.modules():
        if isinstance(module, NemotronHMamba2Mixer):
            module.time_step_limit = (0.0, float("inf"))
    ours = load_model(Checkpoint(summary.child))
    assert (_logits(ours, ids) - _logits(theirs, ids)).abs().max() < 1e-5
