"""Budgets that bind nothing, and sequences longer than the model was made for."""

from __future__ import annotations

from typing import Any

import pytest

from fretsaw.errors import RecipeError
from fretsaw.families.base import ContextLimit
from fretsaw.pricing.memory import COSTS
from fretsaw.recipe import resolve_recipe
from fretsaw.recipe.sections import Round
from fretsaw.stages.check_recipe import lengths_of, long_sequences, loose_budgets

COST = dict.fromkeys(COSTS, 1e6)


def _rounds(*budgets: dict[str, Any], **sections: Any) -> tuple[Round, ...]:
    rounds = [{"search": {"budget": budget}} for budget in budgets]
    return resolve_recipe(
        {"parent": "p", "data": {"path": "d"}, "rounds": rounds, **sections}
    ).rounds


@pytest.mark.parametrize("limit", ["100%", "1M", "70B", 10**9])
def test_u11_budgets_that_cut_nothing_at_all_are_refused(limit: str | int) -> None:
    with pytest.raises(RecipeError, match="round 1 would cut nothing: the parent meets `params"):
        loose_budgets(_rounds({"params": limit}), parent_costs=COST)


def test_u11_a_budget_that_binds_nothing_beside_others_is_warned_about() -> None:
    (warning,) = loose_budgets(_rounds({"params": "100%", "moe_params": "75%"}), parent_costs=COST)
    assert warning == "round 1: the budget `params <= 100%` binds nothing: the parent has 1,000,000"


def test_u11_a_budget_looser_than_an_earlier_round_is_warned_about() -> None:
    rounds = _rounds({"params": "75%"}, {"params": "80%"}, {"params": "0.75M"}, {"params": "60%"})
    assert loose_budgets(rounds, parent_costs=COST) == [
        "round 2: the budget `params <= 80%` binds nothing: an earlier one leaves 750,000",
        "round 3: the budget `params <= 750000` binds nothing: an earlier one leaves 750,000",
    ]


def test_u16_sequences_beyond_the_models_positions_are_named_by_their_key() -> None:
    rounds = _rounds(
        {"params": "75%"},
        {"params": "70%"},
        calibrate={"sequence_length": "64k"},
        distill={"sequence_length": 2048},
    )
    (warning,) = long_sequences(lengths_of(rounds), ContextLimit(2048, 2048))
    assert warning.startswith("calibrate.sequence_length is 64,000 tokens, but the model's config")
    assert "states 2,048 positions" in warning
    assert long_sequences(lengths_of(rounds), ContextLimit(64_000, 10**6)) == []


def test_u16_a_round_of_its_own_length_is_named() -> None:
    rounds = resolve_recipe(
        {
            "parent": "p",
            "data": {"path": "d"},
            "rounds": [{}, {"distill": {"sequence_length": 4096}}, {}],
        }
    ).rounds
    (warning,) = long_sequences(lengths_of(rounds), ContextLimit(2048, 2048))
    assert warning.startswith("round 2: distill.sequence_length is 4,096 tokens")
