"""Pick one item of each group at the least sum, under bounds on sums of whole numbers.

A thin layer over HiGHS (scipy.optimize.milp) whose answers are exact although HiGHS rounds: bounds
are brought to small whole numbers with half a unit of slack, every answer is added up anew in
integers, and one that breaks a bound all the same is cut off and solved for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array

from fretsaw.errors import RunError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

OBJECTIVE_SCALE = 1e6
"""The largest difference within a group in solver units: HiGHS stops at 1e-6 of one unit."""

TIE_BREAK = 1e-8
"""Weight of the second objective; sums of the first closer than about this count as equal."""

GAP_TOLERANCE = 1e-9
"""Of the largest difference within a group: an answer counts as proven up to it."""

LARGEST_WEIGHT = 1e3
"""Of a bound's row in solver units, whose tolerance is 1e-6."""

MAX_CUTS = 100
"""Answers that may be cut off because they break a bound by rounding."""

TIME_OUT, INFEASIBLE = 1, 2
"""Statuses of scipy.optimize.milp, beside 0 for proven."""


@dataclass(frozen=True)
class Limit:
    """The weights of the picked items, non-negative or not, must not sum to more than a bound."""

    weights: Ints
    bound: int


@dataclass(frozen=True)
class Answer:
    """What a solve gave.

    Attributes:
        status: ``optimal`` only where HiGHS has proven it; ``feasible`` is a time-out's incumbent.
        picked: One item per group, in the order of groups; empty without an answer.
        gap: Objective that a better answer could still save, in the objective's unit.
    """

    status: Literal["optimal", "feasible", "infeasible", "timeout"]
    picked: tuple[int, ...] = ()
    gap: float = 0.0


