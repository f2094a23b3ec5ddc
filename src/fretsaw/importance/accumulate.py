"""Streaming sums per unit that can be merged: what calibration keeps instead of activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fretsaw.errors import ShapeError


@dataclass(frozen=True)
class UnitSums:
    """Sum of a non-negative quantity per unit, and how often it was observed.

    Attributes:
        total: Sum, (context..., units) float64; the context is experts, groups or nothing.
        count: Observations behind each row of `total`, (context...) int64.
    """

    total: Tensor
    count: Tensor

    @classmethod
    def zeros(cls, *shape: int) -> UnitSums:
        """Nothing observed yet, for (context..., units) of this shape."""
        total = torch.zeros(shape, dtype=torch.float64)
        return cls(total, torch.zeros(shape[:-1], dtype=torch.int64))

    def merge(self, other: UnitSums) -> UnitSums:
        """Sums over both sets of observations.

        Raises:
            ShapeError: the two are about different numbers of units.
        """
        if self.total.shape != other.total.shape:
            raise ShapeError(
                f"statistics of shape {tuple(self.total.shape)} and {tuple(other.total.shape)} "
                "cannot be merged",
                "merge statistics of the same checkpoint only",
            )
        return UnitSums(self.total + other.total, self.count + other.count)

    def mean(self) -> Tensor:
        """Mean per observation, (context..., units) float64; 0 where nothing was observed."""
        return self.total / self.count.clamp(min=1).unsqueeze(-1)
