"""Everything that can be refused before the first weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fretsaw.checkpoint.child import untied_bytes
from fretsaw.checkpoint.reader import Checkpoint, num_bytes
from fretsaw.checkpoint.writer import need_disk
from fretsaw.core.compatibility import space_findings
from fretsaw.core.engines import engine_named
from fretsaw.core.precision import preset
from fretsaw.core.shape import ModelShape
from fretsaw.core.variant import Variant
from fretsaw.errors import FretsawError, RecipeError
from fretsaw.families import family_named
from fretsaw.families.base import ContextLimit
from fretsaw.pricing.memory import model_costs
from fretsaw.recipe import Recipe
from fretsaw.recipe.sections import Library, Round
from fretsaw.solver.alternatives import Terms, solve_any
from fretsaw.solver.budget import resolve_budgets
from fretsaw.solver.mip import Problem
from fretsaw.stages.check_parent import check_parent
from fretsaw.stages.check_recipe import lengths_of, long_sequences, loose_budgets
from fretsaw.stages.demand import Parent, check_context, demand_on_gpus, price_demand
from fretsaw.stages.library import by_block, variants_of
from fretsaw.stages.quantized_child import check_quantize, quantize_disk_bytes
from fretsaw.stages.run import Run
from fretsaw.stages.text import check_texts

TRAINING_BYTES = 3 * 12 + 2 * 4
"""Bytes a parameter while healing: float32 weights and two moments in two checkpoints and in the
one that is being written; the best weights, and those being written."""


def check(run: Run) -> None:
    """Check parent, tokenizer, engines, library, budgets, text and disk of every round.

    Raises:
        FretsawError: the first thing that would stop the run later.
    """
    check_device(run.recipe.compute.device)
    parent, warnings = check_parent(run.parent)
    warnings += [w for r in run.recipe.rounds for w in check_engines(parent.shape, r.library)]
    warnings += loose_budgets(run.recipe.rounds, parent_costs=model_costs(parent.shape))
    limit = ContextLimit(*family_named(parent.shape.family).context_limits(parent.config))
    warnings += long_sequences(lengths_of(run.recipe.rounds), limit)
    for warning in dict.fromkeys(warnings):
        run.reporter.warn(warning)
    check_rounds(Parent(parent.shape, parent.config), run.recipe.rounds)
    check_quantize(run)
    check_texts(run, run.rounds())
    written = sum(f.stat().st_size for f in run.folder.glob("round-*/**/*") if f.is_file())
    need_disk(run.folder, peak_disk_bytes(parent, run.recipe) - written)


def peak_disk_bytes(parent: Checkpoint, recipe: Recipe) -> int:
    """What a run takes at most: a cut and a healed child a round, quantised ones, one training."""
    child = sum(num_bytes(place) for place in parent.stored.values()) + untied_bytes(parent)
    children = child * 2 * len(recipe.rounds)
    training = int(model_costs(parent.shape)["params"]) * TRAINING_BYTES
    return children + training + quantize_disk_bytes(recipe, parent)


def check_device(device: str) -> None:
    """Check that torch knows the device and has it.

    Raises:
        RecipeError: it does not.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n", 1)[0]
        raise RecipeError(
            f"compute.device {device!r} cannot be used: {reason}", "take cpu, cuda or cuda:0"
        ) from error


def check_engines(shape: ModelShape, settings: Library) -> list[str]:
    """Check that the recipe's engines take every child that a library allows.

    Args:
        shape: The original parent.
        settings: The library of a round.

    Returns:
        What they take slowly, and what nobody has tried, a sentence each.

    Raises:
        RecipeError: an engine refuses a value, with the nearest that it takes.
    """
    variants = variants_of(shape, original=shape, settings=settings)
    precision, warnings = preset(settings.precision), []
    for engine in map(engine_named, settings.engines):
        found = space_findings(variants, shape=shape, engine=engine, precision=precision)
        for finding in found:
            if finding.severity == "refuse":
                hint = f"change the library, or leave {engine.key} out of library.engines"
                raise RecipeError(str(finding), hint)
        warnings += [str(f) for f in found if f.severity != "note"]
    return warnings


def check_rounds(parent: Parent, rounds: Sequence[Round]) -> None:
    """Check that each round's library makes sense and can meet its budgets at all.

    Raises:
        RecipeError: a size or setting that no variant can have.
        InfeasibleError: the smallest model in the library is over a budget.
    """
    smallest, gone = parent.shape, set[int]()
    for number, settings in enumerate(rounds, start=1):
        try:
            smallest = _check_round(smallest, settings, parent=parent, gone=gone)
        except FretsawError as error:
            place = f"round {number}: " if len(rounds) > 1 else ""
            raise type(error)(place + error.message, error.hint) from error


def _check_round(
    shape: ModelShape, settings: Round, *, parent: Parent, gone: set[int]
) -> ModelShape:
    """Check a round around the smallest model that earlier ones can leave; gives the next.

    `gone` collects blocks that may have been left out so far.
    """
    _check_asked(settings)
    variants = variants_of(shape, original=parent.shape, settings=settings.library)
    gone |= {v.block for v in variants if v.is_none}
    sized = [v for v in variants if not v.is_none]
    variants = [*sized, *(Variant(block, is_none=True) for block in sorted(gone))]
    costs = model_costs(parent.shape)
    problem = Problem(
        shape,
        by_block(variants),
        scores={(v.block, v.key): 0.0 for v in variants},
        budgets=resolve_budgets(settings.search.budget.costs, parent_costs=costs),
    )
    ways = list(_ways(problem, settings, parent=parent))
    solve_any(problem, ways, time_limit_s=settings.search.time_limit_s)
    return _smallest(shape, sized)


def _ways(problem: Problem, settings: Round, *, parent: Parent) -> Iterator[list[Terms]]:
    """Ways to meet each demand on known hardware; what this machine takes is measured later."""
    for number, serve in enumerate(settings.search.budget.serve):
        if serve.is_here:
            check_context(serve, parent)
            continue
        known = demand_on_gpus(serve, parent, number_format=settings.library.precision)
        priced = price_demand(
            known.demand,
            problem,
            number=number,
            parent=parent.shape,
            prices_of=known.prices_of,
            energies_of=known.energies_of,
        )
        yield priced.terms(problem)


def _check_asked(settings: Round) -> None:
    """Refuse a round that would cut nothing, or fit on text that is not there."""
    library = settings.library
    if not (library.moe.ffn or library.moe.top_k or library.mamba.state or library.none):
        raise RecipeError(
            "the library offers no smaller form of any block",
            "give library.moe.ffn, library.moe.top_k, library.mamba.state or library.none",
        )
    if not (settings.search.budget.costs or settings.search.budget.serve):
        raise RecipeError(
            "search.budget is empty, so nothing would be cut",
            "give a budget, for example {params: 75%}",
        )
    if library.repair != "none" and library.repair_sequences > settings.calibrate.sequences:
        raise RecipeError(
            f"library.repair_sequences is {library.repair_sequences}, but calibrate.sequences only "
            f"{settings.calibrate.sequences}",
            "repairs are fitted on calibration text: raise calibrate.sequences, or lower the other",
        )


def _smallest(shape: ModelShape, variants: Sequence[Variant]) -> ModelShape:
    """Every block at the smallest of its sizes: what a later round can count on at best."""
    blocks = list(shape.blocks)
    for variant in variants:
        now = blocks[variant.block].values
        least = {d: min(v, now[d]) for d, v in variant.values.items()}
        blocks[variant.block] = blocks[variant.block].with_values(least)
    return shape.with_blocks(blocks)
