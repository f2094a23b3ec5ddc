"""Rounds against one shot, uniform and random cuts: equal final budgets, equal healing tokens.

    python benchmarks/rounds.py --recipe benchmarks/rounds.yaml --out runs/rounds --seeds 0 1 2

Every arm is a recipe of its own run by `fretsaw.compress`: the rounds as the recipe has them; one
round under all of its budgets at once; the same with every block of a kind cut alike; the same
with a random choice. Runs are kept and resumed; arms of one seed share calibration and scores.
Prints a table with the spread over seeds and writes benchmarks/results/rounds.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import yaml

from fretsaw.recipe import Recipe, resolve_recipe
from fretsaw.stages.compress import compress

SHARED = ("00-describe", "01-calibrate", "02-rank", "03-library", "04-score")
ARMS = ("rounds", "one shot", "uniform", "random")
STRATEGY = {"one shot": "best", "uniform": "uniform", "random": "random"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=Path("benchmarks/rounds.yaml"))
    parser.add_argument("--out", type=Path, default=Path("runs/rounds"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--tokens", type=int, help="healing tokens in all (default: the recipe's)")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/rounds.json"))
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        for arm in arguments.arms:
            data = recipe_of(arm, arguments.recipe, seed=seed, tokens=arguments.tokens)
            recipe = resolve_recipe(data, arguments.sets)
            rows.append(run(arm, recipe, out=arguments.out, seed=seed))
            print(json.dumps(rows[-1]), flush=True)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def recipe_of(arm: str, path: Path, *, seed: int, tokens: int | None) -> dict[str, Any]:
    """The recipe of an arm as plain data."""
    data: dict[str, Any] = yaml.safe_load(path.read_text()) | {"seed": seed}
    rounds = data["rounds"]
    total = sum(r["distill"]["tokens"] for r in rounds)
    scale = (tokens or total) / total
    for one in rounds:
        one["distill"]["tokens"] = round(one["distill"]["tokens"] * scale)
    if arm == "rounds":
        return data
    budget = {k: v for r in rounds for k, v in r["search"]["budget"].items()}
    moe = {k: v for r in rounds for k, v in r["library"].get("moe", {}).items()}
    mamba = {k: v for r in rounds for k, v in r["library"].get("mamba", {}).items()}
    data["rounds"] = [
        {
            "library": {"moe": moe, "mamba": mamba},
            "search": {"budget": budget, "strategy": STRATEGY[arm]},
            "distill": {"tokens": tokens or total},
        }
    ]
    return data


def run(arm: str, recipe: Recipe, *, out: Path, seed: int) -> dict[str, Any]:
    """Run an arm, sharing what the one-round arms of a seed have in common."""
    folder = out / f"seed-{seed}" / arm.replace(" ", "-")
    source = out / f"seed-{seed}" / "one-shot" / "round-1"
    if arm in ("uniform", "random") and source.exists() and not folder.exists():
        (folder / "round-1").mkdir(parents=True)
        for stage in SHARED:
            shutil.copytree(source / stage, folder / "round-1" / stage)
        (folder / "recipe.resolved.json").write_text(recipe.to_json())
    summary = compress(recipe, out=folder)
    parent, last = summary.lines[0], summary.lines[-1]
    return {
        "arm": arm,
        "seed": seed,
        "cut_kl": [line.kl for line in summary.lines if line.name.endswith("cut")],
        "healed_kl": [line.kl for line in summary.lines if line.name.endswith("healed")],
        "kl": last.kl,
        "loss": last.loss,
        "parent_loss": parent.loss,
        "agreement": last.agreement,
        "tokens": sum(line.tokens for line in summary.lines),
        "trunk": last.costs["trunk_params"] / parent.costs["trunk_params"],
        "active_routed": last.costs["active_routed_params"] / parent.costs["active_routed_params"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and spread over seeds, a line per arm."""
    lines = [
        "| arm | KL of the cut(s) | KL healed | loss - parent | agree | active routed | tokens |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        cuts = zip(*(row["cut_kl"] for row in mine), strict=True)
        cut = " / ".join(f"{statistics.mean(c):.3f}" for c in cuts)
        cells = [
            spread([r["kl"] for r in mine]),
            spread([r["loss"] - r["parent_loss"] for r in mine]),
            f"{statistics.mean(r['agreement'] for r in mine):.1%}",
            f"{statistics.mean(r['active_routed'] for r in mine):.1%}",
            f"{statistics.mean(r['tokens'] for r in mine):,.0f}",
        ]
        lines.append(f"| {arm} | {cut} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    if len(values) == 1:
        return f"{values[0]:.4f} (one seed)"
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


if __name__ == "__main__":
    main()
