"""Cells next to a table's measured ones, and spikes among them, set by stated models and marked.

Without the first the price of a deployment just outside a table would jump; for the second a
search would pay for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Axes = dict[str, list[float]]

NOISE = 0.05
"""A cell that moved by less still counts as measured."""

LONGEST = 2**20
"""Tokens of context up to which attention is continued."""


def extended(
    name: str, *, axes: Mapping[str, Sequence[float]], seconds: Seconds
) -> tuple[Axes, Seconds, NDArray[np.bool_]]:
    """A table with its modelled cells.

    Args:
        name: Of the table: its operation, then what else tells tables apart.
        axes: Name -> nodes, in the order of the array.
        seconds: (nodes of each axis), NaN where nothing was measured.

    Returns:
        Axes, seconds and which cells are modelled.
    """
    new_axes: Axes = {key: [float(node) for node in nodes] for key, nodes in axes.items()}
    filled = seconds
    for model in MODELS.get(name.split(maxsplit=1)[0], ()):
        new_axes, filled = model(new_axes, filled)
    kept = [np.flatnonzero(np.isin(new_axes[key], nodes)) for key, nodes in axes.items()]
    modelled = np.isfinite(filled)
    modelled[np.ix_(*kept)] &= ~(np.abs(filled[np.ix_(*kept)] / seconds - 1) < NOISE)
    return new_axes, filled, modelled


def _no_longer_for_less(axes: Axes, seconds: Seconds) -> tuple[Axes, Seconds]:
    """Experts' work never takes longer than more of it: it could be padded, so the rest is noise.

    Takes away single timings up to eight times too long (H100, vLLM's FP8 experts).
    """
    least = np.where(np.isnan(seconds), np.inf, seconds)
    for axis in range(seconds.ndim):
        least = np.flip(np.minimum.accumulate(np.flip(least, axis), axis=axis), axis)
    return axes, np.where(np.isnan(seconds), np.nan, least)


def _narrower(axes: Axes, seconds: Seconds) -> tuple[Axes, Seconds]:
    """Experts down to an eighth of the least measured width: on the line through the two least.

    A launch's floor and the bytes of its weights are such a line.
    """
    nodes = axes["ffn"]
    slope = (seconds[1] - seconds[0]) / (nodes[1] - nodes[0])
    line = np.maximum(seconds[0] - slope * nodes[0] * 7 / 8, np.nanmin(seconds))
    return axes | {"ffn": [nodes[0] / 8, *nodes]}, np.concatenate([line[None], seconds])


def _more_tokens(axes: Axes, seconds: Seconds) -> tuple[Axes, Seconds]:
    """Experts for four times the most measured tokens: on the line from half as many."""
    nodes = axes["tokens"]
    last, half = nodes[-1], nodes.index(nodes[-1] / 2)
    slope = (seconds[..., -1] - seconds[..., half]) / (last - nodes[half])
    line = seconds[..., -1] + 3 * last * slope
    return axes | {"tokens": [*nodes, 4 * last]}, np.concatenate([seconds, line[..., None]], -1)


def _longer(axes: Axes, seconds: Seconds) -> tuple[Axes, Seconds]:
    """Attention over contexts twice as long takes what twice as many sequences take.

    So it is measured at the edge: 52, 53, 54 and 57 us on B200 for 64 x 16k to 8 x 131k.
    """
    nodes = list(axes["kept"])
    while nodes[-1] < LONGEST:
        nodes.append(2 * nodes[-1])
        seconds = np.concatenate([seconds, np.full_like(seconds[..., :1, :], np.nan)], axis=-2)
    for at in range(1, len(nodes)):
        if nodes[at] == 2 * nodes[at - 1]:
            shorter = seconds[..., at - 1, 1:]
            here = seconds[..., at, :-1]
            seconds[..., at, :-1] = np.where(np.isnan(here), shorter, here)
    return axes | {"kept": nodes}, seconds


def _more_sequences(axes: Axes, seconds: Seconds) -> tuple[Axes, Seconds]:
    """Attention of more sequences than were measured: on the line through the last two."""
    nodes, seconds = axes["sequences"], seconds.copy()
    for at in range(2, len(nodes)):
        share = (nodes[at] - nodes[at - 2]) / (nodes[at - 1] - nodes[at - 2])
        line = seconds[..., at - 2] + share * (seconds[..., at - 1] - seconds[..., at - 2])
        here = seconds[..., at]
        seconds[..., at] = np.where(np.isnan(here), line, here)
    return axes, seconds


MODELS: Mapping[str, tuple[Callable[[Axes, Seconds], tuple[Axes, Seconds]], ...]] = {
    "experts": (_no_longer_for_less, _narrower, _more_tokens, _no_longer_for_less),
    "attention": (_more_sequences, _longer, _more_sequences),
    "prefill_attention": (_more_sequences,),
}
"""Operation -> models, in the order they are applied."""
