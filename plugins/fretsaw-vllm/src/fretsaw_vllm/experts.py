"""Squared-ReLU experts without a gate, for vLLM on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.oracle import unquantized

REFUSAL = "is_act_and_mul=False is supported only"
"""How vLLM 0.32 begins its refusal, raised at the very end of `FusedMoEConfig.__post_init__`."""


class SquaredReluExperts(CPUUnquantizedExperts):
    """``down @ relu(up @ x)^2`` of each chosen expert, weighted, summed over a token's experts."""

    @staticmethod
    def is_supported_config(cls: type, config: FusedMoEConfig, *rest: Any) -> tuple[bool, Any]:
        """As its grandparent: any width will do, nothing is packed."""
        return super(CPUUnquantizedExperts, cls).is_supported_config(cls, config, *rest)

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation == MoEActivation.RELU2_NO_MUL

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Weights stay as they are: (expert, ffn, latent) and (expert, latent, ffn)."""

    def apply(
        self,
        *,
        output: Tensor,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        apply_router_weight_on_input: bool,
        **_: Any,
    ) -> None:
        """Fill `output`, (tokens, latent); tokens are sorted by expert, so each runs once."""
        top_k = topk_ids.shape[1]
        experts, order = topk_ids.flatten().sort()
        tokens = order // top_k
        counts = torch.bincount(experts, minlength=w1.shape[0]).tolist()
        results = hidden_states.new_empty(len(order), w2.shape[1])
        inputs = hidden_states[tokens]
        start = 0
        for expert, count in enumerate(counts):
            if count:
                part = slice(start, start + count)
                inner = torch.relu_(inputs[part] @ w1[expert].T).square_()
                torch.mm(inner, w2[expert].T, out=results[part])
                start += count
        if not apply_router_weight_on_input:
            results *= topk_weights.flatten()[order, None].to(results.dtype)
        output.zero_().index_add_(0, tokens, results)


def add_cpu_experts() -> None:
    """Let vLLM build experts without a gate on a CPU, and find `SquaredReluExperts` for them."""
    if getattr(FusedMoEConfig.__post_init__, "is_fretsaw", False):
        return
    FusedMoEConfig.__post_init__ = _without_refusal(FusedMoEConfig.__post_init__)
    kernels_of = unquantized.backend_to_kernel_cls

    def with_squared_relu(backend: unquantized.UnquantizedMoeBackend) -> list[type]:
        is_cpu = backend == unquantized.UnquantizedMoeBackend.CPU
        return [*kernels_of(backend), *([SquaredReluExperts] if is_cpu else [])]

    unquantized.backend_to_kernel_cls = with_squared_relu


def _without_refusal(post_init: Callable[[Any], None]) -> Callable[[Any], None]:
    def checked(self: FusedMoEConfig) -> None:
        try:
            post_init(self)
        except NotImplementedError as error:
            if not str(error).startswith(REFUSAL):
                raise

    checked.is_fretsaw = True
    return checked
