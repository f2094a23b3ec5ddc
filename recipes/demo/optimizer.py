"""Optimiser of the demo parent: Muon for matrices (experts batched), AdamW for the rest."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

ADAM_ONLY = ("embeddings.weight", "lm_head.weight", "gate.weight", "conv1d.weight")


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal, matrix by matrix; stacks of matrices at once.

    Source: Muon, Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
        update = orthogonalize(parameter.grad.lerp(state["momentum"], group["momentum"]))
        rows, columns = parameter.shape[-2:]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrix of each (..., rows, columns), by five Newton-Schulz steps."""
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if is_tall else x


def make_optimizers(modules: dict[str, nn.Module]) -> list[torch.optim.Optimizer]:
    """Muon and AdamW over the parameters of the modules; each group keeps its peak as `peak_lr`."""
    matrices, tables, rest = [], [], []
    for module in modules.values():
        for name, parameter in module.named_parameters():
            if parameter.ndim >= 2 and not name.endswith(ADAM_ONLY):
                matrices.append(parameter)
            elif name.endswith(("embeddings.weight", "lm_head.weight")):
                tables.append(parameter)
            else:
                rest.append(parameter)
    adam = torch.optim.AdamW(
        [
            {"params": tables, "lr": 4e-3},
            {"params": rest, "lr": 3e-3},
        ],
        betas=(0.9, 0.95),
        weight_decay=0.0,
        fused=True,
    )
    optimizers = [Muon(matrices, lr=0.02, weight_decay=0.1), adam]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers
