"""Commands that check, exchange and say what is installed."""

from __future__ import annotations

import json
from typing import Any

import typer

from fretsaw import api
from fretsaw.cli.mirror import Mirror
from fretsaw.cli.output import Answer

GROUP = "Checks and exchange"


def add_to(app: typer.Typer) -> None:
    """Add this group."""
    mirror = Mirror(app, GROUP)
    mirror.add(api.verify, fails=lambda found: bool(found.faults))
    mirror.add(api.export)
    mirror.add(api.load_recipe, name="recipe", extra=("resolved",), run=_recipe)
    mirror.add(api.version, run=_version)


def _recipe(recipe: Any, *, resolved: bool, **given: Any) -> Answer:
    loaded = api.load_recipe(recipe, **given)
    rounds = len(loaded.rounds)
    text = loaded.to_json()
    data = {"recipe": str(recipe), "num_rounds": rounds, "resolved": json.loads(text)}
    return Answer(text if resolved else f"{recipe}: {rounds} rounds, no errors", data)


def _version() -> Answer:
    found = api.version()
    return Answer("\n".join(f"{name} {number}" for name, number in found.items()), found)
