"""Greedy continuations of a batch of prompts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from fretsaw.runtime.reopen import without_chatter


@torch.no_grad()
def continue_prompts(
    model: PreTrainedModel, prompts: Tensor, *, num_tokens: int
) -> list[list[int]]:
    """What a model says after each prompt, the most likely token each time.

    Args:
        model: In evaluation mode.
        prompts: (sequences, tokens) int64, no padding.
        num_tokens: Most tokens to add; a continuation ends before an end-of-text token.

    Returns:
        New token ids, a list per prompt.
    """
    prompts = prompts.to(model.device)
    config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    with without_chatter():
        sequences: Any = model.generate(  # type: ignore[operator]
            prompts, attention_mask=torch.ones_like(prompts), generation_config=config
        )
    stop = getattr(model.generation_config, "eos_token_id", None)
    stops = {stop} if isinstance(stop, int) else set(stop or ())
    return [_before(row, stops) for row in sequences[:, prompts.shape[1] :].tolist()]


def _before(ids: list[int], stops: set[int]) -> list[int]:
    end = next((i for i, token in enumerate(ids) if token in stops), len(ids))
    return ids[:end]
