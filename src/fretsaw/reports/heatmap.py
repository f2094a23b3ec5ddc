"""The choice as a heat map: what was kept of every block of the original parent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from fretsaw.core.shape import Mixer
from fretsaw.reports.findings import BlockForm
from fretsaw.reports.svg import ALONE, Canvas, document, share, text, width_of

LETTERS: dict[Mixer, str] = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-", "none": ""}
"""Kinds of blocks, as in the layer patterns of Nemotron-H."""

WORDS: dict[Mixer, str] = {
    "mamba": "Mamba",
    "attention": "attention",
    "moe": "experts (MoE)",
    "mlp": "MLP",
    "none": "none",
}

LEFT, RIGHT = 150, 20
MOST_COLUMNS, WIDEST = 28, 60
ROW, GAP, HEADER, FOOTER = 30, 3, 20, 26
PALEST, DEEPEST = 0.07, 0.6
"""Opacity of a cell: ink is readable on any of them, light and dark."""

SMALLEST, LARGEST = 9.0, 12.0
"""Size of what is written into a cell."""


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
        if self.is_share:
            return share(self.kept(form)).removesuffix("%").removesuffix(".0")
        return str(form.current.values[self.names[0]])

    @property
    def is_share(self) -> bool:
        """Whether cells hold shares, in percent, instead of the number itself."""
        return len(self.names) > 1

    def tip(self, form: BlockForm) -> str:
        """What a cell says in full."""
        shares = [f"{form.current.values[n]:,} of {form.original.values[n]:,}" for n in self.names]
        return f"block {form.index}, {self.label}: {' × '.join(shares)} ({share(self.kept(form))})"


ROWS = (
    Row("expert width", "moe", ("ffn",)),
    Row("experts per token", "moe", ("top_k",)),
    Row("routed capacity", "moe", ("ffn", "top_k")),
    Row("Mamba state", "mamba", ("state",)),
)


def choice_svg(blocks: Sequence[BlockForm], *, num_rounds: int, canvas: Canvas = ALONE) -> str:
    """Heat map of the choice: a column per block of the original parent, a row per dimension.

    Args:
        blocks: All blocks of the original parent with their present form.
        num_rounds: Rounds that led there.
        canvas: What to draw on; narrow screens read `choice_cells` instead.

    Returns:
        An SVG document; long models are broken into bands.
    """
    rows = shown_rows(blocks)
    room = canvas.width - LEFT - RIGHT
    longest = max((len(r.cell(b)) for r in rows for b in blocks if r.has(b)), default=1)
    most = min(MOST_COLUMNS, max(1, int(room // (width_of("0" * longest, SMALLEST) + GAP + 1))))
    num_bands = max(1, math.ceil(len(blocks) / most))
    columns = max(1, math.ceil(len(blocks) / num_bands))
    width = min(WIDEST, room / columns)
    size = round(min(LARGEST, (width - GAP - 1) / width_of("0" * longest, 1)), 1)
    band_height = HEADER + len(rows) * (ROW + GAP) + FOOTER
    body = [_HATCH, canvas.heading("What each block has kept", _subtitle(num_rounds))]
    for band in range(num_bands):
        part = blocks[band * columns : (band + 1) * columns]
        top = canvas.top + band * band_height
        body += _labels(rows, blocks, top=top, with_totals=band == 0)
        for i, form in enumerate(part):
            place = _Place(LEFT + i * width, top, width - GAP)
            body += _column(form, rows, place=place, size=size)
    height = canvas.top + num_bands * band_height
    body += _legend(blocks, top=height + 8)
    return document(
        height + 62,
        body,
        title="Heat map: share of each block that was kept",
        description=choice_message(blocks),
        canvas=canvas,
    )


def shown_rows(blocks: Sequence[BlockForm]) -> list[Row]:
    """The rows that some block has."""
    return [row for row in ROWS if any(row.concerns(form) for form in blocks)]


def choice_message(blocks: Sequence[BlockForm]) -> str:
    """What the map says: each dimension's mean, and how many blocks are gone."""
    means = [f"{row.label} {share(mean_kept(row, blocks))}" for row in shown_rows(blocks)]
    gone = sum(form.is_gone for form in blocks)
    kept = f"Kept on average: {', '.join(means)}. " if means else ""
    return f"{kept}{gone} of {len(blocks)} blocks are gone."


def mean_kept(row: Row, blocks: Sequence[BlockForm]) -> float:
    """Share that the blocks of the original parent have kept, those that are gone included."""
    held = [form for form in blocks if row.concerns(form)]
    return sum(row.kept(form) for form in held) / len(held)


def depth(kept: float) -> float:
    """Opacity of a cell: pale for all kept, deep for much cut."""
    return PALEST + (DEEPEST - PALEST) * (1 - min(1.0, kept))


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
        label = f"{row.label}, %" if row.is_share else row.label
        if not with_totals:
            yield text((12, middle + 4), label, size=12, css="fs-ink")
            continue
        yield text((12, middle - 2), label, size=12, css="fs-ink")
        yield text((12, middle + 12), f"{share(mean_kept(row, blocks))} kept on average", size=10)
    yield text((12, top + HEADER + len(rows) * (ROW + GAP) + 11), "block", size=10)


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
    kept = row.kept(form)
    css = "fs-muted" if kept == 1 else "fs-ink"
    at = (place.middle, place.top + ROW / 2 + size * 0.36)
    written = text(at, row.cell(form), size=size, css=css, anchor="middle", weight=500)
    return (
        f"<g><title>{escape(row.tip(form))}</title>"
        f'<rect x="{place.left:.1f}" y="{place.top:.1f}" width="{place.width:.1f}" '
        f'height="{ROW}" rx="3" class="fs-blue" fill-opacity="{depth(kept):.3f}"/>{written}</g>'
    )


def _legend(blocks: Sequence[BlockForm], *, top: float) -> Iterator[str]:
    x, base = 12.0, top + 14
    for mixer, letter in LETTERS.items():
        if letter and any(form.original.mixer == mixer for form in blocks):
            yield text((x, base), letter, size=12, css="fs-ink", weight=600)
            yield text((x + 17, base), WORDS[mixer])
            x += 17 + width_of(WORDS[mixer]) + 14
    x, base = 12.0, top + 42
    yield text((x, base), "kept")
    for i, kept in enumerate((1.0, 0.8, 0.6, 0.4, 0.2)):
        left = x + 34 + i * 46
        yield (
            f'<rect x="{left:.1f}" y="{top + 29}" width="44" height="18" rx="2" '
            f'class="fs-blue" fill-opacity="{depth(kept):.3f}"/>'
        )
        yield text((left + 22, base), f"{kept:.0%}", size=10, css="fs-ink", anchor="middle")
    if any(form.is_gone for form in blocks):
        left = x + 34 + 5 * 46 + 14
        yield (
            f'<rect x="{left:.1f}" y="{top + 29}" width="30" height="18" rx="2" '
            'fill="url(#fs-hatch)" fill-opacity="0.6"/>'
        )
        yield text((left + 36, base), "gone")
