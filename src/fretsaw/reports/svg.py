"""Small SVG drawings by hand: readable in a README and offline, light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

Point = tuple[float, float]

FONT = (
    "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, "
    "sans-serif"
)

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "muted": "#59636e",
    "grid": "#e3e7ec",
    "blue": "#0969b8",
    "orange": "#c45a00",
    "green": "#007a5a",
}
DARK = {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "muted": "#9198a1",
    "grid": "#262d37",
    "blue": "#58a6ff",
    "orange": "#f0934a",
    "green": "#3fc29a",
}
"""Blue, orange, green: apart for every kind of colour vision, each readable on its paper."""

WIDTH = 800
GLYPH = 0.62
"""Width of a character in sizes of the font, on the wide side."""

DECADE_STEPS = (1, 2, 5)
FEW_TICKS = 3
SMALL = 1e-3
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Canvas:
    """What a figure is drawn on.

    Attributes:
        width: Of the drawing; text is 10 to 12 units high on any.
        has_heading: Whether it says itself what it is: in a page, the page does.
    """

    width: float = WIDTH
    has_heading: bool = True

    def heading(self, title: str, subtitle: str) -> str:
        """Title and subtitle in the upper left corner, on a drawing that stands alone."""
        return heading(title, subtitle) if self.has_heading else ""

    @property
    def top(self) -> float:
        """Where the drawing begins below its heading."""
        return 66 if self.has_heading else 8


ALONE = Canvas()
WIDE, NARROW = Canvas(WIDTH, has_heading=False), Canvas(350, has_heading=False)
"""Both forms of a figure in a page: its style sheet shows the one that suits the screen."""


def _rules(colours: dict[str, str]) -> str:
    return f".fs-halo{{stroke:{colours['paper']}}}" + "".join(
        f".fs-{name}{{fill:{value}}}.fs-{name}-line{{stroke:{value}}}"
        for name, value in colours.items()
    )


STYLE = (
    f".fs text{{font-family:{FONT};font-variant-numeric:tabular-nums}}"
    ".fs-halo{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}"
    ".fs-line{fill:none;stroke-linejoin:round;stroke-linecap:round}"
    f"{_rules(LIGHT)}@media(prefers-color-scheme:dark){{{_rules(DARK)}}}"
)
"""Classes instead of variables: drawing programs that know no media query show the light form."""


def document(
    height: float, body: Iterable[str], *, title: str, description: str, canvas: Canvas = ALONE
) -> str:
    """A whole drawing on its own paper.

    Args:
        height: Of the drawing.
        body: What is drawn.
        title: What it shows, for who cannot see it.
        description: Its message, for the same reader.
        canvas: What it is drawn on.
    """
    width = canvas.width
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    name = f'role="img" aria-label={quoteattr(f"{title}. {description}")}'
    style = f"<style>{STYLE}</style>" if canvas.has_heading else ""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="fs" {size} {name}>',
            style,
            f'<rect class="fs-paper" width="{width:g}" height="{height:g}" rx="6"/>',
            *body,
            "</svg>\n",
        )
    )


def heading(title: str, subtitle: str) -> str:
    """Title and subtitle in the upper left corner."""
    return text((20, 30), title, size=16, css="fs-ink", weight=600) + text(
        (20, 49), subtitle, size=12
    )


def text(
    at: Point,
    content: str,
    *,
    size: float = 11,
    css: str = "fs-muted",
    anchor: str = "start",
    weight: int = 400,
    turn: float = 0,
) -> str:
    """A line of text on a base line; `turn` in degrees around its own point."""
    turned = f' transform="rotate({turn:g} {at[0]:.1f} {at[1]:.1f})"' if turn else ""
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" class="{css}" font-size="{size:g}" '
        f'text-anchor="{anchor}" font-weight="{weight}"{turned}>{escape(content)}</text>'
    )


def width_of(content: str, size: float = 11) -> float:
    """About how wide a line of text is."""
    return GLYPH * size * len(content)


@dataclass
class Labels:
    """Numbers beside marks, where there is room: none covers another or leaves its stretch.

    Attributes:
        left: Where the stretch begins.
        right: Where it ends.
        bottom: Where it ends below.
        taken: Left, top, right and bottom of what is written already.
    """

    left: float
    right: float
    bottom: float = math.inf
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def place(
        self, at: Point, content: str, *, size: float = 11, weight: int = 400
    ) -> Iterator[str]:
        """The text beside a point, above it if it can be; nothing if all is full."""
        width, (x, y) = width_of(content, size), at
        middle = x - width / 2
        starts = ((middle, y - 10), (x + 3, y - 8), (x - width - 3, y - 8), (middle, y + 18))
        for left, base in (*starts, (x + 3, y + 16), (x - width - 3, y + 16)):
            box = (left - 2, base - size, left + width + 2, base + 3)
            is_out = box[0] < self.left or box[2] > self.right or box[3] > self.bottom
            if is_out or any(map(_covers, self._pairs(box))):
                continue
            self.taken.append(box)
            yield text((left, base), content, size=size, css="fs-ink fs-halo", weight=weight)
            return

    def _pairs(self, box: tuple[float, float, float, float]) -> Iterator[tuple[float, ...]]:
        return ((*box, *other) for other in self.taken)


def _covers(pair: Sequence[float]) -> bool:
    left, top, right, bottom, *other = pair
    return left < other[2] and other[0] < right and top < other[3] and other[1] < bottom


def line(start: Point, end: Point, *, css: str = "fs-grid-line", extra: str = "") -> str:
    """A straight line."""
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'class="{css}" {extra}/>'
    )


def polyline(points: Sequence[Point], *, css: str, extra: str = 'stroke-width="2"') -> str:
    """A line through points."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" class="fs-line {css}" {extra}/>'


