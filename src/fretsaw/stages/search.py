"""One variant per block under the round's budgets, verified in the running model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from scipy.stats import spearmanr
from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.tables import metric_values, read_rows
from fretsaw.core.variant import Choice
from fretsaw.errors import InfeasibleError
from fretsaw.pricing.memory import model_costs
from fretsaw.recipe.sections import Search
from fretsaw.runtime.blocks import BlockView
from fretsaw.runtime.verify import measure_choices
from fretsaw.serving.prediction import Prediction
from fretsaw.solver.alternatives import solve_any, under
from fretsaw.solver.budget import resolve_budgets
from fretsaw.solver.mip import Problem, random_choices, uniform_choice
from fretsaw.stages.cost import read_priced
from fretsaw.stages.describe import read_shape
from fretsaw.stages.library import read_library
from fretsaw.stages.models import open_view, repairer, walk_blocks
from fretsaw.stages.run import RunRound, Stage
from fretsaw.stages.score import SCORES
from fretsaw.stages.text import calibration_text, score_ids, score_text

CHOICE = "choice.json"
ADDITIVITY = "additivity.json"
SERVING = "serving.json"
"""What the prices say of the choice, a demand each."""

FEWEST_POINTS = 5
"""A rank correlation of fewer points says nothing."""


def problem_of(round_: RunRound) -> Problem:
    """The mixed-integer problem of a round: variants, scores, budgets of the original parent."""
    settings = round_.settings.search
    rows = read_rows(round_.result("04-score") / SCORES)
    return Problem(
        shape=read_shape(round_.result("00-describe")),
        variants=read_library(round_.result("03-library")),
        scores=metric_values(rows, round_.settings.score.metric),
        budgets=resolve_budgets(
            settings.budget.costs, parent_costs=model_costs(Checkpoint(round_.run.parent).shape)
        ),
    )


def _body(round_: RunRound, folder: Path) -> None:
    settings = round_.settings.search
    problem = problem_of(round_)
    if problem.dropped:
        names = ", ".join(f"block {v.block} {v.key}" for v in problem.dropped[:5])
        round_.run.reporter.warn(f"{len(problem.dropped)} variants have no finite score: {names}")
    demands = read_priced(round_)
    terms = [demand.terms(problem) for demand in demands]
    ways, best = solve_any(
        problem,
        terms,
        n_best=settings.n_best if settings.strategy == "best" else 1,
        min_distance=settings.min_distance,
        time_limit_s=settings.time_limit_s,
    )
    problem = under(problem, (terms[d][way] for d, way in enumerate(ways)))
    best = list(_baseline(problem, settings, seed=round_.seed)) or best
    random = random_choices(problem, count=settings.random_choices, seed=round_.seed)
    uniform = _uniform(problem)
    measured = _measure(round_, [*best, *random, *uniform])
    chosen = min(range(len(best)), key=lambda i: measured[i])
    candidates = {"n-best": best, "random": random, "uniform": uniform}
    taken = [demand.alternatives[way] for demand, way in zip(demands, ways, strict=True)]
    predicted = [one.predict(best[chosen]) for one in taken]
    for one in predicted:
        round_.run.reporter.say(f"  {one.told()}")
    _tell_status(round_, best)
    write_json(folder / "n_best.json", [c.to_json() for c in best])
    write_json(folder / ADDITIVITY, _additivity(candidates, measured=measured, chosen=chosen))
    write_json(folder / SERVING, [asdict(one) for one in predicted])
    write_json(folder / CHOICE, best[chosen].to_json())


def _baseline(problem: Problem, settings: Search, *, seed: int) -> Sequence[Choice]:
    """A choice to compare the best ones with, if the recipe asks for one."""
    if settings.strategy == "uniform":
        return [uniform_choice(problem)]
    if settings.strategy == "random":
        return random_choices(problem, count=1, seed=seed + 1)
    return []


def _tell_status(round_: RunRound, best: Sequence[Choice]) -> None:
    """Warn where a solve ran out of time: what it found may not be the best."""
    late = [choice for choice in best if choice.status == "feasible"]
    if late:
        gap = max(choice.gap for choice in late)
        round_.run.reporter.warn(
            f"{len(late)} of {len(best)} solves ended at search.time_limit_s "
            f"({round_.settings.search.time_limit_s:g} s), at most {gap:.1%} above the least "
            "possible score: raise it, or offer fewer sizes"
        )


def _uniform(problem: Problem) -> list[Choice]:
    """The choice with equal blocks, which shows what the search is worth; none if nothing fits."""
    try:
        return [uniform_choice(problem)]
    except InfeasibleError:
        return []


def _measure(round_: RunRound, choices: Sequence[Choice]) -> list[float]:
    view = open_view(round_)
    repairs = _repairs(view, round_, choices=choices)
    with round_.run.reporter.progress("choices measured", len(choices)) as advance:
        return measure_choices(
            view,
            choices,
            ids=score_ids(round_),
            batch_sequences=round_.run.recipe.compute.batch_sequences,
            repairs=repairs,
            on_choice=advance,
        )


def _repairs(
    view: BlockView, round_: RunRound, *, choices: Sequence[Choice]
) -> dict[tuple[int, str], Mapping[str, Tensor]]:
    """Repaired weights of every variant that some choice has taken, once each."""
    if round_.settings.library.repair == "none":
        return {}
    repairs: dict[tuple[int, str], Mapping[str, Tensor]] = {}
    for block, hidden in walk_blocks(view, round_):
        solver = repairer(view, round_, block=block, hidden=hidden)
        for variant in {c.variants[block].key: c.variants[block] for c in choices}.values():
            if not variant.is_none:
                small = variant.apply(view.shape.blocks[block])
                repairs[block, variant.key] = solver.replaced(small)
    return repairs


def _additivity(
    candidates: Mapping[str, Sequence[Choice]], *, measured: Sequence[float], chosen: int
) -> dict[str, object]:
    """Summed scores beside measured KL; the rank correlation leaves out the equal blocks."""
    kinds = [kind for kind, choices in candidates.items() for _ in choices]
    kinds[chosen] = "chosen"
    predicted = [choice.score for choices in candidates.values() for choice in choices]
    rows = [
        {"kind": kind, "predicted": p, "measured": m}
        for kind, p, m in zip(kinds, predicted, measured, strict=True)
    ]
    ranked = [(row["predicted"], row["measured"]) for row in rows if row["kind"] != "uniform"]
    enough = len({p for p, _ in ranked}) >= FEWEST_POINTS
    correlation = float(spearmanr(*zip(*ranked, strict=True)).statistic) if enough else None
    return {"rows": rows, "spearman": correlation}


SEARCH = Stage(
    "06-search",
    needs=("00-describe", "02-rank", "03-library", "04-score", "05-cost"),
    settings=("search", "score", "library", "calibrate"),
    body=_body,
    texts=(calibration_text, score_text),
)


def read_predictions(folder: Path) -> list[Prediction]:
    """What a finished `search` predicts for each demand of its round."""
    data = json.loads((folder / SERVING).read_text(encoding="utf-8"))
    return [Prediction(**one) for one in data]


def read_choice(folder: Path) -> Choice:
    """The choice that a finished `search` made."""
    return Choice.from_json(json.loads((folder / CHOICE).read_text(encoding="utf-8")))
