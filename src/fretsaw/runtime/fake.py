"""A quantised model as a GPU would compute it: weights, inputs and KV cache rounded alike.

Sums are in the model's own dtype: what differs from a GPU is the order and precision of addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import NemotronHForCausalLM

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import Precision, kind_of
from fretsaw.core.shape import ModelShape
from fretsaw.errors import CheckpointError, DataError
from fretsaw.families import Row, family_named
from fretsaw.families.mixers import KV_SCALES
from fretsaw.quant.calibrate import Activations, kv_scale
from fretsaw.quant.formats import (
    fake_fp8,
    fake_nvfp4,
    fp8_scale,
    nvfp4_scale,
    peak_of,
)
from fretsaw.quant.plan import format_of_row
from fretsaw.quant.reader import QuantizedCheckpoint, dequantized
from fretsaw.runtime.linears import Multiplier, open_block, open_linear
from fretsaw.runtime.load import load_model

Round = Callable[[Tensor], Tensor]
FAKE = {"fp8": fake_fp8, "nvfp4": fake_nvfp4}
SCALE = {"fp8": fp8_scale, "nvfp4": nvfp4_scale}


@dataclass(frozen=True)
class Roundings:
    """What is rounded, by canonical name; what is not named stays as it is.

    Attributes:
        inputs: Weight -> how its inputs are rounded.
        weights: Weight -> how it is rounded itself.
        cache: KV scale -> how keys or values are rounded.
    """

    inputs: Mapping[str, Round]
    weights: Mapping[str, Round]
    cache: Mapping[str, Round]


@contextmanager
def fake_quantized(
    checkpoint: Checkpoint, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Iterator[NemotronHForCausalLM]:
    """A quantised checkpoint whose linear maps read rounded inputs, as on hardware for its format.

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
    with rounded(model, source.shape, roundings=_stored(source, device)):
        yield model


@contextmanager
def rounded(
    model: NemotronHForCausalLM, shape: ModelShape, *, roundings: Roundings
) -> Iterator[None]:
    """While open, a running model rounds weights, inputs and cache; gradients pass through."""
    rows = family_named(shape.family).rows(shape)
    with ExitStack() as stack:
        for index, block in enumerate(shape.blocks):
            own = [r for r in rows if r.part == "block" and r.block == index]
            names = _Names(roundings, own)
            stack.enter_context(
                open_block(
                    model.model.layers[index],
                    block,
                    on_input=names.on_input,
                    on_cache=names.on_cache,
                    on_weight=names.on_weight,
                )
            )
        for row in rows:
            if row.part == "head":
                name = row.tensor.name
                on_input = partial(_round, roundings.inputs.get(name))
                on_weight = partial(_round, roundings.weights.get(name))
                stack.enter_context(
                    open_linear(model.lm_head, on_input=on_input, on_weight=on_weight)
                )
        yield


def _round(how: Round | None, values: Tensor) -> Tensor:
    return values if how is None else how(values)


class _Names:
    """Roundings of one block, asked for by the names inside it."""

    def __init__(self, roundings: Roundings, rows: list[Row]) -> None:
        self.roundings = roundings
        self.prefix = _prefix(rows[0]) if rows else ""

    def _name(self, weight: Multiplier) -> str:
        return self.prefix + weight.name.format(expert=weight.expert)

    def on_input(self, weight: Multiplier, values: Tensor) -> Tensor:
        return _round(self.roundings.inputs.get(self._name(weight)), values)

    def on_weight(self, weight: Multiplier, values: Tensor) -> Tensor:
        return _round(self.roundings.weights.get(self._name(weight)), values)

    def on_cache(self, scale: str, values: Tensor) -> Tensor:
        return _round(self.roundings.cache.get(self.prefix + scale), values)


def _prefix(row: Row) -> str:
    """What comes before the names inside a row's block."""
    return row.tensor.name.removesuffix(row.local)


def _stored(source: QuantizedCheckpoint, device: str) -> Roundings:
    """Inputs and cache by the scales of a checkpoint; its weights are rounded already."""
    inputs: dict[str, Round] = {}
    for name, number_format in source.formats.items():
        if source.algorithm(name) == "W4A16_NVFP4":
            continue
        scale = source.input_scale(name)
        if scale is None:
            raise CheckpointError(
                f"{source.folder}: {name} has no scale for its inputs",
                "quantise it again with calibration text (--text)",
            )
        inputs[name] = partial(FAKE[number_format], scale=scale.to(device))
    cache: dict[str, Round] = {}
    if source.said.has_fp8_cache:
        for name in _cache_names(source.rows):
            cache[name] = partial(fake_fp8, scale=source.cache_scale(name).to(device))
    return Roundings(inputs, {}, cache)


def _cache_names(rows: tuple[Row, ...]) -> list[str]:
    cached = (row for row in rows if row.part == "block" and row.local in KV_SCALES)
    return [_prefix(row) + KV_SCALES[row.local] for row in cached]


def planned_roundings(
    shape: ModelShape, precision: Precision, *, activations: Activations
) -> Roundings:
    """What a precision will round, for a model that is still in full precision and learns.

    A weight is rounded under the scales that its present values ask for, at every look: what
    `fretsaw quantize --method max` would make of it, but for weights that engines fuse, which
    share the scale of the largest there.

    Args:
        shape: Of the model.
        precision: Format of each kind of weight.
        activations: What calibration saw.

    Raises:
        DataError: calibration is missing for a weight.
    """
    rows = family_named(shape.family).rows(shape)
    inputs: dict[str, Round] = {}
    weights: dict[str, Round] = {}
    for row in rows:
        kind = kind_of(row.tensor, part=row.part)
        number_format = format_of_row(row, precision)
        if number_format not in FAKE:
            continue
        for name, _ in row.names():
            weights[name] = partial(_by_own_peak, number_format)
            if kind not in precision.weight_only:
                scale = SCALE[number_format](_seen(activations, name))
                inputs[name] = partial(FAKE[number_format], scale=scale)
    cache: dict[str, Round] = {}
    if precision.kv == "fp8":
        for name in _cache_names(rows):
            cache[name] = partial(fake_fp8, scale=torch.tensor(kv_scale(activations.cache[name])))
    return Roundings(inputs, weights, cache)


def _seen(activations: Activations, name: str) -> Tensor:
    if name not in activations.inputs:
        raise DataError(f"calibration saw no input of {name}", "measure this model's activations")
    return torch.tensor(activations.inputs[name])


def _by_own_peak(number_format: str, weight: Tensor) -> Tensor:
    return FAKE[number_format](weight, scale=SCALE[number_format](peak_of(weight.detach())))
