"""The picture of a frontier: user tokens/s against server tokens/s, predicted and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fretsaw.reports.figures import Panel
from fretsaw.reports.svg import (
    WIDTH,
    Point,
    Scale,
    document,
    heading,
    line,
    marker,
    number,
    polyline,
    text,
)

COLOURS = ("fs-orange", "fs-blue", "fs-green")
LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 78, 24, 118, 400, 452
ROOM = 1.25
"""Space on a logarithmic axis beyond the outermost points."""

LEAST_SHARE = 0.003
"""Of the highest server rate: lower points are off the picture."""

DASHED = 'stroke-width="2" stroke-dasharray="5 4"'


@dataclass(frozen=True)
class Curve:
    """One model's frontier.

    Attributes:
        name: Of the model.
        points: (user tokens/s, server tokens/s) and what a tip says, slow users first.
        is_measured: Marks and a full line; a prediction beside measurements is dashed.
    """

    name: str
    points: Sequence[tuple[Point, str]]
    is_measured: bool = False


def frontier_svg(curves: Sequence[Curve], *, subtitle: str, speed: float | None = None) -> str:
    """User speed against server rate, one curve per model.

    Args:
        curves: Parent first; curves of one name share a colour.
        subtitle: Hardware, workload and formats.
        speed: Wanted user tokens/s, drawn as an upright.

    Returns:
        An SVG document.
    """
    top = max((y for c in curves for (_, y), _ in c.points), default=1.0)
    shown = [
        Curve(c.name, [p for p in c.points if p[0][1] >= LEAST_SHARE * top], c.is_measured)
        for c in curves
    ]
    xs = [x for c in shown for (x, _), _ in c.points] or [1.0]
    ys = [y for c in shown for (_, y), _ in c.points] or [1.0]
    x = Scale(min(xs) / ROOM, max(xs) * ROOM, LEFT, WIDTH - RIGHT, is_log=True)
    y = Scale(min(ys) / ROOM, max(ys) * ROOM, BOTTOM, TOP, is_log=True)
    panel = Panel(x, y)
    body = [heading("User speed against server rate", subtitle), *_legend(shown)]
    body += panel.y_axis("server tokens/s")
    body += panel.x_axis("tokens/s of each user", ticks=[(v, number(v)) for v in x.ticks()])
    if speed is not None and x.low < speed < x.high:
        at = x.at(speed)
        body.append(line((at, TOP), (at, BOTTOM), css="fs-muted-line", extra=DASHED))
        body.append(text((at + 6, TOP + 12), f"{number(speed)} tokens/s"))
    names = list(dict.fromkeys(c.name for c in shown))
    for curve in shown:
        body += _drawn(curve, panel, css=COLOURS[names.index(curve.name) % len(COLOURS)])
    described = "; ".join(f"{c.name}: {len(c.points)} points" for c in shown)
    return document(HEIGHT, body, title="Frontier of speed and rate", description=described)


def _drawn(curve: Curve, panel: Panel, *, css: str) -> Iterator[str]:
    places = [((panel.x.at(x), panel.y.at(y)), tip) for (x, y), tip in curve.points]
    style = {} if curve.is_measured else {"extra": DASHED}
    yield polyline([at for at, _ in places], css=f"{css}-line", **style)
    for at, tip in places:
        shape = "circle" if curve.is_measured else "ring"
        yield marker(at, shape=shape, css=css, size=4, tip=tip)


def _legend(curves: Sequence[Curve]) -> Iterator[str]:
    names = list(dict.fromkeys(c.name for c in curves))
    both = len({c.is_measured for c in curves}) > 1
    at = 20.0
    for curve in curves:
        css = COLOURS[names.index(curve.name) % len(COLOURS)]
        words = curve.name + (
            (", measured" if curve.is_measured else ", predicted") if both else ""
        )
        yield marker(
            (at + 5, 74), shape="circle" if curve.is_measured else "ring", css=css, size=4.5
        )
        yield text((at + 16, 78), words, css="fs-ink", size=12)
        at += 40 + 6.6 * len(words)
