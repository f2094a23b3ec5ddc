"""What the student is pulled by: the teacher's distribution above all; and how near it has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fretsaw.errors import ShapeError

CHUNK_ELEMENTS = 2**20
"""Logits per chunk: bounds the extra memory and, on a CPU, keeps a chunk in the cache."""

LOGIT_LIMIT = 1e30
"""Infinite or absurd logits are clamped to this: every product with a probability stays finite."""


def kl_divergence(
    student_logits: Tensor, teacher_logits: Tensor, *, mask: Tensor | None = None
) -> Tensor:
    """Forward KL of the student from the teacher, mean over tokens, in float32.

        KL(p || q) = sum_v p[v] * (log p[v] - log q[v]),  p = softmax(teacher), q = softmax(student)

    If the vocabularies differ, both are cut to the ids that both have and renormalised; whether
    that makes sense is `packing.shared_vocab`'s to say. An entry of minus infinity has probability
    zero; the gradient, (q - p) / tokens, is finite for all finite student logits. The work is done
    in chunks of tokens; beyond the logits only their gradient is held.

    Args:
        student_logits: (..., vocab), any float dtype.
        teacher_logits: (..., vocab), any float dtype; no gradient flows into it.
        mask: (...) bool, tokens that count; default: all.

    Returns:
        Scalar float32, nats per token; 0 if no token counts.

    Raises:
        ShapeError: the two are not about the same tokens.

    Source: Puzzle, arXiv:2411.19146, section 5 (global distillation); Hinton et al. 2015.
    """
    _check_same_tokens(student_logits, teacher_logits)
    vocab = min(student_logits.shape[-1], teacher_logits.shape[-1])
    student = student_logits[..., :vocab].flatten(0, -2)
    teacher = teacher_logits[..., :vocab].flatten(0, -2)
    if mask is not None:
        student, teacher = student[mask.flatten()], teacher[mask.flatten()]
    return cast("Tensor", _ForwardKL.apply(student, teacher))  # type: ignore[no-untyped-call]


class _ForwardKL(torch.autograd.Function):
    """KL whose gradient is computed with the value, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor) -> Tensor:
        tokens, vocab = student.shape
        total = torch.zeros((), dtype=torch.float64, device=student.device)
        ctx.grad = torch.empty_like(student) if ctx.needs_input_grad[0] else None
        step = max(1, CHUNK_ELEMENTS // vocab)
        for start in range(0, tokens, step):
            chunk = slice(start, start + step)
            log_p = log_probabilities(teacher[chunk])
            log_q = log_probabilities(student[chunk])
            p = log_p.exp()
            total += torch.linalg.vecdot(p, log_p.sub_(log_q)).sum(dtype=torch.float64)
            if ctx.grad is not None:
                ctx.grad[chunk] = log_q.exp_().sub_(p).div_(tokens)
        return (total / max(tokens, 1)).float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        result, ctx.grad = ctx.grad, None
        return (None if result is None else result.mul_(grad)), None


def log_probabilities(logits: Tensor) -> Tensor:
    """Float32 log-softmax over the last axis that no infinite logit can turn into NaN."""
    return logits.float().clamp(-LOGIT_LIMIT, LOGIT_LIMIT).log_softmax(-1)


def next_token_loss(logits: Tensor, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of each next token; the last position has none and does not count.

    Args:
        logits: (sequences, tokens, vocab), any float dtype.
        ids: (sequences, tokens) int64.
        mask: (sequences, tokens) bool, tokens that count as labels; default: all.

    Returns:
        Scalar float32, nats; 0 if there is no label.
    """
    labels = ids[:, 1:].flatten()
    losses = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels, reduction="none"
    )
    counts = torch.ones_like(losses) if mask is None else mask[:, 1:].flatten().to(losses.dtype)
    return torch.where(counts > 0, losses, 0.0).sum() / counts.sum().clamp(min=1)


def cosine_distance(
    student: Sequence[Tensor], teacher: Sequence[Tensor], *, mask: Tensor | None = None
) -> Tensor:
    """Mean of 1 - cos(student, teacher) over tokens and hidden states.

    Args:
        student: Hidden states, each (sequences, tokens, hidden): the embedding and each block's.
        teacher: The same; if the numbers of blocks differ, the last ones alone are compared.
        mask: (sequences, tokens) bool, tokens that count; default: all.

    Returns:
        Scalar float32 between 0 and 2.

    Raises:
        ShapeError: the hidden sizes differ.

    Source: Puzzle, arXiv:2411.19146, section 5 (hidden-state cosine of global distillation).
    """
    pairs = list(zip(student, teacher, strict=False))
    if len(student) != len(teacher):
        pairs = [(student[-1], teacher[-1])]
    distances = []
    for ours, theirs in pairs:
        if ours.shape != theirs.shape:
            raise ShapeError(
                f"hidden states of student and teacher are {list(ours.shape)} and "
                f"{list(theirs.shape)}",
                "set distill.cosine_weight: 0 where the hidden size was cut",
            )
        distance = 1 - functional.cosine_similarity(ours.float(), theirs.float(), dim=-1)
        distances.append(distance.mean() if mask is None else distance[mask].mean())
    return torch.stack(distances).mean()


def balance_loss(scores: Tensor, chosen: Tensor) -> Tensor:
    """Load-balance loss of one router: 1 when tokens spread evenly, num_experts at worst.

        loss = sum_e f[e] * P[e],  f[e] = share of choices that fell on e, times experts,
        P[e] = mean_t scores[t, e] / sum_e' scores[t, e']

    The gradient reaches the router through P; f counts and has none.

    Args:
        scores: Sigmoid router scores without correction bias, (tokens, expert).
        chosen: Experts that each token went to, (tokens, top_k) int64.

    Returns:
        Scalar float32.

    Source: DeepSeek-V3, arXiv:2412.19437, equations 17-20, over the batch instead of a sequence.
    """
    scores = scores.float()
    num_experts = scores.shape[-1]
    counts = torch.bincount(chosen.flatten(), minlength=num_experts).float()
    share = (scores / scores.sum(-1, keepdim=True)).mean(0)
    return num_experts * torch.dot(counts / counts.sum(), share)


def agreement(student_logits: Tensor, teacher_logits: Tensor) -> float:
    """Share of tokens for which both models' most likely next token is the same.

    Raises:
        ShapeError: the two are not about the same tokens.
    """
    _check_same_tokens(student_logits, teacher_logits)
    return (student_logits.argmax(-1) == teacher_logits.argmax(-1)).double().mean().item()


def _check_same_tokens(student: Tensor, teacher: Tensor) -> None:
    if student.shape[:-1] != teacher.shape[:-1]:
        raise ShapeError(
            f"logits of student {list(student.shape)} and teacher {list(teacher.shape)} are not "
            "about the same tokens",
            "run both models on the same batch",
        )
