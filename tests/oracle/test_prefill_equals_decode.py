"""A state-pruned model gives the same logits at once and step by step with a cache."""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import DynamicCache

from tests.views import logits_of, pico_ids, pico_view


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prefill_equals_decode(seed: int) -> None:
    view = pico_view(seed)
    for index in view.shape.indices("mamba"):
        block = view.shape.blocks[index].with_values({"state": 12})
        view.swap(index, view.variant(index, block=block), block=block)
    ids = pico_ids(seed, sequences=2, tokens=24)
    expected = logits_of(view, ids)
    cache = DynamicCache(config=view.model.config)
    names = inspect.signature(inspect.unwrap(type(view.model).forward)).parameters
    name = "cache" if "cache" in names else "past_key_values"
    steps = [
        view.model(ids[:, t : t + 1], **{name: cache}, use_cache=True).logits
        for t in range(ids.shape[1])
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=0, atol=1e-4)
