"""Divergence: against float64, down to differences as small as a cut of the Mamba state makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fretsaw.solver.divergence import Divergence, reference_of


def make(scale: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, 16, 4096, generator=generator)
    other = logits + scale * torch.randn(2, 16, 4096, generator=generator)
    return logits, other, torch.randint(0, 4096, (2, 16), generator=generator)


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1.0])
def test_equals_float64(scale: float) -> None:
    logits, other, ids = make(scale)
    found = Divergence()
    found.add(reference_of(logits), other, ids=ids)
    log_p, log_q = logits.double().log_softmax(-1), other.double().log_softmax(-1)
    expected = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    assert found.kl == pytest.approx(expected, rel=0.02, abs=5e-8)
    loss = -log_q[:, :-1].gather(-1, ids[:, 1:, None]).mean()
    assert found.loss == pytest.approx(float(loss), rel=1e-6)


def test_the_same_output_has_no_divergence() -> None:
    logits, _, ids = make(1.0)
    found = Divergence()
    found.add(reference_of(logits), logits, ids=ids)
    assert abs(found.kl) < 1e-8


def test_batches_add_up() -> None:
    logits, other, ids = make(0.3)
    whole, parts = Divergence(), Divergence()
    whole.add(reference_of(logits), other, ids=ids)
    for i in range(2):
        parts.add(reference_of(logits[i : i + 1]), other[i : i + 1], ids=ids[i : i + 1])
    assert parts.kl == pytest.approx(whole.kl, rel=1e-6)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
