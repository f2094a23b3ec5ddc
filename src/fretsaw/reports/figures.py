"""Figures on axes: KL and loss over healing, and predicted beside measured."""

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
    ALONE,
    SMALL,
    Canvas,
    Labels,
    Scale,
    Sign,
    document,
    legend,
    line,
    marker,
    number,
    polyline,
    text,
    width_of,
)

MARKS = {
    "random": ("circle", "fs-muted"),
    "n-best": ("diamond", "fs-blue"),
    "uniform": ("square", "fs-green"),
    "chosen": ("star", "fs-orange"),
}
"""Kind of choice -> shape and colour, in drawing order."""

KIND_WORDS = {
    "random": "random choice",
    "n-best": "among the best",
    "uniform": "equal blocks",
    "chosen": "chosen",
}
PREDICTED = {
    "kl": "predicted KL, nats per token",
    "loss": "summed losses, nats per token",
    "hidden": "summed ranks",
}
"""Metric -> what is summed."""

LEFT, RIGHT = 54, 16
HEALING_ROOM, KL_HEIGHT, LOSS_GAP, LOSS_HEIGHT = 68, 184, 50, 124
SIDE, PANEL_GAP, PANEL_ROOM, PANEL_FOOT = 188, 66, 66, 58
NARROWEST = 1.6
"""Least ratio between the two ends of a logarithmic axis."""

TICK_HEIGHT, TICK_GAP = 13, 7
DASHES = 'stroke-width="1.5" stroke-dasharray="3 4"'
THIN = 'stroke-width="1.5" stroke-dasharray="6 3"'


@dataclass(frozen=True)
class Panel:
    """Axes: where they lie and what they span."""

    x: Scale
    y: Scale

    def y_axis(self, label: str) -> Iterator[str]:
        """Grid lines and numbers; the label stands above the upper end."""
        last = math.inf
        for value in self.y.ticks(4):
            y = self.y.at(value)
            yield line((self.x.start, y), (self.x.end, y))
            if last - y >= TICK_HEIGHT:
                yield text((self.x.start - 8, y + 4), number(value), anchor="end")
                last = y
        yield text((self.x.start, self.y.end - 10), label, css="fs-ink")

    def x_axis(self, label: str, *, ticks: Sequence[tuple[float, str]]) -> Iterator[str]:
        """The lower edge, with ticks and a label below its middle; words that fit, no others."""
        bottom = self.y.start
        yield line((self.x.start, bottom), (self.x.end, bottom), css="fs-muted-line")
        free = -math.inf
        for value, word in ticks:
            x, half = self.x.at(value), width_of(word) / 2
            yield line((x, bottom), (x, bottom + 4), css="fs-muted-line")
            if x - half >= free:
                yield text((x, bottom + 17), word, anchor="middle")
                free = x + half + TICK_GAP
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
        form: How its values are written.
        in_training: Its value on the training text, where there is one.
    """

    label: str
    of: Callable[[Evaluation], float]
    parent: float
    css: str
    form: Callable[[float], str]
    in_training: Callable[[Evaluation], float | None] = lambda _: None

    def values(self, axis: Sequence[Stretch]) -> list[float]:
        """All that is drawn of it."""
        evaluations = [e for s in axis for e in s.round.evaluations]
        trained = [t for e in evaluations if (t := self.in_training(e)) is not None]
        return [self.parent, *map(self.of, evaluations), *trained]


def three_figures(value: float) -> str:
    """A number over a mark: ``0.120``, as long as its neighbours."""
    return f"{value:#.3g}" if abs(value) >= SMALL else number(value)


def quantities(parent_loss: float) -> tuple[Quantity, Quantity]:
    """KL and loss, in drawing order."""
    return (
        Quantity(
            "KL to the parent, nats per token",
            lambda e: e.kl,
            0.0,
            "fs-blue",
            three_figures,
            in_training=lambda e: e.train_kl,
        ),
        Quantity(
            "next-token loss, nats per token",
            lambda e: e.loss,
            parent_loss,
            "fs-orange",
            "{:.3f}".format,
        ),
    )


def healing_svg(
    rounds: Sequence[RoundFindings], *, parent_loss: float, canvas: Canvas = ALONE
) -> str:
    """KL to the parent and loss over the healing tokens of all rounds, on held-out text.

    Args:
        rounds: In order.
        parent_loss: Of the original parent on the same text, nats per token.
        canvas: What to draw on.

    Returns:
        An SVG document.
    """
    axis = healing_axis(rounds)
    x = Scale(0, max((s.end for s in axis), default=0) or 1, LEFT, canvas.width - RIGHT)
    kl, loss = quantities(parent_loss)
    key, end = legend(_healing_key(axis), top=canvas.top, left=8, right=canvas.width - 8)
    top = end + HEALING_ROOM - 12
    loss_top = top + KL_HEIGHT + LOSS_GAP
    above = Panel(x, y_scale(kl, axis, start=top + KL_HEIGHT, end=top))
    below = Panel(x, y_scale(loss, axis, start=loss_top + LOSS_HEIGHT, end=loss_top))
    body = [canvas.heading("Cut and heal", HEALING_SUBTITLE), key]
    for panel, quantity in ((above, kl), (below, loss)):
        body += [*panel.y_axis(quantity.label), *_curve(panel, quantity, axis=axis)]
    ticks = [(value, format_count(value)) for value in x.ticks()]
    body += [*below.x_axis("healing tokens, all rounds", ticks=ticks), *_titles(x, axis, y=top)]
    return document(
        loss_top + LOSS_HEIGHT + 52,
        body,
        title="KL to the parent and loss over healing tokens",
        description=healing_message(rounds),
        canvas=canvas,
    )


HEALING_SUBTITLE = "held-out text; a dashed rise is a cut, a curve its healing"


def healing_message(rounds: Sequence[RoundFindings]) -> str:
    """What the figure says, in a sentence a round."""
    return " ".join(
        f"Round {r.number}: KL {number(r.evaluations[0].kl)} after the cut, "
        f"{number(r.kept.kl)} healed; loss {r.evaluations[0].loss:.3f}, then {r.kept.loss:.3f}."
        for r in rounds
        if r.evaluations
    )


def _titles(x: Scale, axis: Sequence[Stretch], *, y: float) -> Iterator[str]:
    """The rounds' names over their stretches, shortened where these are short."""
    for stretch in axis:
        middle, room = (
            x.at((stretch.start + stretch.end) / 2),
            x.at(stretch.end) - x.at(stretch.start),
        )
        words = (f"round {stretch.round.number}", str(stretch.round.number))
        name = next((w for w in words if width_of(w) < room), "")
        yield text((middle, y - 28), name, css="fs-ink", anchor="middle", weight=600)


