"""What a recipe asks of a parent that makes little sense, though it could be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fretsaw.errors import RecipeError
from fretsaw.families.base import ContextLimit
from fretsaw.recipe.sections import Round
from fretsaw.solver.budget import resolve_budgets


def loose_budgets(rounds: Sequence[Round], *, parent_costs: Mapping[str, float]) -> list[str]:
    """A sentence for each budget that binds nothing: the model is within it before the cut.

    Raises:
        RecipeError: no budget of the first round binds, so that nothing would be cut.
    """
    warnings: list[str] = []
    bounds = dict(parent_costs)
    for number, settings in enumerate(rounds, start=1):
        budget = settings.search.budget
        budgets = resolve_budgets(budget.costs, parent_costs=parent_costs)
        loose = [b for b in budgets if b.limit >= bounds[b.cost]]
        if loose and loose == budgets and number == 1 and not budget.serve:
            met = " and ".join(f"`{b}`" for b in loose)
            raise RecipeError(
                f"round 1 would cut nothing: the parent meets {met}",
                "give a smaller budget, such as 75%",
            )
        for one in loose:
            has = f"{bounds[one.cost]:,.0f}"
            why = f"the parent has {has}"
            if bounds[one.cost] < parent_costs[one.cost]:
                why = f"an earlier one leaves {has}"
            warnings.append(f"round {number}: the budget `{one}` binds nothing: {why}")
        for one in budgets:
            bounds[one.cost] = min(bounds[one.cost], one.limit)
    return warnings


def long_sequences(lengths: Mapping[str, int], limit: ContextLimit) -> list[str]:
    """A sentence for each length, by its key, that is beyond what the model was made for."""
    return [
        f"{key} is {length:,} tokens, but the model's config states {limit.stated:,} positions: "
        f"its figures there say little; take at most {limit.stated:,}"
        for key, length in lengths.items()
        if length > limit.stated
    ]


def lengths_of(rounds: Sequence[Round]) -> dict[str, int]:
    """Sequence lengths of all rounds by their keys; the same length once."""
    lengths: dict[str, int] = {}
    for number, settings in enumerate(rounds, start=1):
        for word in ("calibrate", "distill"):
            length = getattr(settings, word).sequence_length
            key = f"{word}.sequence_length"
            if lengths.get(key) != length:
                lengths[f"round {number}: {key}" if key in lengths else key] = length
    return lengths
