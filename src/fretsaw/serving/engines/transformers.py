"""transformers, in this process: the reference for what the engines say, not for their speed.

It has no continuous batching: requests of one length run together, and the next batch waits until
all of them are done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import NemotronHForCausalLM, StoppingCriteriaList

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.tensors import TORCH_DTYPES
from fretsaw.errors import RunError
from fretsaw.runtime.load import load_model
from fretsaw.serving.engines.base import EngineSettings, Generation, Prompt, Timing

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class Transformers:
    """The engine: the checkpoint as `fretsaw.runtime` opens it."""

    name: str = "transformers"

    @contextmanager
    def open(self, folder: Path, settings: EngineSettings) -> Iterator[TransformersSession]:
        """Load a checkpoint folder.

        Raises:
            CheckpointError: a tensor is missing or damaged.
            RunError: an engine argument, which it does not have, or an unknown dtype.
        """
        if settings.arguments or settings.python:
            raise RunError(
                "transformers runs in this process: it takes no engine argument and no Python",
                "leave them out, or take --engine vllm",
            )
        if settings.dtype not in DTYPES:
            raise RunError(f"dtype {settings.dtype!r} is unknown", f"take one of {list(DTYPES)}")
        torch.set_num_threads(settings.threads)
        dtype = TORCH_DTYPES[DTYPES[settings.dtype]]
        yield TransformersSession(load_model(Checkpoint(folder), dtype=dtype))


@dataclass(frozen=True)
class TransformersSession:
    """A loaded model."""

    model: NemotronHForCausalLM

    def generate(self, prompts: Sequence[Prompt], *, num_tokens: int) -> tuple[Generation, ...]:
        """Greedy continuations; see `Session`."""
        return tuple(self._generate(prompt, num_tokens) for prompt in prompts)

    def _generate(self, prompt: Prompt, num_tokens: int) -> Generation:
        made = self._run([prompt], num_tokens, output_logits=True, return_dict_in_generate=True)
        tokens = made.sequences[0, len(prompt) :]
        logprobs = torch.cat(made.logits).float().log_softmax(-1)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        return Generation(tuple(tokens.tolist()), tuple(chosen.tolist()))

    def bear(
        self, prompts: Sequence[Prompt], *, num_tokens: int, concurrency: int
    ) -> tuple[Timing, ...]:
        """Batch after batch; see `Session`.

        Raises:
            RunError: the prompts are not of one length.
        """
        if len({len(prompt) for prompt in prompts}) > 1:
            raise RunError(
                "transformers runs prompts of one length together; these differ",
                "take --engine vllm or llama.cpp",
            )
        timings: list[Timing] = []
        for start in range(0, len(prompts), concurrency):
            batch = prompts[start : start + concurrency]
            timings += [self._time(batch, num_tokens)] * len(batch)
        return tuple(timings)

    def _time(self, batch: Sequence[Prompt], num_tokens: int) -> Timing:
        clock = _Clock()
        sent = time.perf_counter()
        self._run(batch, num_tokens, stopping_criteria=StoppingCriteriaList([clock]))
        return Timing(num_tokens, sent, clock.times_s[0], clock.times_s[-1])

    def _run(self, prompts: Sequence[Prompt], num_tokens: int, **options: Any) -> Any:
        ids = torch.tensor([list(prompt) for prompt in prompts])
        length = {"min_new_tokens": num_tokens, "max_new_tokens": num_tokens}
        return self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, **length, **options
        )

    def acceptance_length(self) -> float | None:
        """None: no speculative decoding."""
        return None

    def peak_bytes(self) -> int | None:
        """None: it shares this process with everything else."""
        return None


class _Clock:
    """Notes when each token of a batch is there; called by `generate` after each step."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: Tensor, *_: object, **__: object) -> Tensor:
        self.times_s.append(time.perf_counter())
        return input_ids.new_zeros(len(input_ids), dtype=torch.bool)
