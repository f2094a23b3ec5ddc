"""What the linear maps of a running block read, and what goes into the KV cache: seen or changed.

Fused experts bypass hooks, so while a block is open here its experts run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock, NemotronHExperts

from fretsaw.core.axes import TensorAxes
from fretsaw.core.precision import LINEAR, kind_of
from fretsaw.core.shape import Block
from fretsaw.families.mixers import KV_SCALES, block_table


class Multiplier(NamedTuple):
    """A weight of a block: its name pattern inside the block, and which expert's."""

    name: str
    expert: int | None = None


OnInput = Callable[[Multiplier, Tensor], Tensor]
"""(weight, its input) -> what is read instead."""

OnCache = Callable[[str, Tensor], Tensor]
"""(name of the scale inside the block, keys or values) -> what is kept instead."""


def linear_rows(block: Block) -> tuple[TensorAxes, ...]:
    """Table rows of a block's weights that a linear map multiplies by."""
    return tuple(row for row in block_table(block) if kind_of(row, part="block") in LINEAR)


@contextmanager
def open_block(
    module: NemotronHBlock, block: Block, *, on_input: OnInput, on_cache: OnCache
) -> Iterator[None]:
    """While open, the block's linear maps and its KV cache take what the two functions give.

    Args:
        module: The running block.
        block: Its shape.
        on_input: Asked for every input of a linear map, (..., in); of an expert with its tokens.
        on_cache: Asked for keys and values before they are kept, (..., kv_head * head_dim).
    """
    with ExitStack() as stack:
        for row in linear_rows(block):
            if row.name_dims:
                continue
            linear = module.get_submodule(row.name.removesuffix(".weight"))
            stack.enter_context(open_linear(linear, partial(on_input, Multiplier(row.name))))
            if scale := KV_SCALES.get(row.name):
                hook = linear.register_forward_hook(_output_hook(partial(on_cache, scale)))
                stack.callback(hook.remove)
        for experts in module.modules():
            if isinstance(experts, NemotronHExperts):
                stack.enter_context(_open_experts(experts, block, on_input=on_input))
        yield


@contextmanager
def open_linear(linear: nn.Module, on_input: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While open, a linear map reads what a function makes of its input."""

    def changed(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (on_input(inputs[0]), *inputs[1:])

    hook = linear.register_forward_pre_hook(changed)
    try:
        yield
    finally:
        hook.remove()


def _output_hook(on_output: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def changed(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return on_output(output)

    return changed


@contextmanager
def _open_experts(experts: NemotronHExperts, block: Block, *, on_input: OnInput) -> Iterator[None]:
    up, down = (row.name for row in linear_rows(block) if row.name_dims)

    def forward(hidden: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        result = torch.zeros_like(hidden, dtype=weights.dtype)
        for expert in range(experts.num_experts):
            tokens, place = torch.where(indices == expert)
            inputs = on_input(Multiplier(up, expert), hidden[tokens])
            inner = experts.act_fn(functional.linear(inputs, experts.up_proj[expert]))
            inner = on_input(Multiplier(down, expert), inner)
            output = functional.linear(inner, experts.down_proj[expert])
            result = result.index_add(0, tokens, output * weights[tokens, place, None])
        return result.to(hidden.dtype)

    experts.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del experts.forward
