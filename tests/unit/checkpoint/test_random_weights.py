"""A checkpoint from a config alone: its shape, finite text, a tokenizer of some kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from fretsaw.checkpoint.random_weights import write_random_checkpoint
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.runtime.load import load_model
from tests.pico import HETEROGENEOUS, pico_config, puzzle_config, write_pico_checkpoint


@pytest.mark.parametrize("unequal", [False, True])
def test_it_has_the_configs_shape_and_runs(unequal: bool, tmp_path: Path) -> None:
    config = pico_config(vocab_size=512)
    source = tmp_path / "config.json"
    source.write_text(json.dumps(puzzle_config(config, HETEROGENEOUS) if unequal else config))
    (tmp_path / "out").mkdir()

    write_random_checkpoint(source, folder=tmp_path / "out", seed=4)

    checkpoint = Checkpoint(tmp_path / "out")
    checkpoint.check()
    assert [b.mixer for b in checkpoint.shape.blocks] == ["mamba", "moe", "attention", "moe"]
    assert (checkpoint.shape.blocks[3].sizes["ffn"] == 16) is unequal
    assert checkpoint.shape.mtp == ()
    logits = load_model(checkpoint)(torch.arange(40)[None]).logits
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.1
    text = "int main() { return 0; }  é\n"
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 512
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_seeds_decide_the_weights_and_a_folders_tokenizer_is_kept(tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path / "pico", seed=1)
    for name, seed in {"a": 0, "b": 0, "c": 1}.items():
        (tmp_path / name).mkdir()
        write_random_checkpoint(tmp_path / "pico", folder=tmp_path / name, seed=seed)

    a, b, c = (Checkpoint(tmp_path / name).read("lm_head.weight") for name in "abc")

    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    own, kept = (tmp_path / name / "tokenizer.json" for name in ("pico", "a"))
    assert own.read_bytes() == kept.read_bytes()
