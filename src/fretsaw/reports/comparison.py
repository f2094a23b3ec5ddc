"""Several runs side by side: what each gave, whether they can be compared, and what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fretsaw.core.units import format_bytes, format_count, format_seconds
from fretsaw.reports.evidence import ServedModel
from fretsaw.reports.figures import Panel, log_scale
from fretsaw.reports.findings import Findings
from fretsaw.reports.html import Section, chart, document, listed, table
from fretsaw.reports.page import share_of, small, with_interval
from fretsaw.reports.shown import Shown
from fretsaw.reports.summary import SummaryLine
from fretsaw.reports.svg import NARROW, WIDE, Canvas, Labels, Scale, marker, number, polyline, share
from fretsaw.reports.svg import document as drawing

COMPARISON = "fretsaw comparison"
"""Over the title: by it a page is known as one of these."""

LEFT, RIGHT, TOP, HEIGHT, FOOT = 54, 16, 34, 240, 52
LONGEST_NAME = 24
LEAST_KL = 1e-9
"""What a logarithmic axis shows for 0."""

COLUMNS = (
    "run",
    "rounds",
    "KL",
    "loss",
    "agree",
    "params",
    "of parent",
    "active",
    "BF16",
    "healing",
    "time",
    "peak memory",
    "tokens/s",
)
MOST_NAMED = 3
"""Runs that a title names; of more it gives the number."""


@dataclass(frozen=True)
class ComparedRun:
    """A run among others.

    Attributes:
        name: Told apart from the others'.
        findings: Of it.
        parent_digest: Fingerprint of its parent's content.
    """

    name: str
    findings: Findings
    parent_digest: str

    @property
    def child(self) -> SummaryLine:
        """Its last child."""
        return self.findings.summary.lines[-1]

    @property
    def parent(self) -> SummaryLine:
        """Its original parent."""
        return self.findings.summary.lines[0]


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """A page that was written, and what it shows.

    Attributes:
        page: The file.
        runs: One, or several that are compared.
    """

    page: Path
    runs: tuple[ComparedRun, ...]

    def brief(self) -> str:
        """Which runs, and the page."""
        return f"{', '.join(one.name for one in self.runs)}: {self.page}"

    def print(self, console: Console) -> None:
        """The summary of one run, or a table of several; then the page."""
        if len(self.runs) == 1:
            self.runs[0].findings.summary.print(console)
            return
        shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
        for column in COLUMNS:
            shown.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
        for one in self.runs:
            shown.add_row(*(cell.partition("\n")[0] for cell in _row(one)))
        console.print(shown)
        for text in (*obstacles(self.runs), *_unfinished(self.runs)):
            console.print(f"note: {text}", soft_wrap=True, markup=False)
        for key, values in differences(self.runs).items():
            console.print(f"{key}: {' | '.join(values)}", soft_wrap=True, markup=False)
        console.print(f"comparison: {self.page}", soft_wrap=True)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        runs = {one.name: one.findings.to_json() for one in self.runs}
        data: dict[str, Any] = {"page": str(self.page), "runs": runs}
        if len(self.runs) > 1:
            data["not_comparable"] = list(obstacles(self.runs))
            data["recipe_differences"] = differences(self.runs)
        return data


def unique_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell them apart; numbered where the same comes twice."""
    for depth in range(1, max(len(f.parts) for f in folders) + 1):
        names = ["/".join(f.parts[-depth:]) for f in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.name} ({i})" for i, folder in enumerate(folders, start=1)]


