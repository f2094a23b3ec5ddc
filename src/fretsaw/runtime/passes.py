"""Timed forward passes through a model, or through some of its layers, from a filled cache."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, NemotronHForCausalLM
from transformers.cache_utils import DynamicLayer

from fretsaw.core.shape import ModelShape
from fretsaw.errors import RecipeError, UnsupportedModelError
from fretsaw.pricing.kernels import Step
from fretsaw.runtime.load import ALWAYS_FLOAT32, empty_model

Run = Callable[[], float]
"""One timed pass: prepares, runs, and gives the seconds of the run alone."""

SEED = 0


def random_model(
    shape: ModelShape, config: Mapping[str, Any], *, dtype: torch.dtype = torch.float32
) -> NemotronHForCausalLM:
    """A model of this shape whose random weights keep activations finite and routing even.

    Matrices are normal with variance 1 / fan-in, norms 1, Mamba's own vectors and all biases 0.
    """
    model = empty_model(shape, config)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.ndim > 1:
                tensor.normal_(std=1 / math.sqrt(tensor.shape[-1]), generator=generator)
            else:
                tensor.fill_(float("norm" in name or name.endswith(".D")))
    for name, tensor in model.named_parameters():
        tensor.requires_grad_(False)
        if not name.endswith(ALWAYS_FLOAT32):
            tensor.data = tensor.data.to(dtype)
    model.eval()
    return model


def weights_bytes(model: nn.Module) -> int:
    """Memory of all weights."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


class Flush:
    """Reads as much memory as the rest of the model would, so that weights are as cold as there."""

    def __init__(self, num_bytes: int) -> None:
        self.other = torch.zeros(max(0, num_bytes) // 4)

    def __call__(self) -> None:
        """Read it all."""
        self.other.sum()


class Passes:
    """Forward passes of one step through some layers of a model, each from the same cache.

    Args:
        model: In evaluation mode.
        step: Whole sequences, their new tokens, and the tokens before them.
        flush: Called before each pass, untimed.
        is_whole: From token ids to the last token's logits, instead of blocks and last norm.

    Raises:
        RecipeError: a part of a sequence or of a token is asked for.
        UnsupportedModelError: no attention block.
    """

    def __init__(
        self,
        model: NemotronHForCausalLM,
        step: Step,
        *,
        flush: Callable[[], None] = lambda: None,
        is_whole: bool = False,
    ) -> None:
        self.model, self.layers = model, model.model.layers
        self.sequences, self.tokens, self.context = _whole(step)
        self.flush = flush
        self.is_whole = is_whole
        self.generator = torch.Generator().manual_seed(SEED)
        names = inspect.signature(inspect.unwrap(type(model).forward)).parameters
        self.cache_name = "cache" if "cache" in names else "past_key_values"
        if not any(isinstance(layer, DynamicLayer) for layer in self._empty().layers):
            raise UnsupportedModelError(
                "the model has no attention block; transformers decodes none without one",
                "time its blocks instead",
            )
        self.filled = self._fill() if self.context else None
        layers = self.filled.layers if self.filled else []
        self.kept = [(x, x.keys, x.values) for x in layers if isinstance(x, DynamicLayer)]

    def through(self, layers: nn.ModuleList) -> Run:
        """A timed pass through these layers alone, of fresh inputs."""

        @torch.no_grad()
        def run() -> float:
            self.model.model.layers = layers
            inputs = self._inputs(self.tokens)
            cache = self._cache()
            self.flush()
            started = time.perf_counter()
            self._forward(inputs, cache)
            seconds = time.perf_counter() - started
            self.model.model.layers = self.layers
            return seconds

        return run

    def _forward(self, inputs: dict[str, Any], cache: DynamicCache) -> None:
        target = self.model if self.is_whole else self.model.model
        target(**inputs, **{self.cache_name: cache}, use_cache=True)

    def _inputs(self, tokens: int) -> dict[str, Any]:
        size = (self.sequences, tokens)
        if self.is_whole:
            vocab = self.model.config.vocab_size
            ids = torch.randint(0, vocab, size, generator=self.generator)
            return {"input_ids": ids, "logits_to_keep": 1}
        hidden = torch.randn(*size, self.model.config.hidden_size, generator=self.generator)
        return {"inputs_embeds": hidden.to(self.model.dtype)}

    def _empty(self) -> DynamicCache:
        return DynamicCache(config=self.model.config)

    @torch.no_grad()
    def _fill(self) -> DynamicCache:
        """The state after one token, and the keys and values of `context` tokens."""
        cache = self._empty()
        self._forward(self._inputs(1), cache)
        for index, layer in enumerate(cache.layers):
            if isinstance(layer, DynamicLayer) and layer.keys is not None:
                more = (*layer.keys.shape[:2], self.context - 1, layer.keys.shape[3])
                cache.update(layer.keys.new_zeros(more), layer.keys.new_zeros(more), index)
        return cache

    def _cache(self) -> DynamicCache:
        """A cache of `context` tokens: new while there are none, else the filled one, wound back.

        Mamba's state is left as the pass before made it: its values cost nothing.
        """
        if self.filled is None:
            return self._empty()
        for layer, keys, values in self.kept:
            layer.keys, layer.values = keys, values
        return self.filled


def _whole(step: Step) -> tuple[int, int, int]:
    numbers = (step.sequences, step.tokens, step.context)
    if any(n != int(n) for n in numbers) or step.sequences < 1 or step.tokens < 1:
        raise RecipeError(
            f"a step of {step.sequences:g} sequences, {step.tokens:g} tokens and context "
            f"{step.context:g} cannot be run",
            "measure at whole numbers; the table answers what lies between",
        )
    return int(step.sequences), int(step.tokens), int(step.context)
