"""Static figures on axes: KL and loss over healing, and predicted beside measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fretsaw.core.units import format_count
from fretsaw.reports.findings import (
    Evaluation,
    RoundFindings,
    Stretch,
    SwappedModel,
    healing_axis,
)
from fretsaw.reports.svg import (
    WIDTH,
    Scale,
    document,
    heading,
    line,
    marker,
    number,
    polyline,
    text,
)

MARKS = {
    "random": ("circle", "fs-muted"),
    "n-best": ("diamond", "fs-blue"),
    "chosen": ("star", "fs-orange"),
}
"""Kind of choice -> shape and colour, in drawing order."""

KIND_WORDS = {"random": "random choice", "n-best": "among the best", "chosen": "chosen"}
PREDICTED = {
    "kl": "predicted KL, nats per token",
    "loss": "summed losses, nats per token",
    "hidden": "summed ranks",
}
"""Metric -> what is summed."""

LEFT, RIGHT = 64, 24
KL_TOP, KL_BOTTOM, LOSS_TOP, LOSS_BOTTOM, HEALING_HEIGHT = 112, 296, 346, 470, 522
SIDE, PANEL_GAP, PANELS_A_ROW, PANEL_TOP, PANEL_HEIGHT = 188, 66, 3, 132, 312
NARROWEST = 1.6
"""Least ratio between the two ends of a logarithmic axis."""

DASHES = 'stroke-width="1.5" stroke-dasharray="3 4"'


@dataclass(frozen=True)
class Panel:
    """Axes: where they lie and what they span."""

    x: Scale
    y: Scale

    def y_axis(self, label: str) -> Iterator[str]:
        """Grid lines and numbers; the label stands above the upper end."""
        for value in self.y.ticks(4):
            y = self.y.at(value)
            yield line((self.x.start, y), (self.x.end, y))
            yield text((self.x.start - 8, y + 4), number(value), anchor="end")
        yield text((self.x.start, self.y.end - 10), label, css="fs-ink")

    def x_axis(self, label: str, *, ticks: Sequence[tuple[float, str]]) -> Iterator[str]:
        """The lower edge, with ticks and a label below its middle."""
        bottom = self.y.start
        yield line((self.x.start, bottom), (self.x.end, bottom), css="fs-muted-line")
        for value, word in ticks:
            x = self.x.at(value)
            yield line((x, bottom), (x, bottom + 4), css="fs-muted-line")
            yield text((x, bottom + 17), word, anchor="middle")
        middle = (self.x.start + self.x.end) / 2
        yield text((middle, bottom + 36), label, css="fs-ink", anchor="middle")


@dataclass(frozen=True)
class Quantity:
    """What a curve shows.

    Attributes:
        label: With its unit.
        of: Its value at an evaluation.
        parent: Its value for the original parent.
        css: Colour class.
    """

    label: str
    of: Callable[[Evaluation], float]
    parent: float
    css: str


def quantities(parent_loss: float) -> tuple[Quantity, Quantity]:
    """KL and loss, in drawing order."""
    return (
        Quantity("KL to the parent, nats per token", lambda e: e.kl, 0.0, "fs-blue"),
        Quantity("next-token loss, nats per token", lambda e: e.loss, parent_loss, "fs-orange"),
    )


def healing_svg(rounds: Sequence[RoundFindings], *, parent_loss: float) -> str:
    """KL to the parent and loss over the healing tokens of all rounds, on held-out text.

    Args:
        rounds: In order.
        parent_loss: Of the original parent on the same text, nats per token.

    Returns:
        An SVG document.
    """
    axis = healing_axis(rounds)
    x = Scale(0, max((s.end for s in axis), default=0) or 1, LEFT, WIDTH - RIGHT)
    ticks = [(value, format_count(value)) for value in x.ticks()]
    kl, loss = quantities(parent_loss)
    body = [heading("Cut and heal", "held-out text; a dashed rise is a cut, a curve its healing")]
    above = Panel(x, y_scale(kl, axis, start=KL_BOTTOM, end=KL_TOP))
    below = Panel(x, y_scale(loss, axis, start=LOSS_BOTTOM, end=LOSS_TOP))
    for panel, quantity in ((above, kl), (below, loss)):
        body += [*panel.y_axis(quantity.label), *_curve(panel, quantity, axis=axis)]
    body += below.x_axis("healing tokens, all rounds", ticks=ticks)
    for stretch in axis:
        middle = x.at((stretch.start + stretch.end) / 2)
        name = f"round {stretch.round.number}"
        body.append(text((middle, KL_TOP - 28), name, css="fs-ink", anchor="middle", weight=600))
    body += _healing_key()
    return document(
        HEALING_HEIGHT,
        body,
        title="KL to the parent and loss over healing tokens",
        description="Every cut raises both; distillation from the original parent lowers them.",
    )


def y_scale(quantity: Quantity, axis: Sequence[Stretch], *, start: float, end: float) -> Scale:
    """All rounds and the parent, with room for the numbers."""
    values = [quantity.of(e) for s in axis for e in s.round.evaluations]
    low, high = min([quantity.parent, *values]), max([quantity.parent, *values])
    spread = high - low or 1.0
    return Scale(low - (0.1 * spread if low else 0), high + 0.12 * spread, start, end)


def _curve(panel: Panel, quantity: Quantity, *, axis: Sequence[Stretch]) -> Iterator[str]:
    level = panel.y.at(quantity.parent)
    yield line((LEFT, level), (WIDTH - RIGHT, level), css="fs-muted-line", extra=DASHES)
    if quantity.parent:
        yield text((LEFT + 8, level - 5), f"parent {quantity.parent:.3f}", size=10)
    before = quantity.parent
    for stretch in axis:
        yield from _stretch(panel, quantity, stretch=stretch, before=before)
        before = quantity.of(stretch.round.kept)


def _stretch(panel: Panel, quantity: Quantity, *, stretch: Stretch, before: float) -> Iterator[str]:
    """The cut, the curve of one healing, its training curve, and the two numbers that count."""
    css, evaluations, kept = quantity.css, stretch.round.evaluations, stretch.round.kept

    def place(tokens: int, value: float) -> tuple[float, float]:
        return panel.x.at(stretch.start + tokens), panel.y.at(value)

    points = [place(e.tokens, quantity.of(e)) for e in evaluations]
    yield line(place(0, before), points[0], css=f"{css}-line", extra=DASHES)
    yield polyline(points, css=f"{css}-line")
    for evaluation, point in zip(evaluations, points, strict=True):
        value = f"{quantity.of(evaluation):.4f}"
        tip = f"round {stretch.round.number}, {evaluation.tokens:,} tokens: {value}"
        shape = "ring" if evaluation == kept else "circle"
        yield marker(point, shape=shape, css=css, size=5 if shape == "ring" else 3, tip=tip)
    x, y = points[0]
    yield text((x + 8, y + 1), f"{quantity.of(evaluations[0]):.3f}", css="fs-ink")
    if kept.tokens:
        x, y = place(kept.tokens, quantity.of(kept))
        value = f"{quantity.of(kept):.3f}"
        yield text((x - 2, y - 11), value, css="fs-ink", anchor="end", weight=600)


def _healing_key() -> Iterator[str]:
    y, x = 45.0, WIDTH - RIGHT - 222.0
    yield marker((x, y), shape="circle", css="fs-blue", size=3)
    yield text((x + 10, y + 4), "measured")
    yield marker((x + 82, y), shape="ring", css="fs-blue", size=5)
    yield text((x + 93, y + 4), "weights that were kept")


def additivity_svg(rounds: Sequence[RoundFindings]) -> str:
    """Summed replace-one scores beside the KL of the swapped model, a panel per round.

    Args:
        rounds: Those without measured choices are left out.

    Returns:
        An SVG document, log-log; points that are not positive cannot be shown and are counted.
    """
    shown = [r for r in rounds if positive(r.swapped)]
    num_rows = max(1, math.ceil(len(shown) / PANELS_A_ROW))
    subtitle = "sum of the scores of single replacements beside the KL of the whole choice"
    body = [heading("Can scores be summed?", subtitle)]
    for i, round_ in enumerate(shown):
        left = LEFT + (i % PANELS_A_ROW) * (SIDE + PANEL_GAP)
        body += _scatter(round_, left=left, top=PANEL_TOP + (i // PANELS_A_ROW) * PANEL_HEIGHT)
    height = PANEL_TOP + (num_rows - 1) * PANEL_HEIGHT + SIDE + 84
    if not shown:
        body.append(text((WIDTH / 2, PANEL_TOP + SIDE / 2), "no choices", anchor="middle", size=13))
    body += _kind_key(shown, y=height - 20)
    return document(
        height,
        body,
        title="Predicted and measured KL of whole choices",
        description="On the dashed line the sum of scores equals what was measured.",
    )


def positive(swapped: Sequence[SwappedModel]) -> list[SwappedModel]:
    """The choices that a logarithmic axis can show."""
    return [s for s in swapped if s.predicted > 0 and s.measured > 0]


def _scatter(round_: RoundFindings, *, left: float, top: float) -> Iterator[str]:
    shown = positive(round_.swapped)
    predicted, measured = [s.predicted for s in shown], [s.measured for s in shown]
    if is_same := round_.metric == "kl":
        predicted = measured = predicted + measured
    panel = Panel(
        log_scale(predicted, start=left, end=left + SIDE),
        log_scale(measured, start=top + SIDE, end=top),
    )
    yield text((left, top - 46), f"round {round_.number}", size=12, css="fs-ink", weight=600)
    yield text((left, top - 31), agreement(round_))
    yield from panel.y_axis("measured KL, nats per token")
    ticks = [(value, number(value)) for value in panel.x.ticks(3)]
    yield from panel.x_axis(PREDICTED[round_.metric], ticks=ticks)
    for value, _ in ticks:
        yield line((panel.x.at(value), top), (panel.x.at(value), top + SIDE))
    if is_same:
        yield line((left, top + SIDE), (left + SIDE, top), css="fs-muted-line", extra=DASHES)
    for kind, (shape, css) in MARKS.items():
        for one in (s for s in shown if s.kind == kind):
            at = panel.x.at(one.predicted), panel.y.at(one.measured)
            tip = f"{KIND_WORDS[kind]}: {number(one.predicted)} → {number(one.measured)}"
            yield marker(at, shape=shape, css=css, size=3.5 if kind == "random" else 5, tip=tip)
    if hidden := len(round_.swapped) - len(shown):
        yield text((left + 6, top + 12), f"{hidden} not above zero, not shown", size=9.5)


def agreement(round_: RoundFindings) -> str:
    """Number of choices and their rank correlation, as ``23 choices, Spearman 0.93``."""
    num = len(round_.swapped)
    count = "1 choice" if num == 1 else f"{num} choices"
    if round_.spearman is None or not math.isfinite(round_.spearman):
        return f"{count}, too few to correlate"
    return f"{count}, Spearman {round_.spearman:.2f}"


def log_scale(values: Sequence[float], *, start: float, end: float, room: float = 1.15) -> Scale:
    """A scale with room around the values, never so narrow that noise looks like a law."""
    low, high = min(values) / room, max(values) * room
    if (widen := math.sqrt(NARROWEST / (high / low))) > 1:
        low, high = low / widen, high * widen
    return Scale(low, high, start, end, is_log=True)


def _kind_key(rounds: Sequence[RoundFindings], *, y: float) -> Iterator[str]:
    x = float(LEFT)
    for kind, (shape, css) in MARKS.items():
        if any(s.kind == kind for r in rounds for s in r.swapped):
            yield marker((x, y - 4), shape=shape, css=css, size=4)
            yield text((x + 11, y), KIND_WORDS[kind])
            x += 11 + 6.2 * len(KIND_WORDS[kind]) + 24
    if any(r.metric == "kl" for r in rounds):
        yield line((x, y - 4), (x + 22, y - 4), css="fs-muted-line", extra=DASHES)
        yield text((x + 30, y), "measured as predicted")
