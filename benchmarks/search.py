"""How long the search takes on Super's 88 blocks: the paper's grid, random scores, three budgets.

    python benchmarks/search.py [--out benchmarks/results/search.json]

Grid: 5 widths x 10 top-k of every MoE block, 3 states of all Mamba blocks (arXiv:2607.04371). Two
kinds of budgets: three that follow from the tensor table, and a demand in serving terms (time of a
token and memory of a GPU, under each layout of 8xB200) beside one of them. Two kinds of scores:
uniform random ones, and random losses that grow with the cut, which are harder. Seconds are of the
processor, because the machine is shared.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fretsaw.checkpoint.reader import read_config
from fretsaw.core.shape import ModelShape
from fretsaw.core.variant import Choice, Variant
from fretsaw.families import family_of
from fretsaw.pricing.memory import model_costs
from fretsaw.recipe.sections import Serve
from fretsaw.solver.alternatives import Terms, solve_any
from fretsaw.solver.budget import resolve_budgets
from fretsaw.solver.library import Grid, build_library
from fretsaw.solver.mip import Problem
from fretsaw.stages.demand import Parent, demand_on_gpus, price_demand
from fretsaw.stages.library import by_block

CONFIG = Path(__file__).parents[1] / "src" / "fretsaw" / "data" / "configs" / "super.json"
WIDTHS = (2688, 2304, 1920, 1536, 1280)
TOP_K = (22, 20, 18, 16, 14, 12, 10, 8, 6, 4)
STATES = (128, 96, 64)
TABLE_BUDGETS = {"moe_params": "60%", "active_routed_params": "40%", "state_bytes": "75%"}
SPEEDUPS = (1.5, 2.0)


def main() -> None:
    """Solve every case and print seconds, status and gap."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = [row for seed in range(arguments.seeds) for row in cases(seed)]
    for row in rows:
        print(json.dumps(row), flush=True)
    if arguments.out:
        text = json.dumps({"date": time.strftime("%Y-%m-%d"), "rows": rows}, indent=1)
        arguments.out.write_text(text + "\n")
    print(f"slowest single solve: {max(row['solve_s'] for row in rows):.2f} s")


def cases(seed: int) -> Iterator[dict[str, object]]:
    """Both kinds of scores under the table's budgets, then under each serving demand."""
    config = read_config(CONFIG)
    parent = Parent(family_of(config).read_config(config), config)
    for kind in ("uniform", "losses"):
        problem = library(parent.shape, kind=kind, seed=seed)
        yield {"scores": kind, "seed": seed, "budgets": TABLE_BUDGETS} | solved(problem, [])
        for speedup in SPEEDUPS:
            yield serving_case(parent, kind=kind, seed=seed, speedup=speedup)


def library(
    shape: ModelShape, *, kind: str, seed: int, budget: dict[str, str | int | float] | None = None
) -> Problem:
    """The grid with random scores."""
    grid = Grid({"ffn": WIDTHS, "top_k": TOP_K, "state": STATES}, (), {"ffn": 128, "state": 32})
    variants = build_library(shape, shape, grid=grid)
    rng = np.random.default_rng(seed)
    draw = uniform(variants, rng) if kind == "uniform" else losses(shape, variants, rng)
    budgets = resolve_budgets(budget or TABLE_BUDGETS, parent_costs=model_costs(shape))
    return Problem(shape, by_block(variants), draw, budgets)


def uniform(variants: Sequence[Variant], rng: np.random.Generator) -> dict[tuple[int, str], float]:
    """One random number each."""
    return {(v.block, v.key): float(rng.random()) for v in variants}


def losses(
    shape: ModelShape, variants: Sequence[Variant], rng: np.random.Generator
) -> dict[tuple[int, str], float]:
    """Blocks and axes that matter differently, losses that grow with the cut, 5 % of noise."""
    weight = rng.lognormal(0, 1, shape.num_blocks)
    found = {}
    for variant in variants:
        full = shape.blocks[variant.block].values
        cut = sum((1 - n / full[dim]) ** 1.5 for dim, n in variant.values.items())
        noise = 1 + 0.05 * rng.normal()
        found[variant.block, variant.key] = float(weight[variant.block] * cut * noise)
    return found


def serving_case(parent: Parent, *, kind: str, seed: int, speedup: float) -> dict[str, object]:
    """A speed-up on 8xB200 and bytes in NVFP4: three budgets under each layout."""
    budget = {"bytes_nvfp4": "70%"}
    problem = library(parent.shape, kind=kind, seed=seed, budget=budget)
    serve = Serve(
        hardware="8xB200", workload="8k/64k", user_tokens_per_s=100, speedup=speedup, format="nvfp4"
    )
    started = time.process_time()
    known = demand_on_gpus(serve, parent, number_format="nvfp4")
    priced = price_demand(
        known.demand, problem, number=0, parent=parent.shape, prices_of=known.prices_of
    )
    terms = priced.terms(problem)
    priced_s = time.process_time() - started
    row = {"scores": kind, "seed": seed, "budgets": budget, "serve": str(serve)}
    row |= {"layouts": len(terms), "pricing_s": round(priced_s, 2)}
    best = solved(problem, [terms])
    layout = str(priced.alternatives[best.pop("way")].layout)
    return row | best | {"layout": layout}


def solved(problem: Problem, demands: list[list[Terms]]) -> dict[str, object]:
    """Seconds of the search over all ways, and of one solve; how well it is proven."""
    started = time.process_time()
    ways, (choice,) = solve_any(problem, demands, time_limit_s=60.0)
    seconds = time.process_time() - started
    num_solves = len(demands[0]) if demands else 1
    return told(choice, seconds=seconds, num_solves=num_solves) | ({"way": ways[0]} if ways else {})


def told(choice: Choice, *, seconds: float, num_solves: int) -> dict[str, object]:
    """Figures of a search."""
    return {
        "search_s": round(seconds, 2),
        "solve_s": round(seconds / num_solves, 2),
        "status": choice.status,
        "gap": choice.gap,
        "score": choice.score,
    }


if __name__ == "__main__":
    main()
