"""How far one model's output lies from another's, where both share the head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import mse_loss


class Reference(NamedTuple):
    """What the reference model gives on a batch; no array over the vocabulary is kept.

    Attributes:
        final: What its head reads, (sequences, tokens, hidden) float32.
        expected_row: The head's rows averaged under its distribution, the same shape.
        normaliser: log sum exp of its logits, (sequences, tokens) float64.
    """

    final: Tensor
    expected_row: Tensor
    normaliser: Tensor


def reference_of(final: Tensor, head: Tensor) -> Reference:
    """Reference from what the head reads, (sequences, tokens, hidden), and the head's weight.

    Args:
        final: Output of the last norm.
        head: (vocab, hidden).
    """
    final, head = final.float(), head.float()
    logits = final @ head.T
    return Reference(final, logits.softmax(-1) @ head, log_sum_exp(logits))


@dataclass
class Divergence:
    """Running sums of KL, loss and hidden-state error.

    With a head W in common, the expected logit needs no pass over the vocabulary:

        KL(p || q) = sum_v p (z_p - z_q) + lse(z_q) - lse(z_p)
                   = (sum_v p W_v) (h_p - h_q) + lse(z_q) - lse(z_p)

    Differences are taken before products, and the normalisers in float64: summing p z first is off
    by 2e-5 to 5e-5 in float32, more than a whole cut of the Mamba state costs.

    Source: own.
    """

    sum_kl: float = 0.0
    sum_loss: float = 0.0
    num_tokens: int = 0
    num_labels: int = 0
    samples: list[float] = field(default_factory=list)

    def add(self, reference: Reference, final: Tensor, *, head: Tensor, ids: Tensor) -> None:
        """Add a batch.

        Args:
            reference: Of the same tokens and the same head.
            final: What the head reads in the model that is compared, (sequences, tokens, hidden).
            head: (vocab, hidden).
            ids: The tokens themselves, (sequences, tokens).
        """
        final = final.float()
        logits = final @ head.float().T
        normaliser = log_sum_exp(logits)
        expected = (reference.expected_row * (reference.final - final)).sum(-1)
        labelled = logits[:, :-1].gather(-1, ids[:, 1:, None].to(logits.device))[..., 0]
        self.sum_kl += (expected + normaliser - reference.normaliser).sum().item()
        self.sum_loss += (normaliser[:, :-1] - labelled).sum().item()
        self.num_tokens += ids.numel()
        self.num_labels += labelled.numel()
        for one, other in zip(reference.final, final, strict=True):
            self.samples.append((mse_loss(other, one) / one.square().mean()).item())

    @property
    def kl(self) -> float:
        """Mean KL per token, nats."""
        return self.sum_kl / self.num_tokens

    @property
    def loss(self) -> float:
        """Mean next-token loss, nats."""
        return self.sum_loss / self.num_labels

    @property
    def hidden(self) -> float:
        """Mean over sequences of the squared error before the head, relative to its size."""
        return sum(self.samples) / len(self.samples)


def log_sum_exp(logits: Tensor) -> Tensor:
    """Logarithm of the summed exponentials over the last axis, (..., vocab) -> (...) float64."""
    largest = logits.amax(-1, keepdim=True)
    total = (logits - largest).exp_().sum(-1)
    return largest[..., 0].double() + total.double().log()