def y_scale(quantity: Quantity, axis: Sequence[Stretch], *, start: float, end: float) -> Scale:
    """All that is drawn, with room for the numbers."""
    values = quantity.values(axis)
    low, high = min(values), max(values)
    spread = high - low or 1.0
    return Scale(low - (0.1 * spread if low else 0), high + 0.12 * spread, start, end)


def _curve(panel: Panel, quantity: Quantity, *, axis: Sequence[Stretch]) -> Iterator[str]:
    level = panel.y.at(quantity.parent)
    labels = Labels(panel.x.start, panel.x.end + RIGHT, panel.y.start)
    yield line((panel.x.start, level), (panel.x.end, level), css="fs-muted-line", extra=DASHES)
    before = quantity.parent
    for stretch in axis:
        yield from _stretch(panel, quantity, stretch=stretch, before=before)
        before = quantity.of(stretch.round.kept)
    if quantity.parent:
        words = f"parent {quantity.parent:.3f}"
        at, left = (panel.x.end, level - 5), panel.x.end - width_of(words, 10)
        yield text(at, words, size=10, css="fs-muted fs-halo", anchor="end")
        labels.taken.append((left, level - 16, panel.x.end, level))
    yield from _numbers(panel, quantity, axis=axis, labels=labels)


def _stretch(panel: Panel, quantity: Quantity, *, stretch: Stretch, before: float) -> Iterator[str]:
    """The cut, the curve of one healing and its training curve."""
    css, evaluations, kept = quantity.css, stretch.round.evaluations, stretch.round.kept

    def place(tokens: int, value: float) -> tuple[float, float]:
        return panel.x.at(stretch.start + tokens), panel.y.at(value)

    trained = [(e.tokens, t) for e in evaluations if (t := quantity.in_training(e)) is not None]
    if trained:
        yield polyline([place(*one) for one in trained], css="fs-muted-line", extra=THIN)
    points = [place(e.tokens, quantity.of(e)) for e in evaluations]
    yield line(place(0, before), points[0], css=f"{css}-line", extra=DASHES)
    yield polyline(points, css=f"{css}-line")
    for evaluation, point in zip(evaluations, points, strict=True):
        value = f"{quantity.of(evaluation):.4f}"
        tip = f"round {stretch.round.number}, {evaluation.tokens:,} tokens: {value}"
        if (train := quantity.in_training(evaluation)) is not None:
            tip += f", in training {train:.4f}"
        shape = "ring" if evaluation == kept else "circle"
        yield marker(point, shape=shape, css=css, size=5 if shape == "ring" else 3, tip=tip)


def _numbers(
    panel: Panel, quantity: Quantity, *, axis: Sequence[Stretch], labels: Labels
) -> Iterator[str]:
    """The two numbers of a round that count: what was kept, then what the cut cost."""
    for wants_kept in (True, False):
        for stretch in axis:
            kept = stretch.round.kept
            one = kept if wants_kept else stretch.round.evaluations[0]
            if wants_kept and not kept.tokens:
                continue
            at = panel.x.at(stretch.start + one.tokens), panel.y.at(quantity.of(one))
            value = quantity.form(quantity.of(one))
            yield from labels.place(at, value, weight=600 if wants_kept else 400)


