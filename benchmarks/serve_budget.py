"""Is a speed-up that was asked of this machine reached? The demo under serving budgets.

    python benchmarks/serve_budget.py --out runs/serve-budget [--results FILE]

Runs benchmarks/serve_budget.yaml once per demand: blocks are timed on this machine, the search
chooses under the time that was asked for, and the built child is timed beside its parent, in turn.
Prints what was asked, predicted and measured; a demand that no model of the library can meet is
told before anything is built. `make demo` or recipes/demo/corpus.py writes the text.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from fretsaw.errors import InfeasibleError
from fretsaw.recipe import load_recipe
from fretsaw.stages.compress import compress

RECIPE = Path(__file__).with_suffix(".yaml")
DEMANDS: dict[str, dict[str, Any]] = {
    "in-flight": {"workload": "512/64", "concurrency": 8, "speedup": 1.3},
    "user-speed": {"workload": "512/64", "user_tokens_per_s": 10, "speedup": 1.4},
    "too-much": {"workload": "512/64", "concurrency": 8, "speedup": 20},
}
TOLERANCE = 0.9


def main() -> None:
    """Run every demand and print a line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name, demand in DEMANDS.items():
        rows.append(run(name, demand, out=arguments.out / name, sets=arguments.sets))
        print(json.dumps(rows[-1]), flush=True)
        if arguments.results:
            arguments.results.write_text(json.dumps(described(rows), indent=1) + "\n")


def described(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Results with what they hold for."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "load_average": os.getloadavg(),
        "rows": rows,
    }


def run(name: str, demand: dict[str, Any], *, out: Path, sets: list[str]) -> dict[str, Any]:
    """One run; a demand that cannot be met is an answer too."""
    budget = {"serve": [{"hardware": "this-machine", **demand}]}
    recipe = load_recipe(RECIPE, [*sets, f"search.budget={json.dumps(budget)}"])
    try:
        summary = compress(recipe, out=out)
    except InfeasibleError as error:
        return {"name": name, "asked": demand["speedup"], "refused": str(error)}
    (line,) = summary.serving
    margins = json.loads((out / "round-1" / "05-cost" / "margins-0.json").read_text())
    assert line.asked is not None
    assert line.measured is not None
    return {
        "name": name,
        **vars(line),
        "is_reached": line.measured >= TOLERANCE * line.asked,
        "margins": {kind: margins[kind]["error"] for kind in margins},
        "kl": summary.lines[1].kl,
    }


if __name__ == "__main__":
    main()
