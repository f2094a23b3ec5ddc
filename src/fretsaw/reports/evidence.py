"""What stands behind a run's figures: spread, text samples, and speed on a stated card."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fretsaw.core.intervals import Interval, bootstrap


@dataclass(frozen=True)
class HeldOutText:
    """What all models of a run were measured on.

    Attributes:
        tokens: How many.
        sequences: In how many pieces; None where an old run has not kept it.
        digest: Fingerprint of the token ids.
    """

    tokens: int
    sequences: int | None
    digest: str


@dataclass(frozen=True)
class Spread:
    """95 % intervals of a model's figures over held-out sequences; None where there are too few.

    Attributes:
        loss: Next-token loss, nats per token.
        kl: KL to the parent, nats per token.
        agreement: Share of tokens.
        loss_difference: Loss over the parent's on the same sequences, nats per token.
        mean_loss_difference: Its mean.
    """

    loss: Interval | None
    kl: Interval | None
    agreement: Interval | None
    loss_difference: Interval | None
    mean_loss_difference: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {n: list(v) if isinstance(v, tuple) else v for n, v in vars(self).items()}


NO_SPREAD = Spread(None, None, None, None, 0.0)


def spread_of(sequences: Sequence[Sequence[float]]) -> Spread:
    """Intervals from figures of each sequence: KL, loss, agreement and the parent's loss."""
    kl, loss, agreement, parent_loss = zip(*sequences, strict=True)
    differences = [own - parents for own, parents in zip(loss, parent_loss, strict=True)]
    mean = math.fsum(differences) / len(differences)
    return Spread(
        bootstrap(loss), bootstrap(kl), bootstrap(agreement), bootstrap(differences), mean
    )


def spread_of_parent(sequences: Sequence[Sequence[float]]) -> Spread:
    """The parent's own: only its loss varies."""
    return Spread(bootstrap([row[3] for row in sequences]), None, None, None, 0.0)


@dataclass(frozen=True)
class Sample:
    """What parent and child say after the same held-out text, most likely token by token."""

    prompt: str
    parent: str
    child: str
    is_equal: bool


@dataclass(frozen=True)
class ServedModel:
    """A model on the stated card.

    Attributes:
        name: ``parent`` or ``child``.
        weights_bytes: Of all its weights.
        requests: Of the stated context that fit beside them at once.
        user_tokens_per_s: Of one user alone, or of the fewest that a replica takes.
        server_tokens_per_s: With as many users as give the most.
        in_flight: How many those are.
    """

    name: str
    weights_bytes: int
    requests: int
    user_tokens_per_s: float | None
    server_tokens_per_s: float | None
    in_flight: float | None


@dataclass(frozen=True)
class Speeds:
    """Predicted speed and memory of parent and child, and every assumption.

    Attributes:
        card: Such as ``H100``.
        why: Why this one.
        engine: Whose constants.
        number_format: Of the weights.
        workload: Input/output tokens of a request; None where there is none.
        context: Tokens of a request at its end.
        models: Parent first, where it is at hand.
        notes: What a reader should know.
    """

    card: str
    why: str
    engine: str
    number_format: str
    workload: str | None
    context: int
    models: tuple[ServedModel, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """What stands behind a run's figures; what an old run has not kept is None or empty.

    Attributes:
        text: What was measured on.
        spreads: Line of the summary -> its intervals.
        samples: Of the last child.
        speeds: Of parent and last child.
        missing: What cannot be shown, and why.
    """

    text: HeldOutText | None = None
    spreads: Mapping[str, Spread] | None = None
    samples: tuple[Sample, ...] = ()
    speeds: Speeds | None = None
    missing: tuple[str, ...] = ()

    def spread(self, name: str) -> Spread:
        """Of a line of the summary; empty where the run has not kept it."""
        return (self.spreads or {}).get(name, NO_SPREAD)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        speeds = self.speeds
        return {
            "held_out": vars(self.text) if self.text else None,
            "intervals": {name: one.to_json() for name, one in (self.spreads or {}).items()},
            "samples": [vars(one) for one in self.samples],
            "speeds": {**vars(speeds), "models": [vars(m) for m in speeds.models]}
            if speeds
            else None,
            "missing": list(self.missing),
        }


NO_EVIDENCE: Final = Evidence()