def _healing_key(axis: Sequence[Stretch]) -> Iterator[Sign]:
    yield Sign("measured", "circle", "fs-blue")
    yield Sign("weights that were kept", "ring", "fs-blue")
    if any(e.train_kl is not None for s in axis for e in s.round.evaluations):
        yield Sign("in training", "line", "fs-muted", THIN)


def additivity_svg(rounds: Sequence[RoundFindings], *, canvas: Canvas = ALONE) -> str:
    """Summed replace-one scores beside the KL of the swapped model, a panel per round.

    Args:
        rounds: Those without measured choices are left out.
        canvas: What to draw on.

    Returns:
        An SVG document, log-log; points that are not positive cannot be shown and are counted.
    """
    shown = [r for r in rounds if positive(r.swapped)]
    a_row = max(1, int((canvas.width - LEFT - RIGHT + PANEL_GAP) // (SIDE + PANEL_GAP)))
    side = SIDE if a_row > 1 else canvas.width - LEFT - RIGHT
    num_rows = max(1, math.ceil(len(shown) / a_row))
    body = [canvas.heading("Can scores be summed?", ADDITIVITY_SUBTITLE)]
    top = canvas.top + PANEL_ROOM
    step = PANEL_ROOM + SIDE + PANEL_FOOT
    for i, round_ in enumerate(shown):
        left = LEFT + (i % a_row) * (side + PANEL_GAP)
        body += _scatter(round_, left=left, top=top + (i // a_row) * step, side=side)
    if not shown:
        body.append(text((canvas.width / 2, top + 80), "no choices", anchor="middle", size=13))
    end = top + (num_rows - 1) * step + SIDE + PANEL_FOOT - 8
    key, end = legend(_kind_key(shown), top=end, left=8, right=canvas.width - 8)
    body.append(key)
    return document(
        end + 4,
        body,
        title="Predicted and measured KL of whole choices",
        description=additivity_message(rounds),
        canvas=canvas,
    )


ADDITIVITY_SUBTITLE = "sum of the scores of single replacements beside the KL of the whole choice"


def additivity_message(rounds: Sequence[RoundFindings]) -> str:
    """What the figure says, in a sentence a round."""
    if not any(r.swapped for r in rounds):
        return "No whole choice was measured."
    return " ".join(
        f"Round {r.number}: {agreement(r)}; the chosen one was predicted at "
        f"{number(one.predicted)} and measured at {number(one.measured)}."
        for r in rounds
        for one in r.swapped
        if one.kind == "chosen"
    )


def positive(swapped: Sequence[SwappedModel]) -> list[SwappedModel]:
    """The choices that a logarithmic axis can show."""
    return [s for s in swapped if 0 < s.predicted < math.inf and 0 < s.measured < math.inf]


def _scatter(round_: RoundFindings, *, left: float, top: float, side: float) -> Iterator[str]:
    shown = positive(round_.swapped)
    predicted, measured = [s.predicted for s in shown], [s.measured for s in shown]
    if is_same := round_.metric == "kl":
        predicted = measured = predicted + measured
    panel = Panel(
        log_scale(predicted, start=left, end=left + side),
        log_scale(measured, start=top + SIDE, end=top),
    )
    yield text((left, top - 46), f"round {round_.number}", size=12, css="fs-ink", weight=600)
    yield text((left, top - 30), agreement(round_))
    yield from panel.y_axis("measured KL, nats per token")
    ticks = [(value, number(value)) for value in panel.x.ticks(3)]
    yield from panel.x_axis(PREDICTED[round_.metric], ticks=ticks)
    for value, _ in ticks:
        yield line((panel.x.at(value), top), (panel.x.at(value), top + SIDE))
    if is_same:
        yield line((left, top + SIDE), (left + side, top), css="fs-muted-line", extra=DASHES)
    for kind, (shape, css) in MARKS.items():
        for one in (s for s in shown if s.kind == kind):
            at = panel.x.at(one.predicted), panel.y.at(one.measured)
            tip = f"{KIND_WORDS[kind]}: {number(one.predicted)} → {number(one.measured)}"
            yield marker(at, shape=shape, css=css, size=3.5 if kind == "random" else 5, tip=tip)
    if hidden := len(round_.swapped) - len(shown):
        yield text((left + 6, top + 12), f"{hidden} not above zero, not shown", size=10)


def agreement(round_: RoundFindings) -> str:
    """Number of choices and their rank correlation, as ``23 choices, Spearman 0.93``."""
    num = len([s for s in round_.swapped if s.kind != "uniform"])
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


def _kind_key(rounds: Sequence[RoundFindings]) -> Iterator[Sign]:
    for kind, (shape, css) in MARKS.items():
        if any(s.kind == kind for r in rounds for s in r.swapped):
            yield Sign(KIND_WORDS[kind], shape, css)
    if any(r.metric == "kl" for r in rounds):
        yield Sign("measured as predicted", "line", "fs-muted", DASHES)
