"""Calibration: one streaming pass over text that says how much each unit of each block does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.models.nemotron_h.modeling_nemotron_h import (
    NemotronHMamba2Mixer,
    NemotronHMLP,
    NemotronHMoE,
)

from fretsaw.errors import RunError, ShapeError
from fretsaw.importance.accumulate import UnitSums
from fretsaw.importance.channels import channel_importance, channel_sums
from fretsaw.importance.order import order_units
from fretsaw.importance.ssm_state import state_sums
from fretsaw.runtime.blocks import BlockView, mixer_input, run_block
from fretsaw.runtime.inspect import expert_activations, mlp_activations, scan_inputs

UNITS = {"moe": "ffn", "mlp": "ffn", "mamba": "state"}
"""Mixer -> dimension of the units that calibration judges."""

Sums = Mapping[int, Mapping[str, UnitSums]]


@dataclass(frozen=True)
class Statistics:
    """What calibration saw, for all blocks with units to judge.

    Attributes:
        sums: Block index -> dimension -> sums over tokens.
        num_tokens: Tokens pushed through the model.
    """

    sums: Sums
    num_tokens: int

    def merge(self, other: Statistics) -> Statistics:
        """Statistics of two runs over different text as if of one.

        Raises:
            ShapeError: they are of different models.
        """
        if {i: set(d) for i, d in self.sums.items()} != {i: set(d) for i, d in other.sums.items()}:
            raise ShapeError(
                "two sets of statistics are about different blocks",
                "merge statistics of the same checkpoint only",
            )
        sums = {
            i: {dim: s.merge(other.sums[i][dim]) for dim, s in dims.items()}
            for i, dims in self.sums.items()
        }
        return Statistics(sums, self.num_tokens + other.num_tokens)

    def to_tensors(self) -> dict[str, Tensor]:
        """Flat form for safetensors: ``"{block}.{dim}.total"``, ``".count"`` and ``num_tokens``."""
        tensors = {"num_tokens": torch.tensor([self.num_tokens])}
        for i, dims in self.sums.items():
            for dim, sums in dims.items():
                tensors |= {f"{i}.{dim}.total": sums.total, f"{i}.{dim}.count": sums.count}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Statistics:
        """Inverse of `to_tensors`."""
        sums: dict[int, dict[str, UnitSums]] = {}
        keys = [k.removesuffix(".total") for k in tensors if k.endswith(".total")]
        for key in sorted(keys, key=lambda k: int(k.split(".")[0])):
            index, dim = key.split(".")
            pair = UnitSums(tensors[f"{key}.total"], tensors[f"{key}.count"])
            sums.setdefault(int(index), {})[dim] = pair
        return cls(sums, int(tensors["num_tokens"]))


@dataclass(frozen=True)
class Ranking:
    """The order of the units of every block, and where it rests on weights alone.

    Attributes:
        orders: Block index -> dimension -> unit indices, most important first.
        importance: The same keys -> importance, float64.
        uncalibrated: Block index -> experts with too few tokens to be judged by activations.
    """

    orders: dict[int, dict[str, Tensor]]
    importance: dict[int, dict[str, Tensor]]
    uncalibrated: dict[int, tuple[int, ...]]


@torch.no_grad()
def collect_statistics(
    view: BlockView,
    batches: Iterable[Tensor],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Statistics:
    """Statistics of all MoE, MLP and Mamba blocks in one pass.

    Holds the hidden states of one batch, and the sums.

    Args:
        view: The model.
        batches: Token ids, each (sequences, tokens), without padding.
        on_progress: Called after each batch with the number of batches done.

    Raises:
        RunError: a block computes values that are not finite, or its experts were not given the
            tokens that were counted.
    """
    sums: dict[int, dict[str, UnitSums]] = {}
    num_tokens = 0
    for done, ids in enumerate(batches, start=1):
        hidden = view.embed(ids)
        for index, shape in enumerate(view.shape.blocks):
            if shape.mixer not in UNITS:
                hidden = run_block(view.block(index), hidden)
                continue
            seen, hidden = observe(view, index, hidden=hidden)
            _check_finite(index, shape.mixer, sums=seen)
            dim = UNITS[shape.mixer]
            before = sums.get(index)
            sums[index] = {dim: seen.merge(before[dim]) if before else seen}
        num_tokens += ids.numel()
        if on_progress:
            on_progress(done)
    return Statistics(sums, num_tokens)


def observe(view: BlockView, index: int, *, hidden: Tensor) -> tuple[UnitSums, Tensor]:
    """Sums of one block on one batch, and the block's output."""
    block = view.block(index)
    normed = mixer_input(block, hidden)
    mixer = block.mixer
    if isinstance(mixer, NemotronHMoE):
        with _counted_routing(mixer) as ran:
            output = run_block(block, hidden)
        sums = _expert_sums(mixer, normed)
        _check_counts(index, sums.count, ran=ran)
        return sums, output
    if isinstance(mixer, NemotronHMamba2Mixer):
        return state_sums(scan_inputs(mixer, normed)), run_block(block, hidden)
    activations = mlp_activations(mixer, normed)
    total = channel_sums(activations, activations.new_ones(len(activations)))
    return UnitSums(total.cpu(), torch.tensor(len(activations))), run_block(block, hidden)


