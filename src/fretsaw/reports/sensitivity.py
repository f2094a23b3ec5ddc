"""Where the network is sensitive: the score of every variant by block, a panel per round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fretsaw.reports.figures import LEFT, RIGHT, Panel, log_scale
from fretsaw.reports.findings import BlockForm, RoundFindings, VariantScore
from fretsaw.reports.heatmap import LETTERS, WORDS
from fretsaw.reports.svg import (
    ALONE,
    Canvas,
    Scale,
    Sign,
    document,
    legend,
    line,
    marker,
    number,
    text,
)

SCORE_WORDS = {
    "kl": "KL to the round’s model, nats per token",
    "loss": "next-token loss, nats per token",
    "hidden": "mean rank of the hidden error",
}
"""Metric -> what a score is."""

LEAST_SHOWN = 1e-4
"""Share of a round's largest score below which a score is noise of an unchanged block."""

PANEL_ROOM, PANEL_HEIGHT, PANEL_FOOT = 44, 150, 46
LETTER_ROOM, INDEX_ROOM = 9.5, 22


def scores_svg(
    rounds: Sequence[RoundFindings], blocks: Sequence[BlockForm], *, canvas: Canvas = ALONE
) -> str:
    """Score of every variant by block, a row of axes per round.

    Args:
        rounds: In order.
        blocks: Of the original parent.
        canvas: What to draw on.

    Returns:
        An SVG document; a star is the variant that was chosen.
    """
    signs = (Sign("variant", "circle", "fs-muted"), Sign("chosen", "star", "fs-orange"))
    key, end = legend(signs, top=canvas.top, left=8, right=canvas.width - 8)
    x = Scale(-0.7, len(blocks) - 0.3, LEFT, canvas.width - RIGHT)
    body = [canvas.heading("Where the network is sensitive", "what one replacement costs"), key]
    step = PANEL_ROOM + PANEL_HEIGHT + PANEL_FOOT
    for i, round_ in enumerate(rounds):
        top = end + PANEL_ROOM + i * step
        body += _panel(round_, blocks, x=x, top=top)
    middle, bottom = (x.start + x.end) / 2, end + len(rounds) * step
    body.append(text((middle, bottom + 6), "block of the original parent", anchor="middle"))
    return document(
        bottom + 14,
        body,
        title="Score of every variant by block",
        description=scores_message(rounds, blocks),
        canvas=canvas,
    )


def scores_message(rounds: Sequence[RoundFindings], blocks: Sequence[BlockForm]) -> str:
    """What the figure says, in a sentence a round."""
    sentences = []
    for round_ in rounds:
        if shown := shown_scores(round_):
            worst = max(shown, key=lambda s: s.score)
            kind = WORDS[blocks[worst.block].original.mixer]
            sentences.append(
                f"Round {round_.number}: {worst.key} in block {worst.block} ({kind}) would cost "
                f"most, {number(worst.score)}."
            )
    return " ".join(sentences) or "No variant changes anything."


def shown_scores(round_: RoundFindings) -> list[VariantScore]:
    """The scores that a logarithmic axis shows, without those of unchanged blocks."""
    scores = [s for s in round_.scores if math.isfinite(s.score)]
    least = LEAST_SHOWN * max((s.score for s in scores), default=0.0)
    return [s for s in scores if s.score > max(least, 0.0)]


def _panel(
    round_: RoundFindings, blocks: Sequence[BlockForm], *, x: Scale, top: float
) -> Iterator[str]:
    shown = shown_scores(round_)
    y = log_scale([s.score for s in shown] or [1.0], start=top + PANEL_HEIGHT, end=top, room=1.4)
    panel = Panel(x, y)
    yield text((x.start, top - 26), f"round {round_.number}", size=12, css="fs-ink", weight=600)
    yield from panel.y_axis(SCORE_WORDS[round_.metric])
    yield line((x.start, y.start), (x.end, y.start), css="fs-muted-line")
    yield from _block_names(blocks, x=x, bottom=y.start)
    for block in sorted({s.block for s in shown}):
        values = [y.at(s.score) for s in shown if s.block == block]
        ends = (x.at(block), min(values)), (x.at(block), max(values))
        yield line(*ends, css="fs-muted-line", extra='stroke-opacity="0.6"')
    for one in sorted(shown, key=lambda s: s.is_chosen):
        shape, css, size = (
            ("star", "fs-orange", 5) if one.is_chosen else ("circle", "fs-muted", 2.6)
        )
        kind = WORDS[blocks[one.block].original.mixer]
        chosen = ", chosen" if one.is_chosen else ""
        tip = f"block {one.block}, {kind}, {one.key}: {number(one.score)}{chosen}"
        yield marker((x.at(one.block), y.at(one.score)), shape=shape, css=css, size=size, tip=tip)


def _block_names(blocks: Sequence[BlockForm], *, x: Scale, bottom: float) -> Iterator[str]:
    """Letters where there is room for them, and every so many numbers."""
    room = x.at(1) - x.at(0)
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, len(blocks)) if n * room >= INDEX_ROOM)
    for form in blocks:
        at = x.at(form.index)
        if room >= LETTER_ROOM:
            letter = LETTERS[form.original.mixer]
            yield text((at, bottom + 14), letter, size=10, css="fs-ink", anchor="middle")
        if form.index % every == 0:
            yield text((at, bottom + 28), str(form.index), size=10, anchor="middle")
