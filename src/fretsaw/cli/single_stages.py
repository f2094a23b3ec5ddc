"""One stage of one round at a time."""

from __future__ import annotations

import typer

from fretsaw import api
from fretsaw.cli.mirror import Mirror

GROUP = "Single stages of a run"
STAGES = (
    api.calibrate,
    api.rank,
    api.library,
    api.score,
    api.cost,
    api.search,
    api.build,
    api.distill,
)


def add_to(app: typer.Typer) -> None:
    """Add this group."""
    mirror = Mirror(app, GROUP)
    for stage in STAGES:
        mirror.add(stage)
