"""Block views of the pico model, straight from memory, for tests of what runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fretsaw.families import family_of
from fretsaw.runtime.blocks import BlockView
from tests.pico import VOCAB, pico_config, pico_model


def pico_view(seed: int, **overrides: Any) -> BlockView:
    """The pico model as a list of blocks; `overrides` are config keys."""
    config = pico_config(**overrides)
    model = pico_model(seed, **overrides)
    return BlockView(model, family_of(config).read_config(config))


def pico_ids(seed: int, *, sequences: int = 2, tokens: int = 40) -> Tensor:
    """Random token ids, (sequences, tokens)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (sequences, tokens), generator=generator)


def logits_of(view: BlockView, ids: Tensor) -> Tensor:
    """The running model's own logits, through its own forward."""
    with torch.no_grad():
        logits: Tensor = view.model(ids).logits
    return logits


def random_orders(view: BlockView, seed: int) -> dict[int, dict[str, Tensor]]:
    """A random order of the units of every block that has some."""
    generator = torch.Generator().manual_seed(seed)
    orders: dict[int, dict[str, Tensor]] = {}
    for index, block in enumerate(view.shape.blocks):
        sizes = block.sizes
        shapes: dict[str, dict[str, tuple[int | None, ...]]] = {
            "moe": {"ffn": (sizes.get("expert"), sizes.get("ffn"))},
            "mlp": {"ffn": (sizes.get("ffn"),)},
            "mamba": {"state": (sizes.get("group"), sizes.get("state"))},
        }
        orders[index] = {
            dim: torch.rand([n for n in shape if n], generator=generator).argsort(dim=-1)
            for dim, shape in shapes.get(block.mixer, {}).items()
        }
    return orders
