"""Calibration: counts, merging, storage, ranking, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from fretsaw.errors import RunError, ShapeError
from fretsaw.runtime.statistics import Statistics, collect_statistics, rank_units
from tests.views import pico_ids, pico_view


def assert_equal(one: Statistics, two: Statistics, *, rtol: float = 0.0) -> None:
    left, right = one.to_tensors(), two.to_tensors()
    assert left.keys() == right.keys()
    for key, tensor in left.items():
        torch.testing.assert_close(tensor, right[key], rtol=rtol, atol=0, msg=key)


def test_every_routed_token_is_counted() -> None:
    seen: list[int] = []
    ids = pico_ids(0, sequences=6)
    statistics = collect_statistics(pico_view(0), torch.split(ids, 2), on_progress=seen.append)
    assert seen == [1, 2, 3]
    assert statistics.num_tokens == ids.numel()
    assert {i: list(dims) for i, dims in statistics.sums.items()} == {
        0: ["state"],
        1: ["ffn"],
        3: ["ffn"],
    }
    for index in (1, 3):
        count = statistics.sums[index]["ffn"].count
        assert count.shape == (4,)
        assert int(count.sum()) == ids.numel() * 2
    heads_per_group, dim = 2, 16
    expected = ids.numel() * heads_per_group * dim
    assert statistics.sums[0]["state"].count.tolist() == [expected] * 2


def test_is_deterministic() -> None:
    view, ids = pico_view(0), pico_ids(0, sequences=4)
    assert_equal(
        collect_statistics(view, torch.split(ids, 2)), collect_statistics(view, torch.split(ids, 2))
    )


def test_merged_parts_equal_the_whole() -> None:
    view, ids = pico_view(0), pico_ids(0, sequences=6)
    whole = collect_statistics(view, torch.split(ids, 3))
    first = collect_statistics(view, torch.split(ids[:2], 1))
    second = collect_statistics(view, torch.split(ids[2:], 2))
    assert_equal(first.merge(second), whole, rtol=1e-6)


def test_tensors_and_back() -> None:
    statistics = collect_statistics(pico_view(0), [pico_ids(0)])
    back = Statistics.from_tensors(statistics.to_tensors())
    assert_equal(back, statistics)
    assert list(back.sums) == [0, 1, 3]


def test_experts_without_tokens_are_ranked_by_weights_and_listed() -> None:
    """R45: two tokens cannot reach all experts of top-1 routing."""
    view = pico_view(0, num_experts_per_tok=1)
    statistics = collect_statistics(view, [pico_ids(0, sequences=1, tokens=2)])
    assert int((statistics.sums[1]["ffn"].count == 0).sum()) >= 2
    ranking = rank_units(view, statistics, min_tokens=1)
    idle = (statistics.sums[1]["ffn"].count == 0).nonzero().flatten().tolist()
    assert ranking.uncalibrated[1] == tuple(idle)
    experts = view.block(1).mixer.experts
    by_weight = experts.up_proj.norm(dim=-1) * experts.down_proj.norm(dim=1)
    for expert in idle:
        expected = by_weight[expert].argsort(descending=True).tolist()
        assert ranking.orders[1]["ffn"][expert].tolist() == expected
    for dims in ranking.importance.values():
        assert all(torch.isfinite(values).all() for values in dims.values())


def test_orders_are_permutations_of_each_row() -> None:
    view = pico_view(0)
    ranking = rank_units(view, collect_statistics(view, [pico_ids(0)]), min_tokens=1)
    assert ranking.orders[0]["state"].shape == (2, 16)
    assert ranking.orders[1]["ffn"].shape == (4, 32)
    for index, dims in ranking.orders.items():
        for dim, order in dims.items():
            assert torch.equal(
                order.sort(-1).values, torch.arange(order.shape[-1]).expand_as(order)
            )
            sorted_values = ranking.importance[index][dim].gather(-1, order)
            assert (sorted_values.diff(dim=-1) <= 0).all()


def test_mlp_blocks_are_ranked() -> None:
    view = pico_view(0, layers_block_type=["mlp", "moe"], num_hidden_layers=2, intermediate_size=24)
    ranking = rank_units(view, collect_statistics(view, [pico_ids(0)]), min_tokens=1)
    assert ranking.orders[0]["ffn"].shape == (24,)


def test_values_that_are_not_finite_name_the_block() -> None:
    view = pico_view(0)
    with torch.no_grad():
        view.block(1).mixer.experts.up_proj[:, 0] = float("inf")
    with pytest.raises(RunError, match=r"block 1 \(moe\)"):
        collect_statistics(view, [pico_ids(0)])


def test_statistics_of_another_model_are_refused() -> None:
    statistics = collect_statistics(pico_view(0), [pico_ids(0)])
    wider = pico_view(0, moe_intermediate_size=40)
    with pytest.raises(ShapeError, match="statistics"):
        rank_units(wider, statistics, min_tokens=1)
    with pytest.raises(ShapeError, match="merge"):
        statistics.merge(collect_statistics(wider, [pico_ids(0)]))
