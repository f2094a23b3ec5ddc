"""A quantised model as a GPU would compute it: weights, inputs and KV cache rounded alike.

Sums are in the model's own dtype: what differs from a GPU is the order and precision of addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers import NemotronHForCausalLM

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import Precision, kind_of
from fretsaw.core.shape import ModelShape
from fretsaw.errors import CheckpointError, DataError
from fretsaw.families import Row, family_named
from fretsaw.families.mixers import KV_SCALES
from fretsaw.quant.calibrate import Activations, kv_scale
from fretsaw.quant.formats import fake_fp8
from fretsaw.quant.plan import format_of_row, fused_with
from fretsaw.quant.reader import QuantizedCheckpoint, dequantized
from fretsaw.quant.scales import SCALE_OF_PEAK, GivenScales, Method, WeightScales
from fretsaw.runtime.linears import Counts, open_block, open_linear
from fretsaw.runtime.load import load_model, running_tensors
from fretsaw.runtime.scales import GroupScales, InputScale

RoundInput = Callable[[Tensor, Counts], Tensor]
RoundWeight = Callable[[Tensor], Tensor]
RoundCache = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Roundings:
    """What is rounded, by canonical name pattern; what is not named stays as it is.

    Attributes:
        inputs: Weight -> how its inputs are rounded.
        weights: Weight -> how it is rounded itself, those of all experts at once.
        cache: KV scale -> how keys or values are rounded.
    """

    inputs: Mapping[str, RoundInput]
    weights: Mapping[str, RoundWeight]
    cache: Mapping[str, RoundCache]


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
        if heads := [row for row in rows if row.part == "head"]:
            head = _Names(roundings, heads)
            stack.enter_context(
                open_linear(
                    model.lm_head,
                    on_input=lambda values: head.on_input(heads[0].local, values, counts=None),
                    on_weight=lambda weight: head.on_weight(heads[0].local, weight),
                )
            )
        yield


class _Names:
    """Roundings of one block, or of the head, asked for by the names inside it."""

    def __init__(self, roundings: Roundings, rows: list[Row]) -> None:
        self.roundings = roundings
        self.prefix = _prefix(rows[0]) if rows else ""

    def on_input(self, weight: str, values: Tensor, *, counts: Counts) -> Tensor:
        how = self.roundings.inputs.get(self.prefix + weight)
        return values if how is None else how(values, counts)

    def on_weight(self, weight: str, values: Tensor) -> Tensor:
        how = self.roundings.weights.get(self.prefix + weight)
        return values if how is None else how(values)

    def on_cache(self, scale: str, values: Tensor) -> Tensor:
        how = self.roundings.cache.get(self.prefix + scale)
        return values if how is None else how(values)


def _prefix(row: Row) -> str:
    """What comes before the names inside a row's block."""
    return row.tensor.name.removesuffix(row.local)


def _stored(source: QuantizedCheckpoint, device: str) -> Roundings:
    """Inputs and cache by the scales of a checkpoint; its weights are rounded already."""
    inputs: dict[str, RoundInput] = {}
    for row in source.rows:
        names = [name for name, _ in row.names()]
        number_format = source.formats.get(names[0]) if names else None
        if number_format is None or source.algorithm(names[0]) == "W4A16_NVFP4":
            continue
        scales = [_input_scale(source, name) for name in names]
        inputs[row.tensor.name] = InputScale(_of_row(row, scales).to(device), number_format)
    cache: dict[str, RoundCache] = {}
    if source.said.has_fp8_cache:
        for name in _cache_names(source.rows):
            cache[name] = partial(fake_fp8, scale=source.cache_scale(name).to(device))
    return Roundings(inputs, {}, cache)


def _input_scale(source: QuantizedCheckpoint, name: str) -> Tensor:
    scale = source.input_scale(name)
    if scale is None:
        raise CheckpointError(
            f"{source.folder}: {name} has no scale for its inputs",
            "quantise it again with calibration text (--text)",
        )
    return scale