def marker(at: Point, *, shape: str, css: str, size: float = 4.5, tip: str = "") -> str:
    """A mark: ``circle``, ``ring``, ``square``, ``diamond`` or ``star``; `tip` says what it is."""
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    x, y = at
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" class="{css}">{inner}</circle>'
    if shape == "ring":
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" class="fs-paper {css}-line" '
            f'stroke-width="2">{inner}</circle>'
        )
    corners = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in _corners(shape, size))
    return f'<polygon points="{corners}" class="{css}">{inner}</polygon>'


def _corners(shape: str, size: float) -> list[Point]:
    num = 10 if shape == "star" else 4
    radii = (1.7, 0.75) if shape == "star" else (1.25, 1.25)
    turn = math.pi / 4 if shape == "square" else 0.0
    angles = [2 * math.pi * i / num - math.pi / 2 + turn for i in range(num)]
    return [
        (size * radii[i % 2] * math.cos(a), size * radii[i % 2] * math.sin(a))
        for i, a in enumerate(angles)
    ]


@dataclass(frozen=True)
class Sign:
    """An entry of a legend: a mark, or a line where `shape` is ``line``.

    Attributes:
        words: What it stands for.
        shape: As `marker`.
        css: Colour class.
        extra: Attributes of a line.
    """

    words: str
    shape: str
    css: str
    extra: str = 'stroke-width="2"'


def legend(signs: Iterable[Sign], *, top: float, left: float, right: float) -> tuple[str, float]:
    """Entries side by side, in as many lines as they need.

    Returns:
        The drawing, and where it ends.
    """
    x, y, drawn = left, top + 8, []
    for sign in signs:
        room = 22 if sign.shape == "line" else 12
        wide = room + 6 + width_of(sign.words)
        if x > left and x + wide > right:
            x, y = left, y + 20
        if sign.shape == "line":
            drawn.append(line((x, y), (x + room, y), css=f"{sign.css}-line", extra=sign.extra))
        else:
            drawn.append(marker((x + 6, y), shape=sign.shape, css=sign.css, size=4))
        drawn.append(text((x + room + 6, y + 4), sign.words))
        x += wide + 14
    return "\n".join(drawn), y + 12


@dataclass(frozen=True)
class Scale:
    """A stretch of values on a stretch of the drawing, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies."""
        low, high, value = (
            math.log10(v) if self.is_log else v for v in (self.low, self.high, value)
        )
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values on the scale, about `count` of them."""
        if self.is_log and len(found := _log_ticks(self.low, self.high)) >= FEW_TICKS:
            return found
        return _linear_ticks(self.low, self.high, count=count)


def _linear_ticks(low: float, high: float, *, count: int) -> list[float]:
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(s * unit for s in (1, 2, 5, 10) if s * unit >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    decades = [10.0**e for e in exponents if low <= 10.0**e <= high]
    if len(decades) > FEW_TICKS:
        return decades
    fine = (step * 10.0**e for e in exponents for step in DECADE_STEPS)
    return [value for value in fine if low <= value <= high]


def number(value: float | None) -> str:
    """A value in three significant figures; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0 or abs(value) >= SMALL:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004
    mantissa, _, exponent = f"{value:.2g}".partition("e")
    if not exponent:
        return mantissa
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return power if mantissa == "1" else f"{mantissa}·{power}"


def share(value: float | None) -> str:
    """A part of a whole: ``12.5%``, never 12 % for an eighth; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.1%}"
