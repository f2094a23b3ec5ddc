"""How near a student is to its teacher on held-out text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fretsaw.train.losses import CHUNK_ELEMENTS, LOGIT_LIMIT, log_probabilities

CACHE_BYTES = 256 * 2**20
"""Teacher distributions of the held-out text are kept if they fit into this, else recomputed."""


class SequenceMetrics(NamedTuple):
    """The figures of `Metrics` on one sequence; intervals are drawn from them."""

    kl: float
    loss: float
    agreement: float
    teacher_loss: float


@dataclass(frozen=True)
class Metrics:
    """A student against a teacher on held-out text.

    Attributes:
        kl: Mean KL(teacher || student) per token, nats.
        loss: Mean next-token loss of the student, nats.
        agreement: Share of tokens whose most likely next token is the teacher's.
        teacher_loss: The same of the teacher, nats.
        tokens: Tokens measured.
        sequences: The same on each sequence, in order; all are equally long.
    """

    kl: float
    loss: float
    agreement: float
    teacher_loss: float
    tokens: int
    sequences: tuple[SequenceMetrics, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Metrics:
        """From plain data."""
        sequences = tuple(SequenceMetrics(*row) for row in data.get("sequences", ()))
        return cls(**{**data, "sequences": sequences})


class _Reference(NamedTuple):
    """The teacher on one batch, tokens flattened; its loss summed over each sequence."""

    probabilities: Tensor
    negative_entropy: Tensor
    best: Tensor
    loss_sums: Tensor


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
        sums = torch.cat(
            [
                compare_logits(reference, _logits(student, batch), ids=batch)
                for reference, batch in self._batches()
            ]
        )
        student.train(was_training)
        tokens = self._ids.shape[1]
        labels = max(1, tokens - 1)
        means = sums / torch.tensor([tokens, labels, tokens, labels])
        sequences = tuple(SequenceMetrics(*row) for row in means.tolist())
        kl, loss, agreement, teacher_loss = means.mean(0).tolist()
        return Metrics(kl, loss, agreement, teacher_loss, self._ids.numel(), sequences)

    def _batches(self) -> Iterator[tuple[_Reference, Tensor]]:
        batches = torch.split(self._ids, self._batch_size)
        if self._kept:
            yield from zip(self._kept, batches, strict=True)
            return
        kept = []
        for batch in batches:
            reference = reference_logits(_logits(self._teacher, batch), ids=batch)
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


def reference_logits(logits: Tensor, *, ids: Tensor) -> _Reference:
    """What is kept of a teacher's logits, (sequences * tokens, vocab), of the same ids."""
    log_p = log_probabilities(logits)
    p = log_p.exp()
    labels, counts = _labels(ids, device=logits.device)
    losses = -(log_p.gather(-1, labels[:, None])[:, 0] * counts)
    loss_sums = losses.double().view(ids.shape).sum(1).cpu()
    return _Reference(p, torch.linalg.vecdot(p, log_p), logits.argmax(-1), loss_sums)


def _labels(ids: Tensor, *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Next token of each position, flattened; and where there is one."""
    labels = ids.roll(-1, dims=1)
    counts = torch.ones_like(ids, dtype=torch.bool)
    counts[:, -1] = False
    return labels.flatten().to(device), counts.flatten().to(device)


def compare_logits(reference: _Reference, logits: Tensor, *, ids: Tensor) -> Tensor:
    """Sums over each sequence of KL, loss, agreements and the teacher's loss.

    Returns:
        (sequences, 4) float64 on the CPU.
    """
    vocab = min(reference.probabilities.shape[-1], logits.shape[-1])
    labels, counts = _labels(ids, device=logits.device)
    parts = []
    step = max(1, CHUNK_ELEMENTS // vocab)
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        z = logits[rows, :vocab].float().clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
        p, negative_entropy, best = _rows(reference, rows, vocab=vocab)
        normaliser = z.logsumexp(-1)
        kl = negative_entropy - torch.linalg.vecdot(p, z) + normaliser
        loss = (normaliser - z.gather(-1, labels[rows, None])[:, 0]) * counts[rows]
        hits = z.argmax(-1) == best
        parts.append(torch.stack([kl.double(), loss.double(), hits.double()], dim=1))
    sums = torch.cat(parts).view(*ids.shape, 3).sum(1).cpu()
    return torch.cat([sums, reference.loss_sums[:, None]], dim=1)


def _rows(reference: _Reference, rows: slice, *, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, negative entropy and best token of some tokens, over the first ids alone."""
    p = reference.probabilities[rows]
    if vocab == p.shape[-1]:
        return p, reference.negative_entropy[rows], reference.best[rows]
    p = p[:, :vocab] / p[:, :vocab].sum(-1, keepdim=True)
    return p, -torch.special.entr(p).sum(-1), p.argmax(-1)
