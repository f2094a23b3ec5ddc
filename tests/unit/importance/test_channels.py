"""Channel importance: hand numbers, experts without tokens, shapes that disagree."""

from __future__ import annotations

import pytest
import torch

from fretsaw.errors import ShapeError
from fretsaw.importance.accumulate import UnitSums
from fretsaw.importance.channels import channel_importance, channel_sums


def test_sums_by_hand() -> None:
    activations = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    sums = channel_sums(activations, torch.tensor([0.5, 2.0]))
    assert sums.dtype == torch.float64
    assert sums.tolist() == [6.5, 1.0]


def test_importance_by_hand() -> None:
    sums = UnitSums(torch.tensor([[6.0, 2.0]]).double(), torch.tensor([2]))
    down = torch.tensor([[[3.0, 0.0], [4.0, 1.0]]])
    found = channel_importance(sums, up_proj=torch.ones(1, 2, 2), down_proj=down, min_tokens=1)
    assert found.values.tolist() == [[3.0 * 5.0, 1.0 * 1.0]]
    assert found.uncalibrated == ()


def test_expert_with_few_tokens_falls_back_to_weights_and_is_listed() -> None:
    total = torch.tensor([[6.0, 2.0], [0.0, 0.0], [1e9, 0.0]]).double()
    sums = UnitSums(total, torch.tensor([8, 0, 3]))
    up = torch.tensor([1.0, 2.0]).reshape(1, 2, 1).expand(3, 2, 4)
    down = torch.ones(3, 4, 2)
    found = channel_importance(sums, up_proj=up, down_proj=down, min_tokens=4)
    assert found.uncalibrated == (1, 2)
    assert torch.isfinite(found.values).all()
    assert found.values[1].tolist() == found.values[2].tolist() == [4.0, 8.0]


def test_plain_mlp() -> None:
    sums = UnitSums(torch.tensor([4.0, 6.0]).double(), torch.tensor(2))
    down = torch.tensor([[1.0, 2.0]])
    found = channel_importance(sums, up_proj=torch.ones(2, 3), down_proj=down, min_tokens=2)
    assert found.values.tolist() == [2.0, 6.0]
    few = channel_importance(sums, up_proj=torch.ones(2, 3), down_proj=down, min_tokens=3)
    assert few.uncalibrated == (0,)


def test_statistics_of_another_model_are_refused() -> None:
    with pytest.raises(ShapeError, match="statistics"):
        channel_importance(
            UnitSums.zeros(2, 8),
            up_proj=torch.ones(2, 6, 4),
            down_proj=torch.ones(2, 4, 6),
            min_tokens=1,
        )
