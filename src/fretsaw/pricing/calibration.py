"""The roofline's constants for an engine on a machine, fitted to what was measured there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from fretsaw.core.hardware import ONE_GPU, Hardware
from fretsaw.core.precision import Precision
from fretsaw.pricing.roofline import Constants, RooflineTimer
from fretsaw.pricing.step import Pricer

FITTED = {
    "memory_efficiency": (0.02, 2.0),
    "compute_efficiency": (0.01, 2.0),
    "kernel_s": (1e-7, 1e-2),
    "pair_s": (1e-10, 1e-3),
    "host_s": (1e-6, 1.0),
    "sequence_s": (1e-7, 1e-1),
}
"""Constants that a whole model's speeds show, and where they may lie.

Above 1 an efficiency says that caches help, or that the micro-benchmark behind the rate was slow.
"""

PRIOR_WEIGHT = 0.02
"""Of a constant's logarithm: what the measurements do not show stays where it was."""

SOFT = 0.1
"""Relative errors above this count in proportion, not squared: one disturbed timing decides not."""


@dataclass(frozen=True)
class Observation:
    """A measured time, and how the model comes to it.

    Attributes:
        predict: Seconds by a pricer.
        seconds: As measured.
    """

    predict: Callable[[Pricer], float]
    seconds: float


def fit_constants(
    observations: Sequence[Observation],
    hardware: Hardware,
    *,
    start: Constants,
    precision: Precision,
) -> Constants:
    """The constants with which predictions are nearest to measurements, relative errors counted.

    Args:
        observations: Of one model; another's are then predictions.
        hardware: Rates of the machine.
        start: Where the fit begins; what it does not fit stays.
        precision: Of the measured model.
    """
    low, high = np.log(np.array(list(FITTED.values()))).T
    first = np.clip(np.log([getattr(start, name) for name in FITTED]), low, high)

    def errors(logs: Sequence[float]) -> list[float]:
        pricer = pricer_with(hardware, _with(start, logs), precision=precision)
        seen = [float(np.log(one.predict(pricer) / one.seconds)) for one in observations]
        return [*seen, *(PRIOR_WEIGHT * (np.array(logs) - first)).tolist()]

    found = least_squares(errors, first, bounds=(low, high), loss="soft_l1", f_scale=SOFT)
    return _with(start, found.x)


def pricer_with(hardware: Hardware, constants: Constants, *, precision: Precision) -> Pricer:
    """Prices models on one accelerator by its roofline alone."""
    timer = RooflineTimer(hardware, constants)
    c = constants
    return Pricer(timer, ONE_GPU, precision, c.host_s, c.shared_overlap, c.sequence_s)


def _with(start: Constants, logs: Sequence[float]) -> Constants:
    return replace(start, **dict(zip(FITTED, np.exp(logs).tolist(), strict=True)))
