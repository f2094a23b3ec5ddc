"""A quantised folder in plain transformers: the right text with our code, and a stop without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from fretsaw.checkpoint.child import write_child
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import preset
from fretsaw.core.variant import Choice, Variant
from fretsaw.families.quantised import LAYOUTS, STOP
from fretsaw.quant.reader import open_checkpoint
from fretsaw.runtime.load import load_model
from tests.pico import write_pico_checkpoint
from tests.unit.quant.test_export import write

IDS = torch.arange(3, 40)[None]
WIDTHS = {"equal": {}, "unequal": {1: {"ffn": 16, "top_k": 1}}}
"""Own sizes of the MoE blocks; NVFP4 wants multiples of 16."""


@pytest.fixture(scope="module", params=WIDTHS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp(request.param)
    write_pico_checkpoint(folder / "parent", seed=4, num_shards=2)
    parent = Checkpoint(folder / "parent")
    own = WIDTHS[request.param]
    variants = tuple(Variant(i, own.get(i, {})) for i in range(parent.shape.num_blocks))
    (folder / "child").mkdir()
    return write_child(
        parent,
        Choice(variants, score=0.0, costs={}),
        folder=folder / "child",
        orders={},
        repaired=lambda *_: None,
        shard_bytes=10**9,
    )


def opened(folder: Path, **options: Any) -> Any:
    loader: Any = AutoModelForCausalLM
    return loader.from_pretrained(
        folder, local_files_only=True, output_loading_info=True, **options
    )


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["fp8", "nvfp4", "nvfp4-w4a16"])
def test_u1_transformers_reads_what_fretsaw_reads(
    source: Checkpoint, name: str, layout: str, tmp_path: Path
) -> None:
    found = write(source, preset(name), tmp_path / "out", layout=layout, shard_bytes=20_000)
    expected = load_model(open_checkpoint(found.folder))(IDS).logits

    model, info = opened(found.folder, trust_remote_code=True, dtype=torch.float32)

    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.allclose(model(IDS).logits, expected, atol=1e-5)
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == 2


def test_u1_without_code_transformers_stops_and_says_why(
    source: Checkpoint, tmp_path: Path
) -> None:
    found = write(source, preset("fp8"), tmp_path / "out")
    with pytest.raises((OSError, ValueError), match=f"{STOP}|trust_remote_code=True"):
        opened(found.folder, trust_remote_code=False)


@torch.no_grad()
def test_u1_weights_come_in_the_dtype_of_the_config_unless_another_is_asked_for(
    source: Checkpoint, tmp_path: Path
) -> None:
    """With a prediction head, which transformers leaves out of every nemotron_h."""
    found = write(source, preset("nvfp4"), tmp_path / "out")
    expected = load_model(open_checkpoint(found.folder), dtype=torch.bfloat16)(IDS).logits

    model, _ = opened(found.folder, trust_remote_code=True)

    assert model.dtype == torch.bfloat16
    assert model.config.name_or_path == str(found.folder)
    agrees = (model(IDS).logits.argmax(-1) == expected.argmax(-1)).float().mean()
    assert agrees > 0.9, "A and D are rounded to bfloat16 by transformers"


def test_u1_what_is_saved_again_is_plain(source: Checkpoint, tmp_path: Path) -> None:
    found = write(source, preset("nvfp4"), tmp_path / "out")
    model, _ = opened(found.folder, trust_remote_code=True)
    model.save_pretrained(tmp_path / "again")

    saved = Checkpoint(tmp_path / "again")

    assert not {"quantization_config", "transformers_weights"} & set(saved.config)
    name = "layers.1.mixer.experts.0.up_proj.weight"
    assert torch.equal(saved.read(name), found.read(name).bfloat16())
