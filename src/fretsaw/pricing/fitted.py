"""Seconds of all forms of a block from few measured ones: least time, time per byte and per FLOP.

    seconds(form) = a + b * bytes(form) + c * flops(form),    a, b, c >= 0, per kind and step

fitted to all measured forms at once. A table that is only interpolated passes its noise on, and a
search then takes the forms that came out fast by chance; here a smaller form is never slower.

Source: Own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from fretsaw.core.hardware import ONE_GPU
from fretsaw.core.precision import Precision
from fretsaw.core.shape import Block
from fretsaw.pricing.blocks import block_kernels
from fretsaw.pricing.kernels import Step

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FittedKind:
    """What forms of one kind of block take of one step.

    Attributes:
        coefficients: Seconds, per byte and per FLOP; none below 0.
        step: The forward pass.
        precision: Number formats, which say how many bytes there are.
        error: Median of the relative errors at the measured forms.
    """

    coefficients: tuple[float, float, float]
    step: Step
    precision: Precision
    error: float

    def seconds(self, block: Block) -> float:
        """Of a form."""
        return float(
            _features(block, step=self.step, precision=self.precision) @ np.array(self.coefficients)
        )


def fit_kind(
    measured: Sequence[tuple[Block, float]], *, step: Step, precision: Precision
) -> FittedKind:
    """The line nearest to measured forms of a kind: least sum of absolute relative errors.

    One disturbed measurement among several does not move it.

    Args:
        measured: Forms and their seconds, above 0.
        step: In which they were measured.
        precision: Number formats.
    """
    features = np.array([_features(block, step=step, precision=precision) for block, _ in measured])
    seconds = np.array([its for _, its in measured])
    scale = np.where(features.max(0) > 0, features.max(0), 1.0)
    found = _least_absolute(features / scale / seconds[:, None]) / scale
    error = float(np.median(np.abs(features @ found / seconds - 1)))
    a, b, c = found.tolist()
    return FittedKind((a, b, c), step, precision, error)


def _features(block: Block, *, step: Step, precision: Precision) -> Floats:
    kernels = block_kernels(block, step=step, layout=ONE_GPU, precision=precision)
    return np.array([1.0, sum(k.bytes for k in kernels), sum(k.flops for k in kernels)])


def _least_absolute(rows: Floats) -> Floats:
    """Coefficients, none below 0, with the least ``sum |rows @ c - 1|``: a linear program."""
    count, width = rows.shape
    slack = np.eye(count)
    result = linprog(
        np.concatenate([np.zeros(width), np.ones(count)]),
        A_ub=np.block([[rows, -slack], [-rows, -slack]]),
        b_ub=np.concatenate([np.ones(count), -np.ones(count)]),
        bounds=(0, None),
    )
    return np.asarray(result.x[:width], dtype=np.float64)
