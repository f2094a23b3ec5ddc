"""Speed and memory of parent and child, as a page shows them."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from fretsaw.core.units import format_bytes
from fretsaw.pricing.footprint import footprint
from fretsaw.reports.evidence import ServedModel, Speeds
from fretsaw.reports.html import listed, table
from fretsaw.reports.outlook import NamedOutlook, ServingPlan
from fretsaw.reports.svg import number

FIGURES = ("weights_bytes", "requests", "user_tokens_per_s", "server_tokens_per_s")
ROWS = ("weights", "requests at once", "tokens/s, one user", "tokens/s, many users")


def speeds_of(plan: ServingPlan, *, names: Iterable[str], why: str) -> Speeds:
    """The few figures of a plan that a page shows."""
    setting = plan.models[0].setting
    return Speeds(
        card=str(setting.node),
        why=why,
        engine=plan.engine,
        number_format=setting.precision.name,
        workload=str(setting.workload) if setting.workload else None,
        context=setting.context,
        models=tuple(_served(one, name) for one, name in zip(plan.models, names, strict=True)),
        notes=plan.notes,
    )


def _served(one: NamedOutlook, name: str) -> ServedModel:
    found = one.outlook
    fastest = max(found.frontier, key=lambda p: p.user_tokens_per_s, default=None)
    fullest = max(found.frontier, key=lambda p: p.server_tokens_per_s, default=None)
    return ServedModel(
        name=name,
        weights_bytes=footprint(found.shape, one.setting.precision).weights_bytes,
        requests=found.capacity.max_concurrency,
        user_tokens_per_s=fastest.user_tokens_per_s if fastest else None,
        server_tokens_per_s=fullest.server_tokens_per_s if fullest else None,
        in_flight=fullest.concurrency if fullest else None,
    )


def speeds_table(speeds: Speeds) -> str:
    """Parent and child, and the child over the parent."""
    columns = ["", *(one.name for one in speeds.models)]
    cells = [_cells(one) for one in speeds.models]
    if len(speeds.models) > 1:
        columns.append("child over parent")
        cells.append([_ratio(speeds, name) for name in FIGURES])
    rows = [[label, *values] for label, *values in zip(ROWS, *cells, strict=True)]
    told = f"<p>Predicted for {escape(speeds.card)}: {escape(speeds.why)}.</p>"
    notes = f"<details><summary>Notes</summary>{listed(speeds.notes, css='warnings')}</details>"
    found = table(columns, rows, name=f"Predicted on {speeds.card}")
    return told + found + (notes if speeds.notes else "")


def _cells(one: ServedModel) -> list[str]:
    return [
        format_bytes(one.weights_bytes),
        f"{one.requests:,}",
        number(one.user_tokens_per_s),
        f"{number(one.server_tokens_per_s)}\n{number(one.in_flight)} in flight",
    ]


def _ratio(speeds: Speeds, name: str) -> str:
    parent, child = (getattr(one, name) for one in speeds.models)
    return f"{child / parent:.2f}×" if child and parent else "–"


def speeds_note(speeds: Speeds) -> str:
    """The assumptions, HTML."""
    requests = f"requests of {speeds.workload} tokens in/out, " if speeds.workload else ""
    return escape(
        f"By the planner, not measured: engine {speeds.engine}, weights in {speeds.number_format}, "
        f"{requests}{speeds.context:,} tokens at their end."
    )
