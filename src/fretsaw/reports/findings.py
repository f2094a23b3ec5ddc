"""What a finished run has to show: plain data for figures and page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fretsaw.core.shape import Block, ModelShape
from fretsaw.core.variant import Choice
from fretsaw.reports.evidence import NO_EVIDENCE, Evidence
from fretsaw.reports.summary import Summary


@dataclass(frozen=True)
class BlockForm:
    """A block of the original parent and what has become of it.

    Attributes:
        index: Place in the original parent.
        original: As it was.
        current: As it is now; mixer ``none`` if it is gone.
    """

    index: int
    original: Block
    current: Block

    @property
    def is_gone(self) -> bool:
        """Whether the block was taken out."""
        return self.current.mixer == "none" != self.original.mixer

    def kept(self, name: str) -> float | None:
        """Share of a size or setting that is left; None if the block never had it."""
        before = self.original.values.get(name)
        return self.current.values.get(name, 0) / before if before else None


def trace_blocks(original: ModelShape, choices: Iterable[Choice]) -> list[dict[int, Block]]:
    """The model before the first round and after each, by block index of the original parent.

    A choice counts the blocks of the model that its round worked around, where blocks that an
    earlier round took out are missing.
    """
    states = [dict(enumerate(original.blocks))]
    for choice in choices:
        before = list(states[-1].items())
        after = {}
        for variant in choice.variants:
            index, block = before[variant.block]
            changed = variant.apply(block)
            if changed.mixer != "none":
                after[index] = changed
        states.append(after)
    return states


def block_forms(original: ModelShape, state: Mapping[int, Block]) -> tuple[BlockForm, ...]:
    """Every block of the original parent beside its form in one of the `trace_blocks`."""
    gone = Block("none")
    return tuple(BlockForm(i, b, state.get(i, gone)) for i, b in enumerate(original.blocks))


@dataclass(frozen=True)
class VariantScore:
    """Score of one variant; `block` counts the original parent's blocks."""

    block: int
    key: str
    score: float
    is_chosen: bool


@dataclass(frozen=True)
class Evaluation:
    """Held-out figures at a point of a healing.

    Attributes:
        tokens: Training tokens of this round so far; 0 is the cut.
        loss: Next-token loss, nats per token.
        kl: KL(parent || model), nats per token.
        train_kl: The same on the training text since the evaluation before.
    """

    tokens: int
    loss: float
    kl: float
    train_kl: float | None = None


@dataclass(frozen=True)
class SwappedModel:
    """A whole choice, swapped in and measured.

    Attributes:
        kind: ``random``, ``n-best``, ``uniform`` (all blocks of a kind alike) or ``chosen``.
        predicted: Sum of the scores of its variants.
        measured: KL(model || model with the choice's blocks), nats per token.
    """

    kind: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class RoundFindings:
    """One round.

    Attributes:
        number: From 1.
        budget: As the recipe has it.
        status: Of the search, such as ``optimal``.
        gap: Relative optimality gap of the search.
        metric: What scores are: ``kl``, ``loss`` or ``hidden``.
        scores: Of all variants of all blocks.
        evaluations: In order, the cut first.
        kept_tokens: Training tokens behind the weights that were kept.
        swapped: Choices that were measured as a whole.
        spearman: Rank correlation of predicted and measured; None if there are too few.
        seconds: Time by stage.
        serving: Its demands in serving terms, as the recipe has them.
    """

    number: int
    budget: Mapping[str, int | float | str]
    status: str
    gap: float
    metric: str
    scores: tuple[VariantScore, ...]
    evaluations: tuple[Evaluation, ...]
    kept_tokens: int
    swapped: tuple[SwappedModel, ...]
    spearman: float | None
    seconds: Mapping[str, float]
    serving: tuple[str, ...] = ()

    @property
    def kept(self) -> Evaluation:
        """The evaluation whose weights were kept."""
        return next(e for e in self.evaluations if e.tokens == self.kept_tokens)

    def measured(self, kind: str) -> float | None:
        """KL of the first whole choice of a kind that was measured."""
        return next((one.measured for one in self.swapped if one.kind == kind), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the scores: they are in the run's own tables."""
        return {
            "number": self.number,
            "budget": dict(self.budget),
            "serving": list(self.serving),
            "status": self.status,
            "gap": self.gap,
            "kept_tokens": self.kept_tokens,
            "evaluations": [vars(one) for one in self.evaluations],
            "whole_choices": [vars(one) for one in self.swapped],
            "spearman": self.spearman,
            "seconds": dict(self.seconds),
        }


@dataclass(frozen=True)
class Stretch:
    """A round on the common axis of healing tokens: what it begins after."""

    round: RoundFindings
    start: int

    @property
    def end(self) -> int:
        """Healing tokens of this and all earlier rounds."""
        return self.start + self.round.evaluations[-1].tokens


def healing_axis(rounds: Iterable[RoundFindings]) -> list[Stretch]:
    """All rounds that were measured, one after the other."""
    stretches: list[Stretch] = []
    for round_ in rounds:
        if round_.evaluations:
            stretches.append(Stretch(round_, stretches[-1].end if stretches else 0))
    return stretches


@dataclass(frozen=True)
class Findings:
    """A finished run.

    Attributes:
        summary: Parent and every round before and after healing.
        blocks: The original parent's blocks and what has become of them.
        rounds: In order.
        parent: The original parent, as the recipe names it.
        recipe: The resolved recipe, JSON.
        needs_remote_code: Whether transformers needs the child's own two files to load it.
        has_tokenizer: Whether the child brings one.
        versions: Of the packages that matter, by name.
        finished: When the last stage ended.
        num_planned: Rounds of the recipe, of which the last may be missing yet.
        evidence: What stands behind the figures.
    """

    summary: Summary
    blocks: tuple[BlockForm, ...]
    rounds: tuple[RoundFindings, ...]
    parent: str
    recipe: str
    needs_remote_code: bool
    has_tokenizer: bool
    versions: Mapping[str, str]
    finished: str
    num_planned: int
    evidence: Evidence = NO_EVIDENCE

    @property
    def parent_loss(self) -> float:
        """Held-out next-token loss of the original parent, nats per token."""
        return self.summary.lines[0].loss

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        data = {
            **self.summary.to_json(),
            "parent": self.parent,
            "rounds_planned": self.num_planned,
            "rounds": [one.to_json() for one in self.rounds],
            **self.evidence.to_json(),
            "versions": dict(self.versions),
            "finished": self.finished,
        }
        return {name: finite(value) for name, value in data.items()}


def finite(data: Any) -> Any:
    """Plain data in which numbers that no JSON has, such as NaN, are None."""
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
