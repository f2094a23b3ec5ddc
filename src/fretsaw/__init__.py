"""fretsaw cuts a trained language model to fit its hardware, and puts back what the cut took.

The functions mirror the commands: `describe`, `compress`, `estimate` (``--dry-run``), one per
stage: `calibrate`, `rank`, `library`, `score`, `cost`, `search`, `build`, `distill`; `verify`,
`export` and `serve`. They are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fretsaw.api import (
        Recipe,
        build,
        calibrate,
        compress,
        cost,
        describe,
        distill,
        estimate,
        export,
        library,
        load_recipe,
        plan,
        rank,
        score,
        search,
        serve,
        verify,
    )

__version__ = "0.1.0"
__all__ = [
    "Recipe",
    "build",
    "calibrate",
    "compress",
    "cost",
    "describe",
    "distill",
    "estimate",
    "export",
    "library",
    "load_recipe",
    "plan",
    "rank",
    "score",
    "search",
    "serve",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from fretsaw import api  # noqa: PLC0415 - keeps `fretsaw --help` free of torch

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
