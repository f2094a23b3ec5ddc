"""How long the parts of healing take that lie outside of the blocks: head, loss, optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fretsaw.runtime.gauge import Gauge, seconds_of
from fretsaw.train.losses import kl_divergence
from fretsaw.train.metrics import compare_logits, reference_logits


@dataclass(frozen=True)
class HeadGauge:
    """Times what the head's outputs go through while healing.

    Attributes:
        gauge: Of the model's blocks.
    """

    gauge: Gauge

    def learn(self, *, sequences: int, length: int) -> float:
        """Seconds of both heads on a batch, their KL, and its way back to the last block."""

        def run() -> None:
            final = self._final(length).requires_grad_()
            with torch.no_grad():
                target = self._logits(self._final(length))
            kl_divergence(self._logits(final), target).backward()

        return sequences * seconds_of(run)

    @torch.no_grad()
    def compare(self, *, sequences: int, length: int) -> float:
        """Seconds of the head on held-out text, and of comparing it with the teacher's."""
        logits = self._logits(self._final(length)).flatten(0, 1)
        ids = torch.zeros(1, length, dtype=torch.long)
        reference = reference_logits(logits, ids=ids)

        def run() -> None:
            compare_logits(reference, self._logits(self._final(length)).flatten(0, 1), ids=ids)

        return sequences * seconds_of(run)

    @torch.no_grad()
    def refer(self, *, sequences: int, length: int) -> float:
        """Seconds of the teacher's head on held-out text, and of what is kept of it."""
        ids = torch.zeros(1, length, dtype=torch.long)

        def run() -> None:
            reference_logits(self._logits(self._final(length)).flatten(0, 1), ids=ids)

        return sequences * seconds_of(run)

    def optimise(self) -> float:
        """Seconds a parameter: gradients looked at and clipped, and AdamW's step."""
        parameters = self.gauge.parameters()
        for p in parameters:
            p.requires_grad_(True).grad = torch.zeros_like(p)
        optimizer = torch.optim.AdamW(parameters, lr=1e-9, fused=True)

        def run() -> None:
            torch.stack([p.grad.norm() for p in parameters if p.grad is not None])
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()

        seconds = seconds_of(run)
        for p in parameters:
            p.requires_grad_(False).grad = None
        return seconds / sum(p.numel() for p in parameters)

    def _final(self, length: int) -> Tensor:
        return self.gauge.hidden(1, length)

    def _logits(self, final: Tensor) -> Tensor:
        logits: Tensor = self.gauge.view.model.lm_head(final)
        return logits