class Program:
    """The fixed constraints: one item per group, shared values, items of which one must stay."""

    def __init__(self, groups: Sequence[int], *, shared: Sequence[Sequence[int | None]]) -> None:
        """Prepare.

        Args:
            groups: Group of each item, 0, 1, ... without holes and in order.
            shared: For each property that must be equal in all groups, its value per item; None
                where an item has no such property.
        """
        self.groups = np.asarray(groups)
        self.num_groups = int(self.groups.max(initial=-1)) + 1
        values = [sorted({v for v in one if v is not None}) for one in shared]
        self._num_columns = len(self.groups) + sum(map(len, values))
        self._rows: list[Floats] = []
        self._low: list[float] = []
        self._high: list[float] = []
        for group in range(self.num_groups):
            self._add(self.groups == group, low=1.0, high=1.0)
        column = len(self.groups)
        for one, options in zip(shared, values, strict=True):
            self._share(one, options, column=column)
            column += len(options)

    def keep_one(self, items: npt.NDArray[np.bool_]) -> None:
        """At least one of these items is picked."""
        self._add(items, low=1.0)

    def forbid(self, picked: Sequence[int], *, min_distance: int) -> None:
        """Later answers differ from this one in at least `min_distance` groups."""
        self._add(self._marks(picked), high=float(len(picked) - min_distance))

    def minimise(
        self,
        objective: Floats,
        *,
        limits: Sequence[Limit] = (),
        second: Floats | None = None,
        time_limit_s: float = 60.0,
        relative_gap: float = 0.0,
    ) -> Answer:
        """The picks with the least summed objective.

        Args:
            objective: Per item.
            limits: Bounds.
            second: Decides between picks whose sums are equal; per item.
            time_limit_s: Of one solve.
            relative_gap: Stop at an answer that is proven to be this near.

        Raises:
            RunError: HiGHS failed, or its answers break a bound again and again.
        """
        rows = [self._bound_row(limit) for limit in limits]
        if any(high < 0 for _, high in rows):
            return Answer("infeasible")
        scaled, spread = self._scaled(objective)
        if second is not None:
            scaled = scaled + TIE_BREAK * self._scaled(second)[0]
        for _ in range(MAX_CUTS):
            result = self._milp(
                scaled * OBJECTIVE_SCALE,
                rows,
                options={"time_limit": time_limit_s, "mip_rel_gap": relative_gap},
            )
            if result.x is None:
                return _without_answer(result)
            picked = self._picked(result.x)
            if all(sum(map(int, k.weights[picked])) <= k.bound for k in limits):
                gap = _gap(result)
                is_proven = result.status == 0 and gap <= GAP_TOLERANCE
                status: Literal["optimal", "feasible"] = "optimal" if is_proven else "feasible"
                return Answer(status, tuple(picked), 0.0 if is_proven else gap * spread)
            rows.append((self._marks(picked), len(picked) - 1.0))
        raise RunError(
            f"{MAX_CUTS} answers of the solver break a budget by rounding",
            "change the budgets a little, and report this",
        )

    def _add(
        self, items: Floats | npt.NDArray[np.bool_], *, low: float = -np.inf, high: float = np.inf
    ) -> None:
        self._rows.append(self._widened(items))
        self._low.append(low)
        self._high.append(high)

    def _widened(self, items: Floats | npt.NDArray[np.bool_]) -> Floats:
        row = np.zeros(self._num_columns)
        row[: len(items)] = items
        return row

    def _share(self, values: Sequence[int | None], options: Sequence[int], *, column: int) -> None:
        """A column says which value all groups take; items with another value are shut."""
        chosen = np.zeros(self._num_columns)
        for i, option in enumerate(options):
            has = np.array([value == option for value in values])
            for group in sorted(set(self.groups[has])):
                row = self._widened(has & (self.groups == group))
                row[column + i] = -1.0
                self._add(row, high=0.0)
            chosen[column + i] = 1.0
        self._add(chosen, high=1.0)

    def _marks(self, picked: Sequence[int]) -> Floats:
        row = np.zeros(self._num_columns)
        row[list(picked)] = 1.0
        return row

    def _bound_row(self, limit: Limit) -> tuple[Floats, float]:
        """The bound in small numbers: each group's least weight and the common divisor taken out.

        Half a unit of slack keeps the solver's tolerance from mattering on either side.
        """
        least = np.array([limit.weights[self.groups == g].min() for g in range(self.num_groups)])
        rest = limit.weights - least[self.groups]
        unit = int(np.gcd.reduce(rest)) or 1
        bound = (limit.bound - int(least.sum())) // unit
        scale = max(1.0, float(rest.max(initial=0)) / unit / LARGEST_WEIGHT)
        high = (bound + 0.5) / scale if bound >= 0 else -1.0
        return self._widened(rest / unit / scale), high

    def _scaled(self, values: Floats) -> tuple[Floats, float]:
        """Values above each group's least, over the largest of them; and that largest."""
        least = np.array([values[self.groups == g].min() for g in range(self.num_groups)])
        above = values - least[self.groups]
        spread = float(above.max(initial=0.0))
        return (above / spread if spread > 0 else above), spread

    def _picked(self, x: Floats) -> list[int]:
        """The item of each group, from a solution that is integral up to rounding."""
        items = [np.flatnonzero(self.groups == group) for group in range(self.num_groups)]
        return [int(own[np.argmax(x[own])]) for own in items]

    def _milp(
        self,
        objective: Floats,
        rows: Sequence[tuple[Floats, float]],
        *,
        options: dict[str, float],
    ) -> OptimizeResult:
        matrix = csr_array(np.stack([*self._rows, *(row for row, _ in rows)]))
        low = [*self._low, *([-np.inf] * len(rows))]
        high = [*self._high, *(bound for _, bound in rows)]
        return milp(
            self._widened(objective),
            integrality=np.ones(self._num_columns),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, low, high),
            options=options,
        )


def _gap(result: OptimizeResult) -> float:
    """Objective above its proven bound, 1 = the largest difference within a group."""
    if result.mip_dual_bound is None:
        return float("inf")
    return max(0.0, float(result.fun - result.mip_dual_bound)) / OBJECTIVE_SCALE


def _without_answer(result: OptimizeResult) -> Answer:
    if result.status == INFEASIBLE:
        return Answer("infeasible")
    if result.status == TIME_OUT:
        return Answer("timeout")
    raise RunError(f"the solver failed: {result.message}", "report this with the recipe")
