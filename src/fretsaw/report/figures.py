"""Static figures of a run, as SVG: what was kept, how it healed, how far scores can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fretsaw.core.units import format_count
from fretsaw.report.findings import BlockForm, Evaluation, RoundFindings, SwappedModel
from fretsaw.report.svg import (
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

LETTERS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-", "none": " "}
"""Kinds of blocks, as in the layer patterns of Nemotron-H."""

MARKS = {"random": ("circle", "fs-muted"), "n-best": ("diamond", "fs-blue")} | {
    "chosen": ("star", "fs-orange")
}
"""Kind of choice -> shape and colour; drawn in this order."""

LEFT, RIGHT = 150, 20
MOST_COLUMNS = 28
ROW, GAP = 30, 3
DEEPEST = 0.9
