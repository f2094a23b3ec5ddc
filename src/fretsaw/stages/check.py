"""Everything that can be refused before the first weight is read."""

from __future__ import annotations

from collections.abc import Sequence

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import need_disk
from fretsaw.core.shape import ModelShape
from fretsaw.core.units import parse_bytes
from fretsaw.core.variant import Variant
from fretsaw.cost.memory import model_costs
from fretsaw.recipe import Round
from fretsaw.solver.budget import resolve_budgets
from fretsaw.solver.mip import Problem, solve
from fretsaw.stages.library import by_block, variants_of
from fretsaw.stages.run import Run, text_digest
from fretsaw.stages.text import calibration_ids, score_ids, train_ids, validation_ids
from fretsaw.train.packing import load_tokenizer

COPIES_PER_ROUND = 4
"""A round leaves a cut and a healed child; training keeps two checkpoints of weights beside them
(and, in float32, the optimiser's two moments: see `plan`)."""


def check(run: Run) -> None:
    """Check parent, tokenizer, library, budgets, text and disk of every round.

    Raises:
        FretsawError: the first thing that would stop the run later.
    """
    parent = Checkpoint(run.parent)
    parent.check()
    load_tokenizer(run.parent)
    check_rounds(parent.shape, run.recipe.rounds)
    for round_ in run.rounds():
        parse_bytes(round_.settings.build.shard_bytes)
        for text in (calibration_ids, score_ids, train_ids, validation_ids):
            text_digest(text, round_)
    size = sum(f.stat().st_size for f in run.parent.glob("*.safetensors"))
    need_disk(run.folder, size * COPIES_PER_ROUND)


def check_rounds(shape: ModelShape, rounds: Sequence[Round]) -> None:
    """Check that each round's library makes sense and can meet its budgets at all.

    Raises:
        RecipeError: a size or setting that no variant can have.
        InfeasibleError: the smallest model in the library is over a budget.
    """
    costs = model_costs(shape)
    smallest, gone = shape, set[int]()
    for settings in rounds:
        variants = variants_of(smallest, original=shape, settings=settings.library)
        gone |= {v.block for v in variants if v.is_none}
        sized = [v for v in variants if not v.is_none]
        variants = [*sized, *(Variant(block, is_none=True) for block in sorted(gone))]
        problem = Problem(
            smallest,
            by_block(variants),
            scores={(v.block, v.key): 0.0 for v in variants},
            budgets=resolve_budgets(settings.search.budget, parent_costs=costs),
        )
        solve(problem, time_limit_s=settings.search.time_limit_s)
        smallest = _smallest(smallest, sized)


def _smallest(shape: ModelShape, variants: Sequence[Variant]) -> ModelShape:
    """Every block at the smallest of its sizes: what a later round can count on at best."""
    blocks = list(shape.blocks)
    for variant in variants:
        now = blocks[variant.block].values
        least = {d: min(v, now[d]) for d, v in variant.values.items()}
        blocks[variant.block] = blocks[variant.block].with_values(least)
    return shape.with_blocks(blocks)
