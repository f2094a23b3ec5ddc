"""The Python interface: one function per command, and what the command line itself calls.

A function checks what it is given, then imports what it needs: nothing here imports torch.
"""

from __future__ import annotations

from fretsaw.api.models import describe, export, plan, serve, verify
from fretsaw.api.quantizing import quantize
from fretsaw.api.runs import (
    build,
    calibrate,
    compress,
    cost,
    distill,
    estimate,
    library,
    load_recipe,
    rank,
    report,
    score,
    search,
    version,
)

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
    "report",
    "score",
    "search",
    "serve",
    "verify",
    "version",
]
