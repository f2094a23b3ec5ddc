"""Weights as they will be on disk: what is measured and kept is what a reader gets back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

StoredDtypes = Mapping[str, torch.dtype]
"""Running name of a tensor -> dtype that it is stored in."""


@contextmanager
def as_stored(model: nn.Module, dtypes: StoredDtypes) -> Iterator[None]:
    """While open, the model computes with its weights rounded as on disk; then they are restored.

    Healing moves weights by little: after a gentle cut by less than the spacing of bfloat16, so
    that a KL measured on float32 weights may not be that of the checkpoint that is written.

    Args:
        model: Changed in place and back.
        dtypes: Tensors that are not named keep their values.
    """
    state = model.state_dict()
    exact = {name: state[name].clone() for name in dtypes}
    try:
        round_weights(model, dtypes)
        yield
    finally:
        for name, tensor in exact.items():
            state[name].copy_(tensor)


def round_weights(model: nn.Module, dtypes: StoredDtypes) -> None:
    """Round weights, in place, to what a file of these dtypes gives back."""
    state = model.state_dict()
    for name, dtype in dtypes.items():
        state[name].copy_(state[name].to(dtype))
