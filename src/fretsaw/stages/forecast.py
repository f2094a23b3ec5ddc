"""What each stage of a run would take: seconds, memory at the peak, and disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fretsaw.core.shape import ModelShape
from fretsaw.pricing.memory import model_costs
from fretsaw.stages.durations import Durations
from fretsaw.stages.occupancy import Occupancy
from fretsaw.stages.outline import Outline

STORED = 2
"""Bytes of a weight on disk, in BF16."""


@dataclass(frozen=True)
class Piece:
    """What a stage would take.

    Attributes:
        stage: Its word.
        what: What it goes through, in words.
        seconds: Estimated.
        peak_bytes: Of memory, with what the process takes anyway.
        disk_bytes: What it leaves.
    """

    stage: str
    what: str
    seconds: float
    peak_bytes: int
    disk_bytes: int = 0


def forecast(outline: Outline) -> Iterator[Piece]:
    """Every stage of a round, in order."""
    seconds, memory = Durations(outline), Occupancy(outline)
    settings = outline.settings
    length = settings.calibrate.sequence_length
    fitted, judged = settings.calibrate.sequences * length, settings.score.sequences * length
    changing = sum(map(len, outline.changing.values()))
    size = disk_bytes(outline.child)

    def piece(stage: str, what: str, *, s: float = 0, peak: float = 0, disk: int = 0) -> Piece:
        return Piece(stage, what, s, outline.machine.base_bytes + int(peak), disk)

    yield piece("describe", "names and shapes of all tensors")
    yield piece("calibrate", f"{fitted:,} tokens", s=seconds.calibrate(), peak=memory.calibrate())
    yield piece("rank", "weights of all units", s=seconds.rank(), peak=memory.rank())
    yield piece("library", f"{len(outline.problem.usable)} variants")
    what = f"{changing} variants on {judged:,} tokens"
    yield piece("score", what, s=seconds.score(), peak=memory.score())
    yield piece("cost", _cost_words(outline))
    what = f"{len(outline.choices)} choices on {judged:,} tokens"
    yield piece("search", what, s=seconds.search(), peak=memory.search())
    yield piece(
        "build", "repairs, and the child", s=seconds.build(), peak=memory.build(), disk=size
    )
    what = f"probe, and at most {settings.distill.tokens:,} tokens"
    yield piece("distill", what, s=seconds.distill(), peak=memory.distill(), disk=size)
    if outline.is_last:
        asked = outline.recipe.quantize
        what = f"{fitted:,} tokens"
        what += f", healed on {asked.heal_tokens:,}" if asked.heal_tokens else ""
        for to, name in zip(asked.to, asked.names, strict=True):
            s, peak = seconds.quantize(to), memory.quantize()
            yield piece(f"quantize-{name}", what, s=s, peak=peak, disk=size)


def disk_bytes(shape: ModelShape) -> int:
    """A checkpoint in BF16."""
    return model_costs(shape)["params"] * STORED


def _cost_words(outline: Outline) -> str:
    is_timed = any(serve.is_here for serve in outline.settings.search.budget.serve)
    return "timed on this machine: not estimated" if is_timed else "parameters and bytes"
