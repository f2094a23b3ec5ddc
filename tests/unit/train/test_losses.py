"""Losses against plain formulas, and the reports R65, R68, R69, R71."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fretsaw.errors import ShapeError
from fretsaw.train import losses
from fretsaw.train.losses import (
    agreement,
    balance_loss,
    cosine_distance,
    kl_divergence,
    next_token_loss,
)
from fretsaw.train.metrics import HeldOut, evaluate_kl
from tests.pico import pico_model


def logits(seed: int, *shape: int) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plain_kl(student: Tensor, teacher: Tensor) -> Tensor:
    p = teacher.log_softmax(-1)
    return functional.kl_div(student.log_softmax(-1), p, log_target=True, reduction="none").sum(-1)


@pytest.mark.parametrize("chunk", [7, 64, 2**20])
def test_kl_and_its_gradient_equal_the_plain_formula(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", chunk)
    student, teacher = logits(0, 2, 5, 11).requires_grad_(), logits(1, 2, 5, 11)
    ours = kl_divergence(student, teacher)
    torch.autograd.backward(2 * ours)
    grad = student.grad
    student = student.detach().requires_grad_()
    plain = plain_kl(student, teacher).mean()
    torch.autograd.backward(2 * plain)
    assert torch.allclose(ours, plain, atol=1e-6)
    assert grad is not None
    assert student.grad is not None
    assert torch.allclose(grad, student.grad, atol=1e-7)


def test_kl_counts_masked_tokens_only() -> None:
    student, teacher = logits(0, 2, 5, 11).requires_grad_(), logits(1, 2, 5, 11)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, :3] = True
    kl = kl_divergence(student, teacher, mask=mask)
    assert torch.allclose(kl, plain_kl(student, teacher)[mask].mean(), atol=1e-6)
    torch.autograd.backward(kl)
    assert student.grad is not None
    assert student.grad[~mask].abs().max() == 0
    assert kl_divergence(student, teacher, mask=torch.zeros_like(mask)) == 0


def test_kl_of_equal_models_is_zero_and_small_ones_are_exact() -> None:
    teacher = logits(0, 4, 64, 1000)
    assert abs(kl_divergence(teacher, teacher).item()) < 1e-7
    student = teacher + 1e-2 * logits(1, 4, 64, 1000)
    exact = plain_kl(student.double(), teacher.double()).mean().item()
    assert kl_divergence(student, teacher).item() == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("odd", [-math.inf, 3e38, -3e38, math.inf])
def test_r68_absurd_teacher_logit_gives_a_finite_gradient(odd: float) -> None:
    student = logits(0, 1, 4, 32).bfloat16().requires_grad_()
    teacher = logits(1, 1, 4, 32).bfloat16()
    teacher[0, 2, 5] = odd
    kl = kl_divergence(student, teacher)
    torch.autograd.backward(kl)
    assert kl.isfinite()
    assert student.grad is not None
    assert student.grad.isfinite().all()
    assert student.grad.dtype == torch.bfloat16


def test_r68_minus_infinity_on_both_sides_is_no_difference() -> None:
    student, teacher = logits(0, 1, 4, 32), logits(1, 1, 4, 32)
    kept = kl_divergence(student[..., :-1], teacher[..., :-1])
    student[..., -1] = teacher[..., -1] = -math.inf
    assert torch.allclose(kl_divergence(student, teacher), kept, atol=1e-6)


def test_r69_padded_vocabulary_is_cut_and_renormalised() -> None:
    student, teacher = logits(0, 2, 5, 120).requires_grad_(), logits(1, 2, 5, 128)
    kl = kl_divergence(student, teacher)
    assert torch.allclose(kl, plain_kl(student, teacher[..., :120]).mean(), atol=1e-6)
    other = kl_divergence(teacher, student.detach())
    assert torch.allclose(other, plain_kl(teacher[..., :120], student).mean(), atol=1e-6)
    torch.autograd.backward(kl)
    assert student.grad is not None


def test_r65_last_position_has_no_next_token() -> None:
    z = logits(0, 2, 6, 16).requires_grad_()
    ids = torch.arange(12).view(2, 6)
    loss = next_token_loss(z, ids)
    expected = functional.cross_entropy(z[:, :-1].reshape(-1, 16), ids[:, 1:].reshape(-1))
    assert torch.allclose(loss, expected)
    torch.autograd.backward(loss)
    assert z.grad is not None
    assert z.grad[:, -1].abs().max() == 0
    assert next_token_loss(z[:, :1], ids[:, :1]) == 0, "no label at all: masked, not NaN"
    mask = torch.zeros(2, 6, dtype=torch.bool)
    assert next_token_loss(z, ids, mask=mask) == 0


def test_cosine_of_hidden_states() -> None:
    states = [logits(i, 2, 5, 8) for i in range(3)]
    assert cosine_distance(states, states).item() == pytest.approx(0, abs=1e-6)
    assert cosine_distance([-s for s in states], states).item() == pytest.approx(2, abs=1e-6)
    fewer = cosine_distance([states[0], -states[2]], states)
    assert fewer.item() == pytest.approx(2, abs=1e-6), "the last alone if a block is gone"
    with pytest.raises(ShapeError, match="hidden states"):
        cosine_distance([states[0][..., :4]], [states[0]])


def test_r71_balance_loss_reaches_the_router_and_is_one_when_even() -> None:
    raw = logits(0, 40, 8).requires_grad_()
    scores = raw.sigmoid()
    loss = balance_loss(scores, scores.topk(2).indices)
    torch.autograd.backward(loss)
    assert raw.grad is not None
    assert raw.grad.abs().max() > 0
    even = torch.full((8, 8), 0.5)
    assert balance_loss(even, torch.arange(16).view(8, 2) % 8).item() == pytest.approx(1)
    crowded = torch.eye(8)[:1].expand(8, 8)
    assert balance_loss(crowded, torch.zeros(8, 1, dtype=torch.int64)).item() == pytest.approx(8)


def test_agreement_and_shapes() -> None:
    z = logits(0, 2, 4, 9)
    assert agreement(z, z) == 1
    other = z.clone()
    other[0, 0] = -z[0, 0]
    assert agreement(other, z) == 7 / 8
    with pytest.raises(ShapeError, match="not about the same tokens"):
        kl_divergence(z, z[:, :3])


def test_evaluation_equals_the_losses_and_can_be_cached() -> None:
    student, teacher = pico_model(0), pico_model(1)
    ids = torch.randint(0, 128, (5, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = student(input_ids=ids).logits, teacher(input_ids=ids).logits
    metrics = evaluate_kl(student, teacher, ids=ids, batch_size=2)
    assert metrics.kl == pytest.approx(kl_divergence(ours, theirs).item(), rel=1e-5)
    assert metrics.loss == pytest.approx(next_token_loss(ours, ids).item(), rel=1e-5)
    assert metrics.agreement == pytest.approx(agreement(ours, theirs))
    assert metrics.teacher_loss == pytest.approx(next_token_loss(theirs, ids).item(), rel=1e-5)
    assert metrics.tokens == 120
    held_out = HeldOut(teacher, ids, batch_size=2)
    assert held_out.measure(student) == held_out.measure(student) == metrics
    itself = evaluate_kl(teacher, teacher, ids=ids, batch_size=5)
    assert abs(itself.kl) < 1e-6
    assert itself.agreement == 1


def test_r69_evaluation_leaves_padding_out() -> None:
    student, teacher = pico_model(0, vocab_size=120), pico_model(1)
    ids = torch.randint(0, 120, (3, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = student(input_ids=ids).logits, teacher(input_ids=ids).logits
    for one, other, z, y in ((student, teacher, ours, theirs), (teacher, student, theirs, ours)):
        metrics = evaluate_kl(one, other, ids=ids, batch_size=2)
        assert metrics.kl == pytest.approx(kl_divergence(z, y).item(), rel=1e-4)
