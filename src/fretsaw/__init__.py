"""fretsaw cuts a trained language model to fit its hardware, and puts back what the cut took.

The functions mirror the commands: `describe`, `plan`, `compress`, `estimate` (``--dry-run``),
`quantize`, `serve`; one per stage: `calibrate`, `rank`, `library`, `score`, `cost`, `search`,
`build`, `distill`; `verify`, `export` and `load_recipe`. They are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fretsaw.api import (
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
        quantize,
        rank,
        score,
        search,
        serve,
        verify,
        version,
    )

__version__ = "0.1.0"
__all__ = [
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
    "quantize",
    "rank",
    "score",
    "search",
    "serve",
    "verify",
    "version",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from fretsaw import api  # noqa: PLC0415

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
