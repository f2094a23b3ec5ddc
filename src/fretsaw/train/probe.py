"""The learning rate from a short probe around a guess that follows from the damage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fretsaw.train.plan import ProbeRow

RATE_PER_ROOT_KL = 1.5e-3
"""Middle of the probe for a KL of 1 nat: KL grows with the square of the distance in weights, and
AdamW's way is the rate times the steps, so the rate should follow the root of the KL."""

FACTOR = 3.0
MAX_TRIALS = 6
LARGEST_RATE = 3e-3
STEPS_SHARE = 0.05
MIN_STEPS, MAX_STEPS = 4, 40


def probe_steps(num_steps: int) -> int:
    """Steps of each trial: a twentieth of the training, within bounds; 0 where that is absurd."""
    if num_steps < MIN_STEPS:
        return 0
    return max(MIN_STEPS, min(MAX_STEPS, round(STEPS_SHARE * num_steps)))


def middle_rate(kl: float) -> float:
    """The guess to probe around, from held-out KL right after the cut, to two digits."""
    rate = min(LARGEST_RATE, RATE_PER_ROOT_KL * math.sqrt(max(kl, 1e-8)))
    digits = 1 - math.floor(math.log10(rate))
    return round(rate, digits)


def find_rate(
    kl: float, trial: Callable[[float], ProbeRow], *, done: Sequence[ProbeRow] = ()
) -> float:
    """The rate whose trial ends nearest to the teacher.

    Starts with the middle rate and its neighbours at a factor of three, and goes on outwards while
    the outermost is the best; at most `MAX_TRIALS` trials. Own.

    Args:
        kl: Held-out KL right after the cut, nats.
        trial: Trains a few steps from the cut at a peak rate and measures.
        done: Trials of an earlier start, which are not repeated.

    Returns:
        The best rate tried.
    """
    results = {row.rate: row.kl for row in done}

    def measure(rate: float) -> None:
        if rate not in results:
            results[rate] = _worst_if_nan(trial(rate).kl)

    middle = middle_rate(kl)
    rates = [middle / FACTOR, middle, middle * FACTOR]
    for rate in rates:
        measure(rate)
    while len(rates) < MAX_TRIALS:
        best = min(rates, key=results.__getitem__)
        if best == rates[0]:
            rates.insert(0, best / FACTOR)
            measure(rates[0])
        elif best == rates[-1]:
            rates.append(best * FACTOR)
            measure(rates[-1])
        else:
            break
    return min(rates, key=results.__getitem__)


def _worst_if_nan(kl: float) -> float:
    return math.inf if math.isnan(kl) else kl
