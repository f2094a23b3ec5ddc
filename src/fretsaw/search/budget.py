"""Budgets: upper bounds on whole-model costs, and an honest word when they cannot be met."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fretsaw.core.units import format_bytes, format_count, parse_bytes, parse_count, parse_fraction
from fretsaw.cost.memory import COSTS
from fretsaw.errors import InfeasibleError, RecipeError, nearest

Least = Callable[[str, Sequence["Budget"]], float | None]
"""(cost, other budgets) -> the least whole-model value, None if the others cannot be met."""


@dataclass(frozen=True)
class Budget:
    """A whole-model cost must not exceed a limit.

    Attributes:
        cost: Name of the cost (`fretsaw.cost.memory.COSTS`).
        limit: In the cost's own unit.
        text: As the recipe has it.
    """

    cost: str
    limit: float
    text: str

    def __str__(self) -> str:
        """As in messages: ``params <= 70B``."""
        return f"{self.cost} <= {self.text}"

    def tightened(self) -> Budget:
        """A hair below, against the solver's tolerance."""
        return replace(self, limit=self.limit - max(1.0, abs(self.limit) * 1e-6))


def resolve_budgets(
    budget: Mapping[str, str | int | float], *, parent_costs: Mapping[str, float]
) -> list[Budget]:
    """Budgets in absolute terms: numbers as they are, percentages of the original parent.

    Raises:
        RecipeError: unknown cost, or a value that is no quantity.
    """
    resolved = []
    for name, value in budget.items():
        if name not in COSTS:
            guess = nearest(name, COSTS)
            raise RecipeError(
                f"unknown cost {name!r} in search.budget",
                f"did you mean {guess!r}?" if guess else f"known: {', '.join(COSTS)}",
            )
        text = str(value)
        if text.strip().endswith("%"):
            limit = parse_fraction(text) * parent_costs[name]
        else:
            limit = float(parse_bytes(text) if "bytes" in name else parse_count(text))
        resolved.append(Budget(name, limit, text))
    return resolved


def explain_infeasible(budgets: Sequence[Budget], *, least: Least) -> InfeasibleError:
    """The error that names the budgets that cannot be met and the nearest values that can."""
    impossible = [(b, value) for b in budgets if (value := least(b.cost, ())) and value > b.limit]
    if impossible:
        budget, value = impossible[0]
        return InfeasibleError(
            f"no choice meets the budget `{budget}`: "
            f"the smallest model in the library has {_show(budget.cost, value)}",
            "add smaller sizes to the library, allow `none` for some blocks, or raise the budget "
            f"to {_show(budget.cost, value)}",
        )
    nearest_values = []
    for budget in budgets:
        value = least(budget.cost, [b for b in budgets if b is not budget])
        if value is not None:
            nearest_values.append(f"{budget.cost} >= {_show(budget.cost, value)} given the others")
    return InfeasibleError(
        f"no choice meets these budgets together: {', '.join(map(str, budgets))}",
        f"one of them must give way: {'; '.join(nearest_values) or 'raise several'}",
    )


def _show(cost: str, value: float) -> str:
    """Rounded up, so that the printed value can be met."""
    if "bytes" in cost:
        return f"{math.ceil(value)} bytes ({format_bytes(value)})"
    return f"{math.ceil(value):,} ({format_count(value)})"
