"""Calibration: one streaming pass over text that says how much each unit of each block does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fretsaw.core.shape import Block
from fretsaw.errors import RunError, ShapeError
from fretsaw.importance.accumulate import UnitSums
from fretsaw.importance.channels import channel_importance, channel_sums
from fretsaw.importance.order import order_units
from fretsaw.importance.ssm_state import state_sums
from fretsaw.runtime.blocks import BlockView, mixer_input, run_block
from fretsaw.runtime.inspect import expert_activations, mlp_activations, scan_inputs

UNIT_AXES = {"moe": ("expert", "ffn"), "mlp": ("ffn",), "mamba": ("group", "state")}
"""Mixer -> context and dimension of the units that calibration judges."""

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
            if shape.mixer in UNIT_AXES:
                seen = _observe(view, index, hidden)
                sums[index] = {
                    dim: s.merge(sums[index][dim]) if index in sums else s
                    for dim, s in seen.items()
                }
            hidden = run_block(view.block(index), hidden)
        num_tokens += ids.numel()
        if on_progress:
            on_progress(done)
    return Statistics(sums, num_tokens)


def _observe(view: BlockView, index: int, hidden: Tensor) -> dict[str, UnitSums]:
    raise NotImplementedError


def rank_units(view: BlockView, statistics: Statistics, *, min_tokens: int) -> Ranking:
    """Importance and order of the units of every block that was calibrated.

    Args:
        view: The model that the statistics are of.
        statistics: From `collect_statistics`.
        min_tokens: Routed tokens that an expert needs to be judged by its activations.

    Raises:
        ShapeError: the statistics are of a model of another shape.
    """
    raise NotImplementedError
