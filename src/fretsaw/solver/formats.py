"""Which weights of which block in which number format: least summed divergence in a given size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fretsaw.core.precision import WeightKind
from fretsaw.errors import InfeasibleError
from fretsaw.solver.program import Limit, Program


@dataclass(frozen=True)
class FormatOption:
    """The weights of one kind in one block, in one format.

    Attributes:
        block: Of the trunk.
        kind: Of the weights.
        number_format: What they, and their inputs, would be rounded to.
        kl: Divergence of the model in which nothing else is rounded, nats per token.
        num_bytes: That they take, scales included.
    """

    block: int
    kind: WeightKind
    number_format: str
    kl: float
    num_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain data, which the constructor takes."""
        return asdict(self)


def choose_formats(
    options: Sequence[FormatOption], *, limit_bytes: int
) -> tuple[FormatOption, ...]:
    """One option for each block and kind, the least summed divergence within a size.

    Args:
        options: Those of a block and kind need not follow each other.
        limit_bytes: What the chosen may take together.

    Raises:
        InfeasibleError: the smallest options take more.

    Source: AutoQuantize of Model Optimizer (a score per layer and format under a bits budget),
        with measured divergence as score and the exact program of `mip.py`.
    """
    places = sorted({(option.block, option.kind) for option in options})
    ordered = sorted(options, key=lambda o: (o.block, o.kind))
    program = Program([places.index((o.block, o.kind)) for o in ordered], shared=[])
    sizes = np.array([option.num_bytes for option in ordered], dtype=np.int64)
    answer = program.minimise(
        np.array([max(0.0, option.kl) for option in ordered]),
        limits=[Limit(sizes, limit_bytes)],
        second=sizes.astype(float),
    )
    if not answer.picked:
        least = sum(min(o.num_bytes for o in ordered if (o.block, o.kind) == p) for p in places)
        raise InfeasibleError(
            f"no choice of formats fits into {limit_bytes:,} bytes: the smallest takes {least:,}",
            "allow more bits per weight",
        )
    return tuple(ordered[i] for i in answer.picked)
