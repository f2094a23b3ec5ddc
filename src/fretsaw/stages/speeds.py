"""Speed and memory of a run's parent and child for its page: by the planner, on a stated card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fretsaw.checkpoint.reader import read_config
from fretsaw.core.precision import preset
from fretsaw.core.shape import ModelShape
from fretsaw.errors import FretsawError
from fretsaw.families import family_of
from fretsaw.recipe.sections import Serve
from fretsaw.reports.evidence import Speeds
from fretsaw.reports.speeds import speeds_of
from fretsaw.serving.smallest import smallest_node
from fretsaw.stages.plan import PlanOptions, plan
from fretsaw.stages.run import Run

USUAL_TOKENS = 1000
"""Of prompt and answer where the recipe asks for no workload; shorter where the model is."""


@dataclass(frozen=True)
class _Card:
    """What to plan for, and why."""

    options: PlanOptions
    why: str


def find_speeds(run: Run, child: Path, *, shape: ModelShape) -> tuple[Speeds | None, str]:
    """Parent and child on the hardware of the recipe's demands, or on the smallest card.

    Args:
        run: Whose parent and recipe.
        child: Its last child.
        shape: Of the parent, as the run has found it.

    Returns:
        The figures, and what is wrong or missing; empty if nothing is.
    """
    models = {"parent": run.parent, "child": child}
    problem = ""
    if not _is_same(run.parent, shape):
        del models["parent"]
        problem = f"The parent is not at {run.parent} any more: speeds are of the child alone."
    try:
        card = _card(run, child, shape=shape)
        found = plan(*models.values(), options=card.options)
    except FretsawError as error:
        return None, f"Speeds cannot be predicted: {error.message}."
    return speeds_of(found, names=models, why=card.why), problem


def _is_same(parent: Path, shape: ModelShape) -> bool:
    try:
        config = read_config(parent)
        return family_of(config).read_config(config) == shape
    except (FretsawError, OSError):
        return False


def _card(run: Run, child: Path, *, shape: ModelShape) -> _Card:
    demands = run.recipe.rounds[-1].search.budget.serve
    asked = next((one for one in demands if not one.is_here), None)
    workload = _workload(child)
    if asked is not None:
        return _Card(_as_asked(asked, workload), "the hardware of the recipe’s budget")
    node = smallest_node(shape, precision=preset("bf16"))
    options = PlanOptions(str(node), workload=workload)
    return _Card(options, "the smallest hardware with a data sheet here that holds the parent")


def _as_asked(asked: Serve, workload: str) -> PlanOptions:
    return PlanOptions(
        asked.hardware,
        workload=asked.workload or workload,
        number_format=asked.format or "bf16",
        context=None if asked.context is None else str(asked.context),
        memory_fraction=asked.memory_fraction,
        engine=asked.engine or "vllm",
    )


def _workload(child: Path) -> str:
    """The usual workload, as far as the model's positions go."""
    config = read_config(child)
    _, limit = family_of(config).context_limits(config)
    tokens = max(1, min(USUAL_TOKENS, limit // 2))
    return f"{tokens}/{tokens}"
