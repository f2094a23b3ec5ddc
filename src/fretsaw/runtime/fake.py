"""A quantised model as a GPU would compute it: weights, inputs and KV cache rounded alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor
from transformers import NemotronHForCausalLM

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.errors import CheckpointError
from fretsaw.families import Row
from fretsaw.quant.formats import fake_fp8, fake_nvfp4
from fretsaw.quant.reader import QuantizedCheckpoint, dequantized
from fretsaw.runtime.linears import Multiplier, open_block, open_linear
from fretsaw.runtime.load import load_model


@contextmanager
def fake_quantized(
    checkpoint: Checkpoint, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Iterator[NemotronHForCausalLM]:
    """A quantised checkpoint whose linear maps read rounded inputs, as on hardware for its format.

    Sums are in `dtype`: what differs from a GPU is the order and precision of addition alone.

    Args:
        checkpoint: Opened folder; weight-only weights read their inputs as they are.
        dtype: As `load_model`.
        device: As `load_model`.

    Yields:
        The model, in evaluation mode, which rounds for as long as the context is open.

    Raises:
        CheckpointError: the checkpoint is not quantised, or a scale is missing or damaged.
    """
    source = dequantized(checkpoint)
    if not isinstance(source, QuantizedCheckpoint):
        raise CheckpointError(
            f"{checkpoint.folder} is not quantised", "make it so with `fretsaw quantize`"
        )
    model = load_model(source, dtype=dtype, device=device)
    with ExitStack() as stack:
        for index, block in enumerate(source.shape.blocks):
            rows = [r for r in source.rows if r.part == "block" and r.block == index]
            rounding = _Rounding(source, rows)
            layer = model.model.layers[index]
            stack.enter_context(
                open_block(layer, block, on_input=rounding.on_input, on_cache=rounding.on_cache)
            )
        for row in source.rows:
            if row.part == "head" and (rounded := _rounding(source, row.tensor.name)):
                stack.enter_context(open_linear(model.lm_head, rounded))
        yield model


def _rounding(source: QuantizedCheckpoint, name: str) -> Callable[[Tensor], Tensor] | None:
    """How the inputs of a weight are rounded; None where they are not."""
    if name not in source.formats or source.algorithm(name) == "W4A16_NVFP4":
        return None
    scale = source.input_scale(name)
    if scale is None:
        raise CheckpointError(
            f"{source.folder}: {name} has no scale for its inputs",
            "quantise it again with calibration text (--text)",
        )
    return partial(fake_fp8 if source.formats[name] == "fp8" else fake_nvfp4, scale=scale)


class _Rounding:
    """Rounding of everything that one block reads."""

    def __init__(self, source: QuantizedCheckpoint, rows: list[Row]) -> None:
        self.prefix = rows[0].tensor.name.removesuffix(rows[0].local) if rows else ""
        self.source = source
        self.inputs: dict[Multiplier, Callable[[Tensor], Tensor] | None] = {}
        for row in rows:
            for name, bound in row.names():
                weight = Multiplier(row.local, bound.get("expert"))
                self.inputs[weight] = _rounding(source, name)
        self.scales: dict[str, Tensor] = {}

    def on_input(self, weight: Multiplier, values: Tensor) -> Tensor:
        rounded = self.inputs[weight]
        return values if rounded is None else rounded(values)

    def on_cache(self, scale: str, values: Tensor) -> Tensor:
        if not self.source.said.has_fp8_cache:
            return values
        if scale not in self.scales:
            self.scales[scale] = self.source.cache_scale(self.prefix + scale)
        return fake_fp8(values, scale=self.scales[scale].to(values.device))
