"""Data sheets that come with the package: one TOML file per name in a folder of `fretsaw/data`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def sheet_names(folder: str) -> tuple[str, ...]:
    """Names of all sheets of a folder, sorted."""
    items = (resources.files("fretsaw") / "data" / folder).iterdir()
    names = [item.name for item in items if item.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in names))


def read_sheet(folder: str, name: str) -> dict[str, Any]:
    """What a sheet says."""
    path = resources.files("fretsaw") / "data" / folder / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
