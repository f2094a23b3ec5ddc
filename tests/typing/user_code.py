"""Code as users write it: never run, but checked by mypy as strictly as the package itself."""

from __future__ import annotations

from pathlib import Path

import fretsaw
from fretsaw import FretsawError, Reporter, ServingPlan, Summary


def everyday() -> None:
    plan: ServingPlan = fretsaw.plan("@super", Path("x"), hardware="H100", context=8000, to="fp8")
    speedup: float | None = plan.speedup
    run: Summary = fretsaw.compress({"parent": "p"}, out="runs/x", overrides={"seed": 1})
    child: Path = run.child
    folder: Path = fretsaw.score("r.yaml", out=child, round_number=2, reporter=Reporter())
    size: int = fretsaw.quantize(child, out="q", to="nvfp4", text="t.txt").weights_bytes
    try:
        print(fretsaw.describe({"model_type": "nemotron_h"}).params, fretsaw.version()["torch"])
    except FretsawError as error:
        print(error.message, error.hint, speedup, folder, size)


def mistakes() -> None:
    fretsaw.plan("@super", hardwear="H100")  # type: ignore[call-arg]
    fretsaw.score("r.yaml", out=5)  # type: ignore[arg-type]
    fretsaw.nothing()  # type: ignore[attr-defined]
