from __future__ import annotations

import pytest
import torch

from fretsaw.checkpoint.slicing import prefix, reorder
from fretsaw.core.axes import parse_axes
from fretsaw.errors import ShapeError
from fretsaw.families.mixers import MAMBA

IN_PROJ = next(row.axes for row in MAMBA if row.name == "mixer.in_proj.weight")
SIZES = {"mamba_head": 2, "mamba_dim": 3, "group": 2, "state": 4, "hidden": 5}


def _rows(count: int, width: int) -> torch.Tensor:
    """Row i is filled with i."""
    return torch.arange(count, dtype=torch.float32)[:, None].expand(count, width).contiguous()


def test_a_plain_prefix_is_a_view() -> None:
    tensor, sizes = torch.rand(4, 6), {"ffn": 4, "hidden": 6}
    small = prefix(tensor, parse_axes("ffn, hidden"), old=sizes, new=sizes | {"ffn": 2})
    assert torch.equal(small, tensor[:2])
    assert small.data_ptr() == tensor.data_ptr()


def test_state_is_cut_inside_each_group_of_b_and_c_and_nowhere_else() -> None:
    tensor = _rows(6 + 6 + 8 + 8 + 2, 5)
    small = prefix(tensor, IN_PROJ, old=SIZES, new=SIZES | {"state": 3})
    z_and_x = list(range(12))
    b = [12, 13, 14, 16, 17, 18]
    c = [20, 21, 22, 24, 25, 26]
    assert small[:, 0].tolist() == [*z_and_x, *b, *c, 28, 29]


def test_a_fused_dimension_is_unfolded() -> None:
    tensor = _rows(2 * 3 * 4, 1)
    axes = parse_axes("kv_head*q_per_kv*head_dim, 1")
    old = {"kv_head": 2, "q_per_kv": 3, "head_dim": 4}
    half = prefix(tensor, axes, old=old, new=old | {"kv_head": 1})
    assert half[:, 0].tolist() == list(range(12))
    small = prefix(tensor, axes, old=old, new=old | {"head_dim": 1})
    assert small[:, 0].tolist() == [0, 4, 8, 12, 16, 20]


def test_units_are_reordered_along_every_axis_that_has_them() -> None:
    up, down = torch.rand(4, 6), torch.rand(6, 4)
    order = torch.tensor([2, 0, 3, 1])
    sizes = {"ffn": 4, "hidden": 6}
    ordered = reorder(up, parse_axes("ffn, hidden"), sizes=sizes, orders={"ffn": order})
    assert torch.equal(ordered, up[order])
    ordered = reorder(down, parse_axes("hidden, ffn"), sizes=sizes, orders={"ffn": order})
    assert torch.equal(ordered, down[:, order])


def test_each_expert_has_an_order_of_its_own() -> None:
    sizes = {"expert": 3, "ffn": 4, "latent": 2}
    fused = torch.rand(3, 4, 2)
    orders = {"ffn": torch.stack([torch.randperm(4) for _ in range(3)])}

    ordered = reorder(fused, parse_axes("expert, ffn, latent"), sizes=sizes, orders=orders)

    for expert in range(3):
        assert torch.equal(ordered[expert], fused[expert][orders["ffn"][expert]])
        axes, bound = parse_axes("ffn, latent"), {"expert": expert}
        alone = reorder(fused[expert], axes, sizes=sizes, orders=orders, bound=bound)
        assert torch.equal(alone, ordered[expert])


def test_each_group_has_an_order_of_its_own_in_b_and_in_c() -> None:
    tensor = _rows(30, 5)
    orders = {"state": torch.tensor([[3, 2, 1, 0], [0, 1, 3, 2]])}
    ordered = reorder(tensor, IN_PROJ, sizes=SIZES, orders=orders)[:, 0].tolist()
    assert ordered[:12] == list(range(12))
    assert ordered[12:20] == [15, 14, 13, 12, 16, 17, 19, 18]
    assert ordered[20:28] == [23, 22, 21, 20, 24, 25, 27, 26]
    assert ordered[28:] == [28, 29]


def test_an_order_of_units_that_the_tensor_lacks_changes_nothing() -> None:
    tensor, orders = torch.rand(6), {"ffn": torch.arange(4)}
    same = reorder(tensor, parse_axes("hidden"), sizes={"hidden": 6}, orders=orders)
    assert torch.equal(same, tensor)


def test_a_tensor_of_another_shape_is_refused() -> None:
    sizes = {"ffn": 4, "hidden": 6}
    with pytest.raises(ShapeError, match=r"\(3, 6\); its table gives \(4, 6\)"):
        prefix(torch.rand(3, 6), parse_axes("ffn, hidden"), old=sizes, new=sizes)
