"""Text samples of a round: parent and child go on with the same held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from fretsaw.checkpoint.writer import write_json
from fretsaw.runtime.continuation import continue_prompts
from fretsaw.stages.run import RunRound
from fretsaw.stages.text import validation_ids
from fretsaw.train.packing import load_tokenizer

SAMPLES = "samples.json"
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 32, 40


def write_samples(
    round_: RunRound, *, parent: PreTrainedModel, child: PreTrainedModel, folder: Path
) -> None:
    """Write what both models say after the beginnings of a few held-out sequences.

    Args:
        round_: Whose held-out text.
        parent: The original parent.
        child: The healed child.
        folder: Of the stage.
    """
    ids = validation_ids(round_)[:PROMPTS]
    prompts = ids[:, : min(PROMPT_TOKENS, ids.shape[1])]
    said = [continue_prompts(m, prompts, num_tokens=NEW_TOKENS) for m in (parent, child)]
    rows = [
        _sample(prompt.tolist(), continuations, tokenizer=load_tokenizer(round_.run.parent))
        for prompt, *continuations in zip(prompts, *said, strict=True)
    ]
    write_json(folder / SAMPLES, rows)


def _sample(
    prompt: list[int], continuations: Sequence[list[int]], *, tokenizer: Any
) -> dict[str, Any]:
    """A prompt and what parent and child say after it, as text."""
    before = tokenizer.decode(prompt)
    parent, child = (
        str(tokenizer.decode([*prompt, *ids])).removeprefix(before) for ids in continuations
    )
    is_equal = continuations[0] == continuations[1]
    return {"prompt": before, "parent": parent, "child": child, "is_equal": is_equal}


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """The samples of a finished `distill`; none if an earlier version of fretsaw made it."""
    file = folder / SAMPLES
    if not file.is_file():
        return []
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return rows