def obstacles(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Why figures of these runs cannot be compared, in words; none if they can."""
    if len({one.parent_digest for one in runs}) > 1:
        yield (
            "The parents differ: KL, agreement and shares refer to different models and cannot be "
            "compared between these runs."
        )
    texts = [one.findings.evidence.text for one in runs]
    if len({text.digest for text in texts if text}) > 1:
        yield (
            "The held-out texts differ: loss, KL and agreement were measured on different tokens "
            "and cannot be compared between these runs."
        )
    if not all(text and text.digest for text in texts):
        yield "Of some run it is not known what text it was measured on."


def differences(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Keys of the resolved recipes that differ -> the value in each run; rounds that all have."""
    recipes = [json.loads(one.findings.recipe) for one in runs]
    planned = [len(recipe["rounds"]) for recipe in recipes]
    flat = [dict(_flat(recipe, num_rounds=min(planned))) for recipe in recipes]
    keys = dict.fromkeys(key for recipe in flat for key in recipe)
    values = {key: [recipe.get(key, "–") for recipe in flat] for key in keys}
    counts = {"rounds": [str(count) for count in planned]}
    return {key: found for key, found in (counts | values).items() if len(set(found)) > 1}


def _flat(data: Any, place: str = "", *, num_rounds: int = 0) -> Iterator[tuple[str, str]]:
    """Leaves of a recipe by their place; rounds count from 1, as everywhere else."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _flat(value, f"{place}.{key}" if place else key, num_rounds=num_rounds)
    elif isinstance(data, list) and place == "rounds":
        for i, value in enumerate(data[:num_rounds], start=1):
            yield from _flat(value, f"rounds.{i}")
    else:
        yield place, data if isinstance(data, str) else json.dumps(data)


def comparison_page(runs: Sequence[ComparedRun]) -> str:
    """The whole page: an HTML document that needs no other file."""
    names = ", ".join(one.name for one in runs)
    return document(
        names if len(runs) <= MOST_NAMED else f"{len(runs)} runs",
        kind=COMPARISON,
        contents=_sections(runs),
        lead="",
        foot=names,
    )


def _sections(runs: Sequence[ComparedRun]) -> Iterator[Section]:
    if said := [*obstacles(runs), *_unfinished(runs)]:
        yield Section("To know first", listed(said, css="warnings"), css="alert")
    rows = [_row(one) for one in runs]
    yield Section("The last child of each run", table(COLUMNS, rows, name="Runs"), _note(runs))
    yield Section("Size against KL", _size_chart(runs), SIZE_NOTE)
    columns = ("key", *(one.name for one in runs))
    different = differences(runs)
    keys = [[key, *values] for key, values in different.items()]
    content = (
        table(columns, keys, name="Recipe keys that differ", num_words=len(columns))
        if keys
        else "<p>The recipes are the same.</p>"
    )
    yield Section("What differs in the recipes", content)
    warned = [
        f"{one.name}, {warning.place}: {warning.text}"
        for one in runs
        for warning in one.findings.summary.warnings
    ]
    if warned:
        yield Section("Warnings", listed(warned, css="warnings"))


SIZE_NOTE = "Lower and further left is better: fewer parameters, nearer to the parent."


def _unfinished(runs: Sequence[ComparedRun]) -> Iterator[str]:
    for one in runs:
        done, planned = len(one.findings.rounds), one.findings.num_planned
        if done < planned:
            yield f"{one.name} is not finished: {done} of {planned} rounds are shown."
        yield from (f"{one.name}: {what}" for what in one.findings.evidence.missing)


def _note(runs: Sequence[ComparedRun]) -> str:
    cards = {s.card for one in runs if (s := one.findings.evidence.speeds)}
    card = f"; tokens/s: of many users on {cards.pop()}, predicted" if len(cards) == 1 else ""
    return (
        "Active: parameters that one token uses. Loss and KL in nats per held-out token, with 95 % "
        "intervals where the run has kept them; agree: share of tokens with the parent’s greedy "
        f"prediction; healing: training tokens of all rounds{card}."
    )


def _row(one: ComparedRun) -> list[str]:
    child, parent, found = one.child, one.parent, one.findings
    spread, served = found.evidence.spread(child.name), _served(one)
    return [
        one.name,
        str(len(found.rounds)),
        with_interval(child.kl, spread.kl, small),
        with_interval(child.loss, spread.loss),
        with_interval(child.agreement, spread.agreement, share),
        format_count(child.costs["params"]),
        share_of(child.costs["params"], parent.costs["params"]),
        format_count(child.costs["active_params"]),
        format_bytes(child.costs["bytes_bf16"]),
        format_count(sum(line.tokens for line in found.summary.lines)),
        format_seconds(sum(line.seconds for line in found.summary.lines)),
        format_bytes(found.summary.peak_bytes) if found.summary.peak_bytes else "–",
        _speed_words(one, served),
    ]


def _served(one: ComparedRun) -> ServedModel | None:
    speeds = one.findings.evidence.speeds
    return speeds.models[-1] if speeds else None


def _speed_words(one: ComparedRun, served: ServedModel | None) -> str:
    speeds = one.findings.evidence.speeds
    if served is None or speeds is None:
        return "–"
    return f"{number(served.server_tokens_per_s)}\n{speeds.card}, {speeds.number_format}"


def _size_chart(runs: Sequence[ComparedRun]) -> str:
    wide, narrow = (_size_svg(runs, canvas) for canvas in (WIDE, NARROW))
    columns = ("run", "model", "params", "KL")
    rows = [
        [one.name, line.name, format_count(line.costs["params"]), f"{line.kl:.4f}"]
        for one in runs
        for line in _healed(one)
    ]
    data = table(columns, rows, name="Size and KL", num_words=2)
    return chart(wide, narrow, name="Size against KL", table=data)


def _healed(one: ComparedRun) -> list[SummaryLine]:
    return [line for line in one.findings.summary.lines if line.name.endswith("healed")]


def _size_svg(runs: Sequence[ComparedRun], canvas: Canvas) -> str:
    """Every healed child: its parameters against its KL; the last one of each run is named."""
    points = [(one, line) for one in runs for line in _healed(one)]
    sizes = [line.costs["params"] for _, line in points]
    room = 0.1 * (max(sizes) - min(sizes)) or 0.1 * max(sizes)
    right = canvas.width - RIGHT
    x = Scale(min(sizes) - room, max(sizes) + room, LEFT, right)
    kls = [max(line.kl, LEAST_KL) for _, line in points]
    panel = Panel(x, log_scale(kls, start=TOP + HEIGHT, end=TOP, room=1.3))
    body = [*panel.y_axis("KL to the parent, nats per token")]
    ticks = [(value, format_count(value)) for value in x.ticks(4)]
    body += panel.x_axis("parameters", ticks=ticks)
    labels = Labels(LEFT, right, panel.y.start)
    for one in runs:
        places = [(x.at(p.costs["params"]), _height(panel, p)) for p in _healed(one)]
        body.append(polyline(places, css="fs-muted-line", extra='stroke-width="1"'))
        for line, at in zip(_healed(one), places, strict=True):
            is_last = line is one.child
            size = format_count(line.costs["params"])
            tip = f"{one.name}, {line.name}: {size}, KL {line.kl:.4f}"
            shape, css = ("star", "fs-orange") if is_last else ("circle", "fs-blue")
            body.append(marker(at, shape=shape, css=css, size=5 if is_last else 3.5, tip=tip))
    for one in runs:
        at = x.at(one.child.costs["params"]), _height(panel, one.child)
        body += labels.place(at, one.name[-LONGEST_NAME:])
    return drawing(
        TOP + HEIGHT + FOOT,
        body,
        title="Size against KL",
        description=" ".join(
            f"{one.name}: {format_count(one.child.costs['params'])} parameters, "
            f"KL {number(one.child.kl)}."
            for one in runs
        ),
        canvas=canvas,
    )


def _height(panel: Panel, line: SummaryLine) -> float:
    return panel.y.at(max(line.kl, LEAST_KL))
