"""Everyday commands: look at a model, plan, cut and heal it, report, quantise it, serve it."""

from __future__ import annotations

from typing import Any

import typer

from fretsaw import api
from fretsaw.cli.mirror import Mirror

GROUP = "Everyday"


def add_to(app: typer.Typer) -> None:
    """Add this group."""
    mirror = Mirror(app, GROUP)
    mirror.add(api.describe)
    mirror.add(api.plan)
    mirror.add(api.compress, extra=("dry_run",), run=_compress_or_estimate)
    mirror.add(api.report)
    mirror.add(api.quantize)
    mirror.add(api.serve)


def _compress_or_estimate(recipe: Any, *, dry_run: bool, reporter: Any, **given: Any) -> Any:
    if dry_run:
        return api.estimate(recipe, **given)
    return api.compress(recipe, reporter=reporter, **given)
