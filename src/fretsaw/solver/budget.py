"""Budgets: upper bounds on whole-model costs, and an honest word when they cannot be met."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fretsaw.core.tables import ScoreKey
from fretsaw.core.units import (
    format_bytes,
    format_count,
    format_latency,
    parse_bytes,
    parse_count,
    parse_fraction,
)
from fretsaw.errors import InfeasibleError, RecipeError, nearest
from fretsaw.pricing.memory import COSTS

PERCENT = 100

Least = Callable[[str, Sequence["Budget"]], int | None]
"""(cost, other budgets) -> the least whole-model value, None if the others cannot be met."""


@dataclass(frozen=True)
class PricedCost:
    """A cost that the tensor table does not give: what somebody has priced for every variant.

    Attributes:
        name: Begins with what is counted and its unit, as ``token_ns (8xB200 tp2)``.
        fixed: Of what is no block.
        of_variant: (block, variant key) -> cost, in whole numbers so that sums are exact.
    """

    name: str
    fixed: int
    of_variant: Mapping[ScoreKey, int]


@dataclass(frozen=True)
class Budget:
    """A whole-model cost must not exceed a limit.

    Attributes:
        cost: Name of the cost (`fretsaw.pricing.memory.COSTS`, or of a `PricedCost`).
        limit: In the cost's own unit.
        text: As the recipe has it.
    """

    cost: str
    limit: float
    text: str = ""

    def __str__(self) -> str:
        """As in messages: ``params <= 70B``."""
        return f"{self.cost} <= {self.text or format(self.limit, ',.0f')}"


def resolve_budgets(
    budget: Mapping[str, str | int | float], *, parent_costs: Mapping[str, float]
) -> list[Budget]:
    """Budgets in absolute terms: numbers as they are, percentages of the original parent.

    Args:
        budget: Cost -> limit, such as ``{"moe_params": "75%", "bytes_nvfp4": "44GiB"}``.
        parent_costs: Costs of the original parent, which percentages refer to.

    Raises:
        RecipeError: unknown cost, or a value that is no quantity.
    """
    return [_resolve(name, value, parent_costs=parent_costs) for name, value in budget.items()]


def _resolve(name: str, value: str | float, *, parent_costs: Mapping[str, float]) -> Budget:
    if name not in COSTS:
        guess = nearest(name, COSTS)
        raise RecipeError(
            f"unknown cost {name!r} in search.budget",
            f"did you mean {guess!r}?" if guess else f"known: {', '.join(COSTS)}",
        )
    text = str(value).strip()
    if isinstance(value, float) and 0 < value <= 1:
        raise RecipeError(
            f"search.budget.{name} is {text}, in {COSTS[name]}",
            f'for a share of the parent write "{100 * value:g}%"',
        )
    if text.endswith("%"):
        parse_fraction(text)
        # Exact: 57 % of 100 as floats is 56.99999999999999, and a model of 57 would be refused.
        share = Fraction(text.removesuffix("%").strip()) / 100
        return Budget(name, float(share * Fraction(parent_costs[name])), text)
    return Budget(name, float(parse_bytes(text) if "bytes" in name else parse_count(text)), text)


def explain_infeasible(budgets: Sequence[Budget], *, least: Least) -> InfeasibleError:
    """The error that names the budgets that cannot be met and the nearest values that can.

    Args:
        budgets: Bounds that no choice meets together.
        least: Gives the nearest values.
    """
    values = {b: least(b.cost, ()) for b in budgets}
    alone = {b: value for b, value in values.items() if value is not None and value > b.limit}
    if not alone:
        return _explain_conflict(budgets, least=least)
    forgotten = [b for b in alone if b.limit <= PERCENT and not b.text.endswith("%")]
    meant = " and ".join(f"{b.cost}: {b.limit:g}%" for b in forgotten)
    return InfeasibleError(
        "; ".join(
            f"no choice meets the budget `{budget}`: "
            f"the smallest model in the library has {_show(budget.cost, value)}"
            for budget, value in alone.items()
        ),
        (f"did you mean {meant}? Else " if meant else "")
        + "add smaller sizes to the library, allow `none` for some blocks, or raise the budget to "
        + " and ".join(f"{budget.cost} {value:,}" for budget, value in alone.items()),
    )


def _explain_conflict(budgets: Sequence[Budget], *, least: Least) -> InfeasibleError:
    """Each budget can be met alone: name the fewest that cannot be met together."""
    subsets = itertools.chain.from_iterable(
        itertools.combinations(budgets, size) for size in range(2, len(budgets))
    )
    conflict: Sequence[Budget] = budgets
    for subset in subsets:
        value = least(subset[0].cost, subset[1:])
        if value is None or value > subset[0].limit:
            conflict = subset
            break
    # The nearest value of one is what it takes beside all others, not beside its rivals alone.
    ways = []
    for budget in conflict:
        value = least(budget.cost, [b for b in budgets if b is not budget])
        if value is not None:
            ways.append(f"raise {budget.cost} to {_show(budget.cost, value)}")
    return InfeasibleError(
        "no choice meets these budgets together: " + ", ".join(f"`{b}`" for b in conflict),
        f"{' or '.join(ways) or 'raise several of them'}, or add smaller sizes to the library",
    )


def _show(cost: str, value: int) -> str:
    """A value in full, so that what is printed can be met, and rounded."""
    rounded = format_count(value)
    if "bytes" in cost:
        rounded = format_bytes(value)
    elif "_ns" in cost:
        rounded = format_latency(value / 1e9)
    elif "_nj" in cost:
        rounded = f"{value / 1e9:.3g} J"
    return f"{value:,} ({rounded})" if rounded != str(value) else rounded