def _of_row(row: Row, scales: Sequence[Tensor]) -> Tensor:
    """(), or one of each expert."""
    return torch.stack(list(scales)) if row.tensor.name_dims else scales[0]


def _cache_names(rows: tuple[Row, ...]) -> list[str]:
    cached = (row for row in rows if row.part == "block" and row.local in KV_SCALES)
    return [_prefix(row) + KV_SCALES[row.local] for row in cached]


class PlannedRounding(nn.Module):
    """What a precision will round, for a model that is still in full precision and learns.

    Weights, inputs and cache are read as they will be from the files that `quant.export` writes
    with `given`, to the bit where the layout stores scales as they are. Its state is that of the
    scales that do not follow from the weights: as a part of the model they are trained, kept and
    resumed with it.

    Args:
        model: Running, of `shape`; its parameters are looked at anew each time.
        shape: Of the model.
        precision: Format of each kind of weight.
        activations: What calibration saw.
        method: Where scales come from.
        is_power_of_two_cache: KV scales are rounded up to powers of two.

    Raises:
        DataError: calibration is missing for a weight.
    """

    def __init__(
        self,
        model: NemotronHForCausalLM,
        shape: ModelShape,
        *,
        precision: Precision,
        activations: Activations,
        method: Method = "max",
        is_power_of_two_cache: bool = False,
    ) -> None:
        super().__init__()
        rows = family_named(shape.family).rows(shape)
        self._rows = {
            row.tensor.name: row for row in rows if format_of_row(row, precision) in SCALE_OF_PEAK
        }
        running = {pattern: name for name, pattern, _ in running_tensors(shape)}
        fused: dict[object, dict[str, Tensor]] = {}
        for name, row in self._rows.items():
            found = fused.setdefault(fused_with(row), {})
            found[name] = model.get_parameter(running[name])
        self.groups, self.inputs = nn.ModuleList(), nn.ModuleList()
        self._group_of: dict[str, GroupScales] = {}
        self._input_of: dict[str, InputScale] = {}
        for weights in fused.values():
            number_format = format_of_row(self._rows[next(iter(weights))], precision)
            group = GroupScales(weights, number_format, method=method)
            self.groups.append(group)
            self._group_of |= dict.fromkeys(weights, group)
        for name, row in self._rows.items():
            if kind_of(row.tensor, part=row.part) in precision.weight_only:
                continue
            number_format = format_of_row(row, precision)
            peaks = [_seen(activations, one) for one, _ in row.names()]
            scale = SCALE_OF_PEAK[number_format](_of_row(row, peaks))
            self._input_of[name] = InputScale(scale, number_format, is_learned=method == "lsq")
            self.inputs.append(self._input_of[name])
        cached = _cache_names(rows) if precision.kv == "fp8" else []
        self._cache = {
            name: torch.tensor(
                kv_scale(activations.cache[name], is_power_of_two=is_power_of_two_cache)
            )
            for name in cached
        }

    @property
    def roundings(self) -> Roundings:
        """For `rounded`."""
        return Roundings(
            self._input_of,
            {name: partial(group, name) for name, group in self._group_of.items()},
            {name: partial(fake_fp8, scale=scale) for name, scale in self._cache.items()},
        )

    @property
    def given(self) -> GivenScales:
        """The scales that do not follow from weights and activations."""
        weights: dict[str, WeightScales] = {}
        inputs: dict[str, Tensor] = {}
        for pattern, row in self._rows.items():
            names = [name for name, _ in row.names()]
            group, of_input = self._group_of[pattern], self._input_of.get(pattern)
            if group.is_given:
                weights |= zip(names, group.given(pattern), strict=True)
            if of_input is not None and of_input.is_learned:
                inputs |= zip(names, of_input.given(), strict=True)
        return GivenScales(weights, inputs)


def _seen(activations: Activations, name: str) -> Tensor:
    if name not in activations.inputs:
        raise DataError(f"calibration saw no input of {name}", "measure this model's activations")
    return torch.tensor(activations.inputs[name])
