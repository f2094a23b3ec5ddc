"""Small SVG drawings by hand: readable in a README and offline, light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
DECADE_STEPS = (1, 2, 5)
FEW_TICKS = 3
SMALL = 1e-3
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _rules(colours: dict[str, str]) -> str:
    return "".join(
        f".fs-{name}{{fill:{value}}}.fs-{name}-line{{stroke:{value}}}"
        for name, value in colours.items()
    )


STYLE = (
    f".fs text{{font-family:{FONT};font-variant-numeric:tabular-nums}}"
    ".fs-line{fill:none;stroke-linejoin:round;stroke-linecap:round}"
    f"{_rules(LIGHT)}@media(prefers-color-scheme:dark){{{_rules(DARK)}}}"
)
"""Classes instead of variables: drawing programs that know no media query show the light form."""


def document(height: float, body: Iterable[str], *, title: str, description: str) -> str:
    """A whole drawing, `WIDTH` wide, on its own paper."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    name = f'role="img" aria-label={quoteattr(title)}'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="fs" {size} {name}>',
            f"<desc>{escape(description)}</desc>",
            f"<style>{STYLE}</style>",
            f'<rect class="fs-paper" width="{WIDTH}" height="{height:g}" rx="6"/>',
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
    """A mark: ``circle``, ``ring``, ``diamond`` or ``star``; `tip` shows on hovering."""
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
    num = 4 if shape == "diamond" else 10
    radii = (1.25, 1.25) if shape == "diamond" else (1.7, 0.75)
    angles = [2 * math.pi * i / num - math.pi / 2 for i in range(num)]
    return [
        (size * radii[i % 2] * math.cos(a), size * radii[i % 2] * math.sin(a))
        for i, a in enumerate(angles)
    ]


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
