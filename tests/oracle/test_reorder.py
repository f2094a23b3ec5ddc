"""Putting units into another order changes no logits."""

from __future__ import annotations

import pytest

from fretsaw.runtime.blocks import order_model
from fretsaw.runtime.statistics import collect_statistics, rank_units
from tests.views import logits_of, pico_ids, pico_view, random_orders


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_order_leaves_the_logits_unchanged(seed: int) -> None:
    view = pico_view(seed)
    ids = pico_ids(seed)
    before = logits_of(view, ids)
    order_model(view, random_orders(view, seed))
    assert (logits_of(view, ids) - before).abs().max() <= 1e-5


def test_importance_order_leaves_the_logits_unchanged() -> None:
    view = pico_view(0)
    ids = pico_ids(0)
    before = logits_of(view, ids)
    ranking = rank_units(view, collect_statistics(view, [ids]), min_tokens=8)
    order_model(view, ranking.orders)
    assert (logits_of(view, ids) - before).abs().max() <= 1e-5


def test_ordered_model_is_ranked_first_to_last() -> None:
    """Calibrated again, an ordered model has its units in place: the importance moved with them."""
    view = pico_view(0)
    ids = pico_ids(0, sequences=4)
    ranking = rank_units(view, collect_statistics(view, [ids]), min_tokens=1)
    order_model(view, ranking.orders)
    again = rank_units(view, collect_statistics(view, [ids]), min_tokens=1)
    for index, dims in again.importance.items():
        for dim, values in dims.items():
            first = ranking.importance[index][dim]
            expected = first.gather(-1, ranking.orders[index][dim])
            assert (values - expected).abs().max() <= 1e-5 * first.max()
