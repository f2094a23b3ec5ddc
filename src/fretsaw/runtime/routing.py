"""What the routers of a running model decide in a forward pass, with their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHTopkRouter


@dataclass(frozen=True)
class Routing:
    """One router on one batch.

    Attributes:
        scores: Sigmoid scores without correction bias, (tokens, expert) float32; carries the
            router's gradient.
        chosen: Experts of each token, (tokens, top_k) int64.
    """

    scores: Tensor
    chosen: Tensor


@contextmanager
def record_routing(model: nn.Module) -> Iterator[list[Routing]]:
    """Collects the routing of every MoE block, in order, while the context is open."""
    records: list[Routing] = []

    def record(_module: nn.Module, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        router_logits, _, chosen = output
        records.append(Routing(router_logits.sigmoid(), chosen))

    routers = [module for module in model.modules() if isinstance(module, NemotronHTopkRouter)]
    hooks = [router.register_forward_hook(record) for router in routers]
    try:
        yield records
    finally:
        for hook in hooks:
            hook.remove()
