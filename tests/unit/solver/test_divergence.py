"""Divergence: against float64, down to differences as small as a cut of the Mamba state makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fretsaw.solver.divergence import Divergence, log_sum_exp, reference_of

HIDDEN, VOCAB = 64, 4096


def make(scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the head reads in two models, the head, and the tokens."""
    generator = torch.Generator().manual_seed(0)
    final = torch.randn(2, 16, HIDDEN, generator=generator)
    other = final + scale * torch.randn(2, 16, HIDDEN, generator=generator)
    head = 0.4 * torch.randn(VOCAB, HIDDEN, generator=generator)
    return final, other, head, torch.randint(0, VOCAB, (2, 16), generator=generator)


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1.0])
def test_equals_float64(scale: float) -> None:
    final, other, head, ids = make(scale)
    found = Divergence()
    found.add(reference_of(final, head), other, head=head, ids=ids)
    log_p = (final.double() @ head.double().T).log_softmax(-1)
    log_q = (other.double() @ head.double().T).log_softmax(-1)
    expected = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    assert found.kl == pytest.approx(expected, rel=0.02, abs=5e-8)
    loss = -log_q[:, :-1].gather(-1, ids[:, 1:, None]).mean()
    assert found.loss == pytest.approx(float(loss), rel=1e-6)


def test_the_same_output_has_no_divergence() -> None:
    final, _, head, ids = make(1.0)
    found = Divergence()
    found.add(reference_of(final, head), final, head=head, ids=ids)
    assert (found.kl, found.hidden) == (0.0, 0.0)


def test_hidden_error_is_relative_to_the_reference() -> None:
    final, _, head, ids = make(1.0)
    found = Divergence()
    found.add(reference_of(final, head), 1.1 * final, head=head, ids=ids)
    assert found.samples == pytest.approx([0.01, 0.01], rel=1e-4)


def test_batches_add_up() -> None:
    final, other, head, ids = make(0.3)
    whole, parts = Divergence(), Divergence()
    whole.add(reference_of(final, head), other, head=head, ids=ids)
    for i in range(2):
        one = slice(i, i + 1)
        parts.add(reference_of(final[one], head), other[one], head=head, ids=ids[one])
    assert parts.kl == pytest.approx(whole.kl, rel=1e-6)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)


def test_log_sum_exp_of_large_logits() -> None:
    logits = torch.tensor([[[1000.0, 1000.0, -1000.0]]])
    assert float(log_sum_exp(logits)) == pytest.approx(1000.0 + 0.6931471805599453, rel=1e-12)
