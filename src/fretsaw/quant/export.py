"""A checkpoint in FP8 or NVFP4, written tensor by tensor; one group of fused weights in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fretsaw.checkpoint.assets import copy_assets, write_remote_code
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import write_json, write_weights
from fretsaw.errors import CheckpointError, DataError
from fretsaw.families.quantised import (
    BESIDE,
    LEGACY_FILE,
    model_optimizer_file,
    packed_config,
)
from fretsaw.quant.calibrate import Activations, kv_scale, mse_block_scales
from fretsaw.quant.formats import peak_of, quantize_fp8, quantize_nvfp4
from fretsaw.quant.plan import ExportPlan, Group, Piece
from fretsaw.quant.scales import SCALE_OF_PEAK, GivenScales, Method, WeightScales, shared_scale


@dataclass(frozen=True)
class ExportSettings:
    """How scales are chosen, and how files are cut.

    Attributes:
        method: Block scales of NVFP4 weights that have no given ones.
        is_power_of_two_cache: KV scales are rounded up to powers of two.
        shard_bytes: Size of a file.
        is_resumed: Whole files that are there are kept: the same was being written.
    """

    method: Method = "max"
    is_power_of_two_cache: bool = False
    shard_bytes: int = 5 * 10**9
    is_resumed: bool = False


def write_quantized(
    source: Checkpoint,
    plan: ExportPlan,
    *,
    folder: Path,
    activations: Activations | None,
    settings: ExportSettings,
    given: GivenScales | None = None,
    on_tensor: Callable[[int], None] = lambda _: None,
) -> None:
    """Write a plan into a folder.

    Args:
        source: What the plan is of.
        plan: From `plan_export`.
        folder: Existing, private to the caller.
        activations: What calibration saw; none is needed for weight-only formats.
        settings: See there.
        given: Scales that were learned with the weights.
        on_tensor: Told how many tensors are written.

    Raises:
        CheckpointError: a weight has values that are not finite.
        DataError: calibration is missing for a weight.
        RunError: the disk is too small.
    """
    check_calibrated(plan, activations)
    config = packed_config(plan.config, plan.said)
    if plan.said.layout == "modelopt":
        write_json(folder / LEGACY_FILE, model_optimizer_file(plan.said))
    write_json(folder / "config.json", config)
    reader = _Reader(source, plan, activations, settings, given or GivenScales(), on_tensor)
    planned = (piece.planned for piece in plan.pieces)
    write_weights(
        folder,
        planned,
        read=reader.read,
        shard_bytes=settings.shard_bytes,
        is_resumed=settings.is_resumed,
    )
    copy_assets(source.folder, folder)
    write_remote_code(folder, config)


def check_calibrated(plan: ExportPlan, activations: Activations | None) -> None:
    """Whether every static scale of inputs can be made.

    Raises:
        DataError: it cannot.
    """
    known = activations.inputs if activations else {}
    if missing := [name for name in plan.needs_inputs if not known.get(name, 0.0) > 0]:
        raise DataError(
            f"{len(missing)} weights have inputs of unknown size, such as {missing[0]}",
            "give calibration text (--text), or take the weight-only nvfp4-w4a16 for experts",
        )


@dataclass
class _Reader:
    """Makes tensors as they are asked for, and holds one group of fused weights."""

    source: Checkpoint
    plan: ExportPlan
    activations: Activations | None
    settings: ExportSettings
    given: GivenScales
    on_tensor: Callable[[int], None]
    ready: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    @cached_property
    def pieces(self) -> dict[str, tuple[int, Piece]]:
        return {piece.planned.key: (i, piece) for i, piece in enumerate(self.plan.pieces, start=1)}

    def read(self, key: str) -> Tensor:
        """The tensor of a key."""
        number, piece = self.pieces[key]
        self.on_tensor(number)
        if piece.part == "copy":
            return self._weight(piece.source)
        if piece.part == "cache_scale":
            return torch.full(piece.planned.shape, self._cache_scale(piece.source))
        if piece.part == "input_scale":
            return self._input_scale(piece)
        if (piece.source, piece.part) not in self.ready:
            self.ready = self._quantize(piece.group, piece.format)
        return self.ready.pop((piece.source, piece.part)).reshape(piece.planned.shape)

    def _weight(self, name: str) -> Tensor:
        return self.source.read(self.plan.origins.get(name, name))

    def _cache_scale(self, name: str) -> float:
        seen = self.activations.cache.get(name, 0.0) if self.activations else 0.0
        return kv_scale(seen, is_power_of_two=self.settings.is_power_of_two_cache)

    def _input_scale(self, piece: Piece) -> Tensor:
        assert self.activations is not None
        scale = self.given.inputs.get(piece.source)
        if scale is None:
            peak = torch.tensor(self.activations.inputs[piece.source])
            scale = SCALE_OF_PEAK[piece.format](peak)
        return self._stored(scale, piece)

    def _stored(self, scale: Tensor, piece: Piece) -> Tensor:
        beside = BESIDE[self.plan.said.layout, piece.format]
        return (1.0 / scale if beside.is_inverse else scale).reshape(piece.planned.shape)

    def _quantize(self, group: Group, number_format: str) -> dict[tuple[str, str], Tensor]:
        """Codes and scales of the weights of a group; they share the scale of the largest."""
        weights = {name: self._weight(name) for name in self.plan.members[group]}
        peaks = [_finite_peak(name, weight) for name, weight in weights.items()]
        shared = shared_scale(peaks, number_format)
        beside = BESIDE[self.plan.said.layout, number_format]
        found: dict[tuple[str, str], Tensor] = {}
        for name in list(weights):
            weight = weights.pop(name)
            scales = self.given.weights.get(name) or self._scales(
                weight, number_format=number_format, shared=shared
            )
            scale, block_scale = scales.scale, scales.block_scale
            if number_format == "fp8":
                found[name, "weight"] = quantize_fp8(weight, scale=scale).codes
            else:
                made = quantize_nvfp4(weight, scale=scale, block_scale=block_scale)
                found[name, "weight"], found[name, "block_scale"] = made.packed, made.block_scale
            found[name, "scale"] = 1.0 / scale if beside.is_inverse else scale
        return found

    def _scales(self, weight: Tensor, *, number_format: str, shared: Tensor) -> WeightScales:
        """Scales that follow from a weight, under that of all that are fused with it."""
        if number_format == "fp8" or self.settings.method == "max":
            return WeightScales(shared)
        return WeightScales(shared, mse_block_scales(weight, scale=shared))


def _finite_peak(name: str, weight: Tensor) -> Tensor:
    peak = peak_of(weight)
    if not math.isfinite(peak):
        raise CheckpointError(
            f"{name} has values that are not finite", "the checkpoint is damaged: copy it again"
        )
    return peak
