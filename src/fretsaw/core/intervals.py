"""How sure a mean over sequences is: bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 4_000
COVERAGE = 0.95
FEWEST = 5
"""Fewer sequences say nothing of their spread."""


class Interval(NamedTuple):
    """A stretch that holds the mean in 95 of 100 cases."""

    low: float
    high: float


def bootstrap(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Where the mean lies: the middle 95 % of the means of resampled sequences.

    Args:
        values: One per sequence; sequences are resampled whole, since tokens of one depend on each
            other. A paired comparison takes the differences.
        seed: Of the resampling.

    Returns:
        The interval; None for fewer than 5 values.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3.
    """
    if len(values) < FEWEST:
        return None
    rng = np.random.default_rng(seed)
    data = np.asarray(values, dtype=float)
    picks = rng.integers(len(data), size=(RESAMPLES, len(data)))
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(data[picks].mean(axis=1), [tail, 1 - tail])
    return Interval(float(low), float(high))
