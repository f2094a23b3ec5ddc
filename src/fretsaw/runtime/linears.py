"""What the linear maps of a running block read, and what goes into the KV cache: seen or changed.

Fused experts bypass hooks, so while a block is open here its experts run on tokens in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock, NemotronHExperts

from fretsaw.core.axes import TensorAxes
from fretsaw.core.precision import LINEAR, kind_of
from fretsaw.core.shape import Block
from fretsaw.families.mixers import KV_SCALES, block_table

Counts = Sequence[int] | None
"""Tokens of each expert, whose inputs follow each other in that order; None without experts."""


class OnInput(Protocol):
    """Asked for every input of a linear map."""

    def __call__(self, weight: str, values: Tensor, *, counts: Counts) -> Tensor:
        """What is read instead of (..., in) by the weight of a name pattern inside the block."""


OnWeight = Callable[[str, Tensor], Tensor]
"""(name pattern, values; of all experts at once) -> what is multiplied by instead."""

OnCache = Callable[[str, Tensor], Tensor]
"""(name of the scale inside the block, keys or values) -> what is kept instead."""


def as_it_is(_: str, weight: Tensor) -> Tensor:
    """The weight itself."""
    return weight


def linear_rows(block: Block) -> tuple[TensorAxes, ...]:
    """Table rows of a block's weights that a linear map multiplies by."""
    return tuple(row for row in block_table(block) if kind_of(row, part="block") in LINEAR)


@contextmanager
def open_block(
    module: NemotronHBlock,
    block: Block,
    *,
    on_input: OnInput,
    on_cache: OnCache,
    on_weight: OnWeight = as_it_is,
) -> Iterator[None]:
    """While open, the block's linear maps and its KV cache take what the functions give.

    Args:
        module: The running block.
        block: Its shape.
        on_input: Asked for every input of a linear map, (..., in).
        on_cache: Asked for keys and values before they are kept, (..., kv_head * head_dim).
        on_weight: Asked for every weight of a linear map, (out, in) or (expert, out, in).
    """
    with ExitStack() as stack:
        for row in linear_rows(block):
            if row.name_dims:
                continue
            linear = module.get_submodule(row.name.removesuffix(".weight"))
            stack.enter_context(
                open_linear(
                    linear,
                    on_input=partial(on_input, row.name, counts=None),
                    on_weight=partial(on_weight, row.name),
                )
            )
            if scale := KV_SCALES.get(row.name):
                hook = linear.register_forward_hook(_output_hook(partial(on_cache, scale)))
                stack.callback(hook.remove)
        for experts in module.modules():
            if isinstance(experts, NemotronHExperts):
                stack.enter_context(
                    _open_experts(experts, block, on_input=on_input, on_weight=on_weight)
                )
        yield


def _same(weight: Tensor) -> Tensor:
    return weight


@contextmanager
def open_linear(
    linear: nn.Module,
    *,
    on_input: Callable[[Tensor], Tensor],
    on_weight: Callable[[Tensor], Tensor] = _same,
) -> Iterator[None]:
    """While open, a linear map multiplies what two functions make of its input and its weight.

    Raises:
        TypeError: the module is no linear map.
    """
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"{type(linear).__name__} is no linear map")

    def forward(values: Tensor) -> Tensor:
        return functional.linear(on_input(values), on_weight(linear.weight), linear.bias)

    linear.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del linear.forward


def _output_hook(on_output: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def changed(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return on_output(output)

    return changed


@contextmanager
def _open_experts(
    experts: NemotronHExperts, block: Block, *, on_input: OnInput, on_weight: OnWeight
) -> Iterator[None]:
    up, down = (row.name for row in linear_rows(block) if row.name_dims)

    def forward(hidden: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        order = indices.flatten().argsort(stable=True)
        counts = indices.flatten().bincount(minlength=experts.num_experts).tolist()
        tokens = order // indices.shape[-1]
        inputs = on_input(up, hidden[tokens], counts=counts)
        inner = _grouped(inputs, on_weight(up, experts.up_proj), counts=counts)
        inner = on_input(down, experts.act_fn(inner), counts=counts)
        output = _grouped(inner, on_weight(down, experts.down_proj), counts=counts)
        output = output * weights.flatten()[order, None]
        result = torch.zeros_like(hidden, dtype=weights.dtype)
        return result.index_add(0, tokens, output).to(hidden.dtype)

    experts.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del experts.forward


def _grouped(values: Tensor, weight: Tensor, *, counts: Sequence[int]) -> Tensor:
    """Each expert's tokens times its weight: (tokens, in), (expert, out, in) -> (tokens, out)."""
    parts = zip(values.split(counts), weight.unbind(), strict=True)
    return torch.cat([functional.linear(part, own) for part, own in parts])
