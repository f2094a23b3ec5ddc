"""The choice as a heat map: what was kept of every block of the original parent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from fretsaw.core.shape import Mixer
from fretsaw.reports.findings import BlockForm
from fretsaw.reports.svg import WIDTH, document, heading, text

LETTERS: dict[Mixer, str] = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-", "none": ""}
"""Kinds of blocks, as in the layer patterns of Nemotron-H."""

WORDS: dict[Mixer, str] = {
    "mamba": "Mamba",
    "attention": "attention",
    "moe": "experts (MoE)",
    "mlp": "MLP",
    "none": "none",
}

LEFT, RIGHT, TOP, BOTTOM = 150, 20, 68, 52
MOST_COLUMNS, WIDEST = 28, 60
ROW, GAP, HEADER, FOOTER = 30, 3, 20, 26
PALEST, DEEPEST = 0.07, 0.95
GLYPH = 0.64
"""Width of a digit or percent sign in sizes of the font, on the wide side."""

LIGHT_TEXT_FROM = 0.75
"""Depth of a cell from which the paper's colour reads better on it than the ink's."""


@dataclass(frozen=True)
class Row:
    """A row of the map: what it shows, of which kind of block.

    Attributes:
        label: In words.
        mixer: Kind of block that has it.
        names: Sizes and settings whose product is shown.
    """

    label: str
    mixer: Mixer
    names: tuple[str, ...]

    def concerns(self, form: BlockForm) -> bool:
        """Whether a block of the parent had all that is shown here."""
        values = form.original.values
        return form.original.mixer == self.mixer and all(values.get(n) for n in self.names)

    def has(self, form: BlockForm) -> bool:
        """Whether it still has it."""
        return self.concerns(form) and not form.is_gone

    def kept(self, form: BlockForm) -> float:
        """Share that a block has kept."""
        return math.prod(form.kept(name) or 0.0 for name in self.names)

    def cell(self, form: BlockForm) -> str:
        """What is written into a cell: the number itself, of a product the share."""
        if len(self.names) > 1:
            return f"{self.kept(form):.0%}"
        return str(form.current.values[self.names[0]])

    def tip(self, form: BlockForm) -> str:
        """What a cell says in full."""
        shares = [f"{form.current.values[n]:,} of {form.original.values[n]:,}" for n in self.names]
        return f"block {form.index}, {self.label}: {' × '.join(shares)} ({self.kept(form):.1%})"


ROWS = (
    Row("expert width", "moe", ("ffn",)),
    Row("experts per token", "moe", ("top_k",)),
    Row("routed capacity", "moe", ("ffn", "top_k")),
    Row("Mamba state", "mamba", ("state",)),
)


def choice_svg(blocks: Sequence[BlockForm], *, num_rounds: int) -> str:
    """Heat map of the choice: a column per block of the original parent, a row per dimension.

    Args:
        blocks: All blocks of the original parent with their present form.
        num_rounds: Rounds that led there.

    Returns:
        An SVG document; long models are broken into bands.
    """
    rows = [row for row in ROWS if any(row.concerns(form) for form in blocks)]
    num_bands = math.ceil(len(blocks) / MOST_COLUMNS)
    columns = math.ceil(len(blocks) / num_bands)
    width = min(WIDEST, (WIDTH - LEFT - RIGHT) / columns)
    longest = max((len(r.cell(b)) for r in rows for b in blocks if r.has(b)), default=1)
    size = round(min(12.0, (width - GAP - 1) / (GLYPH * longest)), 1)
    band_height = HEADER + len(rows) * (ROW + GAP) + FOOTER
    body = [_HATCH, heading("What each block has kept", _subtitle(num_rounds))]
    for band in range(num_bands):
        part = blocks[band * columns : (band + 1) * columns]
        top = TOP + band * band_height
        body += _labels(rows, blocks, top=top, with_totals=band == 0)
        for i, form in enumerate(part):
            place = _Place(LEFT + i * width, top, width - GAP)
            body += _column(form, rows, place=place, size=size)
    height = TOP + num_bands * band_height + BOTTOM
    body += _legend(blocks, top=height - BOTTOM + 8)
    return document(
        height,
        body,
        title="Heat map: share of each block that was kept",
        description="One column per block of the original parent; deeper colour: more was cut.",
    )


_HATCH = (
    '<defs><pattern id="fs-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="fs-muted" width="1.5" height="6"/></pattern></defs>'
)


def _subtitle(num_rounds: int) -> str:
    rounds = "1 round" if num_rounds == 1 else f"{num_rounds} rounds"
    return (
        f"after {rounds}, relative to the original parent; the deeper the colour, the more is cut"
    )


def _labels(
    rows: Sequence[Row], blocks: Sequence[BlockForm], *, top: float, with_totals: bool
) -> Iterator[str]:
    for i, row in enumerate(rows):
        middle = top + HEADER + i * (ROW + GAP) + ROW / 2
        held = [form for form in blocks if row.concerns(form)]
        if not with_totals or not held:
            yield text((20, middle + 4), row.label, size=12, css="fs-ink")
            continue
        mean = sum(row.kept(form) for form in held) / len(held)
        yield text((20, middle - 2), row.label, size=12, css="fs-ink")
        yield text((20, middle + 12), f"{mean:.0%} kept on average", size=10)
    yield text((20, top + HEADER + len(rows) * (ROW + GAP) + 11), "block", size=10)


@dataclass(frozen=True)
class _Place:
    """Upper left corner and width of a column or cell."""

    left: float
    top: float
    width: float

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


def _column(form: BlockForm, rows: Sequence[Row], *, place: _Place, size: float) -> Iterator[str]:
    middle, body = place.middle, place.top + HEADER
    height = len(rows) * (ROW + GAP) - GAP
    css, weight = ("fs-muted", 400) if form.is_gone else ("fs-ink", 600)
    letter = LETTERS[form.original.mixer]
    yield text((middle, place.top + 12), letter, size=12, css=css, anchor="middle", weight=weight)
    yield text((middle, body + height + 14), str(form.index), size=9.5, anchor="middle")
    if form.is_gone:
        yield (
            f'<rect x="{place.left:.1f}" y="{body:.1f}" width="{place.width:.1f}" '
            f'height="{height}" rx="3" fill="url(#fs-hatch)" fill-opacity="0.6">'
            f"<title>block {form.index} ({WORDS[form.original.mixer]}) is gone</title></rect>"
        )
        return
    for i, row in enumerate(rows):
        y = body + i * (ROW + GAP)
        if row.has(form):
            yield _cell(form, row, place=_Place(place.left, y, place.width), size=size)
        else:
            yield f'<circle cx="{middle:.1f}" cy="{y + ROW / 2:.1f}" r="1.3" class="fs-grid"/>'


def _cell(form: BlockForm, row: Row, *, place: _Place, size: float) -> str:
    share = min(1.0, row.kept(form))
    depth = _depth(share)
    css = "fs-muted" if share == 1 else "fs-ink" if depth < LIGHT_TEXT_FROM else "fs-paper"
    at = (place.middle, place.top + ROW / 2 + size * 0.36)
    written = text(at, row.cell(form), size=size, css=css, anchor="middle", weight=500)
    return (
        f"<g><title>{escape(row.tip(form))}</title>"
        f'<rect x="{place.left:.1f}" y="{place.top:.1f}" width="{place.width:.1f}" '
        f'height="{ROW}" rx="3" class="fs-blue" fill-opacity="{depth:.3f}"/>{written}</g>'
    )


def _depth(share: float) -> float:
    """Opacity of a cell: pale for all kept, deep for much cut."""
    return PALEST + (DEEPEST - PALEST) * (1 - share)


def _legend(blocks: Sequence[BlockForm], *, top: float) -> Iterator[str]:
    x, base = 20.0, top + 14
    for mixer, letter in LETTERS.items():
        if letter and any(form.original.mixer == mixer for form in blocks):
            yield text((x, base), letter, size=12, css="fs-ink", weight=600)
            yield text((x + 17, base), WORDS[mixer])
            x += 17 + 6.2 * len(WORDS[mixer]) + 18
    x = WIDTH - RIGHT - 5 * 34
    if any(form.is_gone for form in blocks):
        yield (
            f'<rect x="{x - 118:.1f}" y="{top + 3}" width="30" height="14" rx="2" '
            'fill="url(#fs-hatch)" fill-opacity="0.6"/>'
        )
        yield text((x - 82, base), "gone")
    yield text((x - 8, base), "kept", anchor="end")
    for i, share in enumerate((1.0, 0.8, 0.6, 0.4, 0.2)):
        yield (
            f'<rect x="{x + i * 34:.1f}" y="{top + 3}" width="32" height="14" rx="2" '
            f'class="fs-blue" fill-opacity="{_depth(share):.3f}"/>'
        )
        yield text((x + i * 34 + 16, top + 30), f"{share:.0%}", size=9.5, anchor="middle")