def _expert_sums(mixer: NemotronHMoE, normed: Tensor) -> UnitSums:
    seen = [
        (channel_sums(e.activations, e.weights), len(e.rows))
        for e in expert_activations(mixer, normed)
    ]
    totals, counts = zip(*seen, strict=True)
    return UnitSums(torch.stack(totals).cpu(), torch.tensor(counts))


@contextmanager
def _counted_routing(mixer: NemotronHMoE) -> Iterator[list[Tensor]]:
    """Tokens per expert of each run of the layer's own router, (expert,), while it is open."""
    ran: list[Tensor] = []

    def count(_: nn.Module, __: object, output: tuple[Tensor, ...]) -> None:
        ran.append(torch.bincount(output[2].flatten(), minlength=len(mixer.gate.weight)).cpu())

    handle = mixer.gate.register_forward_hook(count)
    try:
        yield ran
    finally:
        handle.remove()


def _check_counts(index: int, counted: Tensor, *, ran: list[Tensor]) -> None:
    if len(ran) != 1 or not torch.equal(counted, ran[0]):
        raise RunError(
            f"block {index}: calibration counted {counted.tolist()} tokens per expert; the layer's "
            f"router ran {len(ran)} times and sent {[r.tolist() for r in ran]}",
            "this is a fault of fretsaw or of the installed transformers: please report it",
        )


def _check_finite(index: int, mixer: str, *, sums: UnitSums) -> None:
    if not bool(sums.total.isfinite().all()):
        raise RunError(
            f"block {index} ({mixer}) computes values that are not finite on the calibration text",
            "check the checkpoint's weights, or calibrate in float32",
        )


def rank_units(view: BlockView, statistics: Statistics, *, min_tokens: int) -> Ranking:
    """Importance and order of the units of every block that was calibrated.

    Args:
        view: The model that the statistics are of.
        statistics: From `collect_statistics`.
        min_tokens: Routed tokens that an expert needs to be judged by its activations.

    Raises:
        ShapeError: the statistics are of a model of another shape.
    """
    ranking = Ranking({}, {}, {})
    for index, dims in statistics.sums.items():
        for dim, sums in dims.items():
            values, few = _importance(view, index, sums=sums, min_tokens=min_tokens)
            ranking.importance.setdefault(index, {})[dim] = values
            ranking.orders.setdefault(index, {})[dim] = order_units(values)
            if few:
                ranking.uncalibrated[index] = few
    return ranking


def _importance(
    view: BlockView, index: int, *, sums: UnitSums, min_tokens: int
) -> tuple[Tensor, tuple[int, ...]]:
    mixer = view.block(index).mixer
    if isinstance(mixer, NemotronHMamba2Mixer):
        return sums.mean(), ()
    if isinstance(mixer, NemotronHMLP):
        up, down = mixer.up_proj.weight, mixer.down_proj.weight
    else:
        up, down = mixer.experts.up_proj, mixer.experts.down_proj
    found = channel_importance(
        sums, up_proj=up.detach().cpu(), down_proj=down.detach().cpu(), min_tokens=min_tokens
    )
    return found.values, found.uncalibrated
