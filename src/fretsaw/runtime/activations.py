"""Largest magnitudes of what each linear map and each expert reads, block by block.

Memory holds one block of the model and the hidden states of the whole text.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.shape import Block
from fretsaw.errors import RunError
from fretsaw.families import Row
from fretsaw.quant.calibrate import Activations, Magnitudes, share_peaks
from fretsaw.runtime.blocks import run_block
from fretsaw.runtime.linears import Counts, linear_rows, open_block
from fretsaw.runtime.load import empty_model, load_block, read_running


@dataclass(frozen=True)
class ActivationSettings:
    """How activations are measured.

    Attributes:
        min_tokens: Routed tokens that an expert needs for a maximum of its own.
        percentile: Share of magnitudes that a maximum covers, in percent; all if not given.
        dtype: Of the running blocks.
        device: Where they run.
    """

    min_tokens: int = 32
    percentile: float | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


@torch.no_grad()
def measure_activations(
    checkpoint: Checkpoint,
    batches: Sequence[Tensor],
    *,
    settings: ActivationSettings | None = None,
    on_block: Callable[[int], None] = lambda _: None,
) -> Activations:
    """Push text through the trunk block by block, and note what each weight multiplies.

    Args:
        checkpoint: Opened folder.
        batches: Token ids, each (sequences, tokens), without padding.
        settings: Defaults where not given.
        on_block: Told how many blocks are done.

    Raises:
        RunError: a block computes values that are not finite, or a linear map was passed by.
    """
    settings = settings or ActivationSettings()
    dtype, device = settings.dtype, settings.device
    config = empty_model(checkpoint.shape, checkpoint.config).config
    outside: dict[str, Row] = {row.part: row for row in checkpoint.rows if row.part != "block"}
    table = read_running(checkpoint, outside["embedding"], dtype=dtype, device=device)
    hidden = [functional.embedding(ids.to(device), table) for ids in batches]
    del table
    found = _Found(settings)
    for index, block in enumerate(checkpoint.shape.blocks):
        module = load_block(checkpoint, index, config=config, dtype=dtype, device=device)
        seen = _Seen(has_histogram=settings.percentile is not None)
        with open_block(module, block, on_input=seen.on_input, on_cache=seen.on_cache):
            for i, states in enumerate(hidden):
                hidden[i] = run_block(module, states)
        rows = [r for r in checkpoint.rows if r.part == "block" and r.block == index]
        found.take(seen, block, rows=rows, num_tokens=sum(ids.numel() for ids in batches))
        on_block(index + 1)
    _observe_head(checkpoint, hidden, found=found, outside=outside)
    return Activations(
        found.inputs, found.cache, found.tokens, sum(b.numel() for b in batches), found.borrowed
    )


def _observe_head(
    checkpoint: Checkpoint, hidden: Sequence[Tensor], *, found: _Found, outside: Mapping[str, Row]
) -> None:
    """What the head reads, where the model has a head of its own."""
    if "head" not in outside:
        return
    norm = empty_model(checkpoint.shape.with_blocks(()), checkpoint.config).model.norm_f
    settings = found.settings
    weight = read_running(checkpoint, outside["norm"], dtype=settings.dtype, device=settings.device)
    norm.load_state_dict({"weight": weight}, assign=True)
    seen = Magnitudes(has_histogram=settings.percentile is not None)
    for states in hidden:
        seen.add(norm(states))
    found.inputs[outside["head"].tensor.name] = seen.peak(settings.percentile)


@dataclass
class _Seen:
    """What a block's linear maps and cache were given, by name and expert (0 if there is none)."""

    has_histogram: bool
    inputs: dict[tuple[str, int], Magnitudes] = field(default_factory=dict)
    cache: dict[str, Magnitudes] = field(default_factory=dict)
    tokens: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def on_input(self, weight: str, values: Tensor, *, counts: Counts) -> Tensor:
        parts = (values,) if counts is None else values.split(counts)
        for expert, part in enumerate(parts):
            key = weight, expert
            if key not in self.inputs:
                self.inputs[key] = Magnitudes(has_histogram=self.has_histogram)
            self.inputs[key].add(part)
            self.tokens[key] += part.numel() // part.shape[-1]
        return values

    def on_cache(self, scale: str, values: Tensor) -> Tensor:
        self.cache.setdefault(scale, Magnitudes()).add(values)
        return values


@dataclass
class _Found:
    """What was found so far, by canonical name."""

    settings: ActivationSettings
    inputs: dict[str, float] = field(default_factory=dict)
    cache: dict[str, float] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    borrowed: dict[int, list[int]] = field(default_factory=dict)

    def take(self, seen: _Seen, block: Block, *, rows: Sequence[Row], num_tokens: int) -> None:
        """Peaks of a block; those of experts with few tokens come from their neighbours.

        Raises:
            RunError: a linear map was passed by, or read values that are not finite.
        """
        local = {row.local: row for row in rows}
        for axes in linear_rows(block):
            row = local[axes.name]
            if not axes.name_dims:
                _check_count(row.tensor.name, seen.tokens[axes.name, 0], expected=num_tokens)
                peak = seen.inputs[axes.name, 0].peak(self.settings.percentile)
                self.inputs[row.tensor.name] = _finite(row.tensor.name, peak)
                continue
            experts = [(axes.name, e) for e in range(block.sizes["expert"])]
            tokens = [seen.tokens[e] for e in experts]
            expected = num_tokens * block.settings["top_k"]
            _check_count(row.tensor.name, sum(tokens), expected=expected)
            peaks = [seen.inputs[e].peak(self.settings.percentile) for e in experts]
            self._take_experts(row, peaks, tokens=tokens)
        prefix = rows[0].tensor.name.removesuffix(rows[0].local) if rows else ""
        self.cache |= {prefix + n: _finite(prefix + n, m.largest) for n, m in seen.cache.items()}

    def _take_experts(self, row: Row, peaks: list[float], *, tokens: list[int]) -> None:
        assert row.block is not None
        least = self.settings.min_tokens
        self.tokens[row.block] = tokens
        if few := [e for e, n in enumerate(tokens) if n < least]:
            self.borrowed[row.block] = few
        shared = share_peaks(peaks, tokens, min_tokens=least)
        for (name, _), peak in zip(row.names(), shared, strict=True):
            self.inputs[name] = _finite(name, peak)


def _check_count(name: str, count: int, *, expected: int) -> None:
    if count != expected:
        raise RunError(
            f"calibration saw {count} inputs of {name}; {expected} went through the block",
            "this is a fault of fretsaw or of the installed transformers: please report it",
        )


def _finite(name: str, peak: float) -> float:
    if not math.isfinite(peak):
        raise RunError(
            f"{name} multiplies values that are not finite on the calibration text",
            "check the checkpoint's weights, or calibrate in float32",
        )
    return peak
