"""A checkpoint of random weights from a config alone: big shapes can be timed before they exist."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fretsaw.checkpoint.assets import (
    copy_assets,
    has_tokenizer,
    write_remote_code,
)
from fretsaw.checkpoint.contents import TOKENIZER_CONFIG
from fretsaw.checkpoint.reader import read_config
from fretsaw.checkpoint.tensors import TORCH_DTYPES
from fretsaw.checkpoint.writer import Planned, write_json, write_weights
from fretsaw.families import family_of
from fretsaw.families.shared_keys import with_dtype, with_end_of_text

MATRIX = 2
"""Axes from which on a weight is random; vectors (norms, biases, decays) are ones."""

BYTES = 256
END = "<end_of_text>"
MERGE = ("Ġ", "Ġ")
"""The one merge of the placeholder tokenizer: llama.cpp's converter does not take none."""


def write_random_checkpoint(source: Path, *, folder: Path, seed: int = 0) -> None:
    """Write a checkpoint of a config's shape with random weights; its text means nothing.

    The prediction head is left out. A folder without a tokenizer gets one of bytes and fillers.

    Args:
        source: A config.json, or a folder that has one.
        folder: Existing, empty.
        seed: Of the weights.

    Raises:
        CheckpointError: no config there.
        UnsupportedModelError: unknown architecture.
        RunError: the disk is too small.
    """
    parent = read_config(source)
    family = family_of(parent)
    shape = replace(family.read_config(parent), mtp=())
    config = with_dtype(family.write_config(shape, parent), "BF16")
    has_own = source.is_dir() and has_tokenizer(source)
    config = config if has_own else with_end_of_text(config, shape.sizes["vocab"] - 1)
    planned = [
        Planned(
            family.stored(name, config),
            "F32" if row.tensor.dtype == "float32" else "BF16",
            row.tensor.shape(row.sizes),
        )
        for row in family.rows(shape)
        for name, _ in row.names()
    ]
    shapes = {tensor.key: tensor for tensor in planned}
    generator = torch.Generator().manual_seed(seed)
    write_json(folder / "config.json", config)
    write_weights(folder, planned, read=lambda key: _values(shapes[key], generator))
    write_remote_code(folder, config)
    if has_own:
        copy_assets(source, folder)
    else:
        write_placeholder_tokenizer(folder, shape.sizes["vocab"])


def _values(tensor: Planned, generator: torch.Generator) -> Tensor:
    """Normal, scaled by the contraction, so that activations neither vanish nor overflow."""
    dtype = TORCH_DTYPES[tensor.dtype]
    if len(tensor.shape) < MATRIX:
        return torch.ones(tensor.shape, dtype=dtype)
    values = torch.empty(tensor.shape, dtype=torch.float32).normal_(generator=generator)
    return values.div_(math.sqrt(tensor.shape[-1])).to(dtype)


def write_placeholder_tokenizer(folder: Path, size: int) -> None:
    """A tokenizer of all bytes, one merge, fillers, and a last token that ends a text.

    Args:
        folder: Existing.
        size: Of the vocabulary.
    """
    end = {"id": size - 1, "content": END, "special": True, "normalized": False}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    words = [*_byte_marks(), "".join(MERGE)]
    words += [f"<filler_{i}>" for i in range(size - len(words))]
    level: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": None,
        "decoder": level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {word: i for i, word in enumerate([*words[: size - 1], END])},
            "merges": [list(MERGE)] if size > BYTES + 1 else [],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    write_json(folder / TOKENIZER_CONFIG, settings)


def _byte_marks() -> list[str]:
    """GPT-2's visible sign of each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(BYTES) if byte not in visible]
    marks = {byte: chr(byte) for byte in visible}
    marks |= {byte: chr(BYTES + i) for i, byte in enumerate(hidden)}
    return [marks[byte] for byte in range(BYTES)]
