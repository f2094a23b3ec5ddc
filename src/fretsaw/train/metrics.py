"""How near a student is to its teacher on held-out text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fretsaw.train.losses import CHUNK_ELEMENTS, LOGIT_LIMIT, log_probabilities

CACHE_BYTES = 256 * 2**20
"""Teacher distributions of the held-out text are kept if they fit into this, else recomputed."""


@dataclass(frozen=True)
class Metrics:
    """A student against a teacher on held-out text.

    Attributes:
        kl: Mean KL(teacher || student) per token, nats.
        loss: Mean next-token loss of the student, nats.
        agreement: Share of tokens whose most likely next token is the teacher's.
        tokens: Tokens measured.
    """

    kl: float
    loss: float
    agreement: float
    tokens: int


class _Reference(NamedTuple):
    """The teacher on one batch, tokens flattened."""

    probabilities: Tensor
    negative_entropy: Tensor
    best: Tensor


class HeldOut:
    """Held-out text, ready to measure any student against one teacher on it.

    The teacher's distributions are computed once if they fit into `cache_bytes`.

    Args:
        teacher: In evaluation mode.
        ids: (sequences, tokens) int64.
        batch_size: Sequences per forward pass.
        cache_bytes: Bound on what is kept of the teacher.
    """

    def __init__(
        self,
        teacher: PreTrainedModel,
        ids: Tensor,
        *,
        batch_size: int,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._teacher = teacher
        self._ids = ids
        self._batch_size = batch_size
        self._cache_bytes = cache_bytes
        self._kept: list[_Reference] = []

    @torch.no_grad()
    def measure(self, student: PreTrainedModel) -> Metrics:
        """KL, loss and agreement of a student; its training mode is left as it was.

        KL(p || q) = sum_v p log p - sum_v p z_q + logsumexp(z_q)
        """
        was_training = student.training
        student.train(False)
        sums = torch.zeros(3, dtype=torch.float64)
        for reference, batch in self._batches():
            sums += _compare(reference, _logits(student, batch), ids=batch)
        student.train(was_training)
        labels = self._ids.shape[0] * (self._ids.shape[1] - 1)
        tokens = self._ids.numel()
        kl, loss, hits = (sums / torch.tensor([tokens, max(labels, 1), tokens])).tolist()
        return Metrics(kl, loss, hits, tokens)

    def first(self, count: int) -> HeldOut:
        """The first sequences alone."""
        return HeldOut(self._teacher, self._ids[:count], batch_size=self._batch_size)

    def _batches(self) -> Iterator[tuple[_Reference, Tensor]]:
        batches = torch.split(self._ids, self._batch_size)
        if self._kept:
            yield from zip(self._kept, batches, strict=True)
            return
        kept = []
        for batch in batches:
            reference = _reference(_logits(self._teacher, batch))
            if reference.probabilities.nbytes * len(batches) <= self._cache_bytes:
                kept.append(reference)
            yield reference, batch
        self._kept = kept if len(kept) == len(batches) else []


def evaluate_kl(
    student: PreTrainedModel, teacher: PreTrainedModel, *, ids: Tensor, batch_size: int
) -> Metrics:
    """How near the student is to the teacher; a model against itself gives its own loss.

    Args:
        student: Any causal language model.
        teacher: One with the same tokens; padding of either vocabulary is left out.
        ids: Held-out text, (sequences, tokens) int64, no padding.
        batch_size: Sequences per forward pass.
    """
    return HeldOut(teacher, ids, batch_size=batch_size, cache_bytes=0).measure(student)


def _logits(model: PreTrainedModel, batch: Tensor) -> Tensor:
    """Logits of (sequences, tokens), flattened to (sequences * tokens, vocab)."""
    logits: Tensor = model(input_ids=batch.to(model.device), use_cache=False).logits
    return logits.flatten(0, 1)


def _reference(logits: Tensor) -> _Reference:
    log_p = log_probabilities(logits)
    p = log_p.exp()
    return _Reference(p, torch.linalg.vecdot(p, log_p), logits.argmax(-1))


def _compare(reference: _Reference, logits: Tensor, *, ids: Tensor) -> Tensor:
    """Sums of KL, next-token loss and agreements over a batch, (3,) float64 on the CPU."""
    vocab = min(reference.probabilities.shape[-1], logits.shape[-1])
    is_cut = vocab < reference.probabilities.shape[-1]
    labels = ids.to(logits.device).roll(-1, dims=1).flatten()
    is_label = torch.ones_like(ids, dtype=torch.bool)
    is_label[:, -1] = False
    counts = is_label.flatten().to(logits.device)
    sums = torch.zeros(3, dtype=torch.float64)
    step = max(1, CHUNK_ELEMENTS // vocab)
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        z = logits[rows, :vocab].float().clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
        part = _cut(reference, rows, vocab) if is_cut else _Reference(*(t[rows] for t in reference))
        normaliser = z.logsumexp(-1)
        kl = part.negative_entropy - torch.linalg.vecdot(part.probabilities, z) + normaliser
        loss = (normaliser - z.gather(-1, labels[rows, None])[:, 0]) * counts[rows]
        hits = (z.argmax(-1) == part.best).sum()
        sums += torch.stack([kl.double().sum(), loss.double().sum(), hits.double()]).cpu()
    return sums


def _cut(reference: _Reference, rows: slice, vocab: int) -> _Reference:
    """The teacher's distribution over the first ids alone, renormalised."""
    p = reference.probabilities[rows, :vocab]
    p = p / p.sum(-1, keepdim=True)
    return _Reference(p, -torch.special.entr(p).sum(-1), p.argmax(-1))
