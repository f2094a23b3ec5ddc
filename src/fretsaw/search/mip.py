"""One variant per block, least summed score, under any number of budgets: a mixed-integer program.

    minimise   sum_b,v score[b,v] x[b,v]
    subject to sum_v x[b,v] = 1                          for each block b
               sum_b,v cost_k[b,v] x[b,v] <= limit_k     for each budget k
               the Mamba state is one value for the whole model
               at least one attention block stays

Source: Puzzle, arXiv:2411.19146, section 4; the last two constraints: every stock engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array, vstack

from fretsaw.core.shape import MODEL_SCOPE, ModelShape
from fretsaw.core.variant import Choice, Variant
from fretsaw.cost.memory import costs_by_block, fixed_costs
from fretsaw.errors import RunError
from fretsaw.search.budget import Budget, explain_infeasible

Array = npt.NDArray[np.float64]
ScoreKey = tuple[int, str]
GAP_TOLERANCE = 1e-9
"""Relative gap up to which an answer counts as proven optimal."""

TIE_BREAK = 1e-9
"""Weight of the summed relative costs in the objective: of equal scores the cheaper wins."""

TIME_OUT, INFEASIBLE = 1, 2
"""Statuses of scipy.optimize.milp."""


@dataclass(frozen=True)
class Problem:
    """Variants with scores, and the budgets.

    Attributes:
        shape: The model that is cut.
        variants: Block -> its variants.
        scores: (block, variant key) -> score; smaller = better.
        budgets: Upper bounds on whole-model costs.
    """

    shape: ModelShape
    variants: Mapping[int, Sequence[Variant]]
    scores: Mapping[ScoreKey, float]
    budgets: Sequence[Budget]

    @cached_property
    def usable(self) -> list[Variant]:
        """Variants with a finite score, in block order.

        Raises:
            RunError: a block has none.
        """
        usable: list[Variant] = []
        for block in range(self.shape.num_blocks):
            found = [v for v in self.variants[block] if np.isfinite(self._score(v))]
            if not found:
                raise RunError(
                    f"block {block} ({self.shape.blocks[block].mixer}) has no variant with a "
                    "finite score",
                    "look at its rows in 04-score/scores.jsonl; a NaN there is a damaged weight "
                    "or an overflow",
                )
            usable += found
        return usable

    @cached_property
    def dropped(self) -> list[Variant]:
        """Variants left out because their score is missing or not finite."""
        return [v for vs in self.variants.values() for v in vs if not np.isfinite(self._score(v))]

    def _score(self, variant: Variant) -> float:
        return self.scores.get((variant.block, variant.key), float("nan"))

    @cached_property
    def score_vector(self) -> Array:
        """Score of each usable variant."""
        return np.array([self._score(v) for v in self.usable])

    @cached_property
    def costs(self) -> list[Mapping[str, float]]:
        """Costs of each usable variant, exact."""
        cache: dict[tuple[int, str], Mapping[str, float]] = {}
        by_variant = {}
        for key in {v.key for v in self.usable}:
            group = [v for v in self.usable if v.key == key]
            chosen = {v.block: v for v in group}
            blocks = [
                chosen[i].apply(b) if i in chosen else b for i, b in enumerate(self.shape.blocks)
            ]
            costs = costs_by_block(self.shape.with_blocks(blocks))
            cache |= {(v.block, key): costs[v.block] for v in group}
        by_variant = [cache[v.block, v.key] for v in self.usable]
        return by_variant

    def cost_vector(self, name: str) -> Array:
        """One cost of each usable variant."""
        return np.array([costs[name] for costs in self.costs], dtype=float)

    @cached_property
    def fixed(self) -> Mapping[str, float]:
        """Costs of what is no block."""
        return fixed_costs(self.shape)

    def choice(self, picked: Sequence[int], *, status: str, gap: float) -> Choice:
        """The choice of these usable variants, its score and costs summed anew."""
        costs = dict(self.fixed)
        for i in picked:
            for name, value in self.costs[i].items():
                costs[name] += value
        score = float(sum(self.score_vector[i] for i in picked))
        return Choice(tuple(self.usable[i] for i in picked), score, costs, status, gap)


def solve(
    problem: Problem, *, n_best: int = 1, min_distance: int = 1, time_limit_s: float = 60.0
) -> list[Choice]:
    """The best choice, and further ones that differ from all earlier in `min_distance` blocks.

    Args:
        problem: What to choose from.
        n_best: How many choices; fewer come back where there are no more.
        min_distance: Least number of blocks in which two of them differ.
        time_limit_s: For each solve; a time-out with an incumbent comes back as ``feasible``.

    Raises:
        InfeasibleError: no choice meets the budgets; it names them and the nearest values.
        RunError: a block without a finite score, or a time-out without any answer.
    """
    model = _Model(problem)
    found: list[Choice] = []
    for _ in range(n_best):
        answer = model.solve(problem.score_vector, time_limit_s=time_limit_s)
        if answer is None:
            break
        picked, status, gap = answer
        found.append(problem.choice(picked, status=status, gap=gap))
        model.forbid(picked, min_distance=min_distance)
    if not found:
        raise explain_infeasible(problem.budgets, least=model.least)
    return found


def random_choices(problem: Problem, *, count: int, seed: int) -> list[Choice]:
    """Random choices that meet the budgets and nearly use them: random scores, solved.

    Each variant's random score falls with its size, so that the budget is filled.
    """
    rng = np.random.default_rng(seed)
    model = _Model(problem)
    capacity = sum(
        (problem.cost_vector(b.cost) / max(b.limit, 1.0) for b in problem.budgets),
        start=np.zeros(len(problem.usable)),
    )
    choices = []
    for _ in range(count):
        weights = -rng.exponential(size=len(problem.usable)) * capacity
        answer = model.solve(weights, time_limit_s=10.0)
        if answer is not None:
            choices.append(problem.choice(answer[0], status="random", gap=0.0))
    return choices


def uniform_choice(problem: Problem) -> Choice:
    """The best choice in which all blocks of a kind take the same variant.

    Raises:
        InfeasibleError: none meets the budgets.
    """
    model = _Model(problem)
    model.tie_kinds()
    answer = model.solve(problem.score_vector, time_limit_s=60.0)
    if answer is None:
        raise explain_infeasible(problem.budgets, least=model.least)
    return problem.choice(answer[0], status="uniform", gap=0.0)


class _Model:
    """The constraint matrix of a problem; costs are divided by their limits to keep it scaled."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.blocks = np.array([v.block for v in problem.usable])
        self._rows: list[Array] = []
        self._low: list[float] = []
        self._high: list[float] = []
        for block in range(problem.shape.num_blocks):
            self._add((self.blocks == block).astype(float), 1.0, 1.0)
        for dim in MODEL_SCOPE:
            self._tie_dimension(dim)
        self._keep_attention()

    def _add(self, row: Array, low: float, high: float) -> None:
        self._rows.append(row)
        self._low.append(low)
        self._high.append(high)

    def _tie_dimension(self, dim: str) -> None:
        """One value of a model-wide dimension: equal value counts in neighbouring blocks."""
        values = [v.values.get(dim) for v in self.problem.usable]
        owners = sorted({b for b, v in zip(self.blocks, values, strict=True) if v is not None})
        for first, second in zip(owners, owners[1:], strict=False):
            for value in sorted({v for v in values if v is not None}):
                has = np.array([v == value for v in values], dtype=float)
                row = has * (self.blocks == first) - has * (self.blocks == second)
                self._add(row, 0.0, 0.0)

    def _keep_attention(self) -> None:
        attention = self.problem.shape.indices("attention")
        stays = [v.block in attention and not v.is_none for v in self.problem.usable]
        if attention:
            self._add(np.array(stays, dtype=float), 1.0, np.inf)

    def tie_kinds(self) -> None:
        """All blocks of a kind take the variant of the same key."""
        for mixer in ("moe", "mamba", "mlp", "attention"):
            blocks = self.problem.shape.indices(mixer)
            keys = sorted({v.key for v in self.problem.usable if v.block in blocks})
            for first, second in zip(blocks, blocks[1:], strict=False):
                for key in keys:
                    has = np.array([v.key == key for v in self.problem.usable], dtype=float)
                    self._add(has * (self.blocks == first) - has * (self.blocks == second), 0.0, 0.0)

    def forbid(self, picked: Sequence[int], *, min_distance: int) -> None:
        """Later answers differ from this one in at least `min_distance` blocks."""
        row = np.zeros(len(self.blocks))
        row[list(picked)] = 1.0
        self._add(row, -np.inf, float(len(picked) - min_distance))

    def least(self, cost: str, others: Sequence[Budget]) -> float | None:
        """The least whole-model value of a cost under other budgets; None if those fail."""
        answer = self._milp(self._scaled(self.problem.cost_vector(cost)), others, time_limit_s=60.0)
        if answer.x is None:
            return None
        picked = self._picked(answer.x)
        return self.problem.fixed[cost] + sum(self.problem.costs[i][cost] for i in picked)

    def solve(
        self, scores: Array, *, time_limit_s: float
    ) -> tuple[list[int], str, float] | None:
        """Picked variants, status and gap; None where no choice meets the constraints."""
        budgets = list(self.problem.budgets)
        objective = self._scaled(scores)
        for budget in budgets:
            objective = objective + TIE_BREAK * self._scaled(self.problem.cost_vector(budget.cost))
        for _ in range(5):
            answer = self._milp(objective, budgets, time_limit_s=time_limit_s)
            if answer.x is None:
                if answer.status == TIME_OUT:
                    raise RunError(
                        f"the search found no answer in {time_limit_s:g} s",
                        "raise search.time_limit_s, or make the library smaller",
                    )
                return None
            picked = self._picked(answer.x)
            over = [b for b in self.problem.budgets if self._total(b.cost, picked) > b.limit]
            if not over:
                gap = max(0.0, float(answer.mip_gap or 0.0))
                is_proven = answer.status == 0 and gap <= GAP_TOLERANCE
                return picked, "optimal" if is_proven else "feasible", gap
            budgets = [b.tightened() if b in over else b for b in budgets]
        raise RunError(
            f"the solver's answer breaks {over[0]} by rounding", "raise that budget a little"
        )

    def _total(self, cost: str, picked: Sequence[int]) -> float:
        return self.problem.fixed[cost] + sum(self.problem.costs[i][cost] for i in picked)

    def _picked(self, x: Array) -> list[int]:
        """The variant of each block, from a solution that is integral up to rounding."""
        return [
            int(np.flatnonzero(self.blocks == b)[np.argmax(x[self.blocks == b])])
            for b in range(self.problem.shape.num_blocks)
        ]

    @staticmethod
    def _scaled(values: Array) -> Array:
        largest = float(np.abs(values).max(initial=0.0))
        return values / largest if largest else values

    def _milp(
        self, objective: Array, budgets: Sequence[Budget], *, time_limit_s: float
    ) -> OptimizeResult:
        rows, low, high = list(self._rows), list(self._low), list(self._high)
        for budget in budgets:
            scale = max(abs(budget.limit), 1.0)
            rows.append(self.problem.cost_vector(budget.cost) / scale)
            low.append(-np.inf)
            high.append((budget.limit - self.problem.fixed[budget.cost]) / scale)
        matrix = vstack([csr_array(row[None]) for row in rows])
        return milp(
            objective,
            integrality=np.ones(len(objective)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, low, high),
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
        )
