"""How far one model's output lies from another's, summed over batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import mse_loss


class Reference(NamedTuple):
    """The reference distribution of a batch, (sequences, tokens, vocab) float32 each."""

    probabilities: Tensor
    log_probabilities: Tensor


def reference_of(logits: Tensor) -> Reference:
    """Reference from float32 logits (sequences, tokens, vocab)."""
    log_p = logits.log_softmax(-1)
    return Reference(log_p.exp(), log_p)


@dataclass
class Divergence:
    """Running sums of KL, loss and hidden-state error.

        KL(p || q) = sum_v p (log p - log q)

    The difference is taken before the sum. ``sum p log p - sum p z + logsumexp(z)`` saves a pass
    over the vocabulary, but cancels: in float32 it was off by 2e-5 to 5e-5, more than a whole cut
    of the Mamba state costs, and gave negative scores.
    """

    sum_kl: float = 0.0
    sum_loss: float = 0.0
    num_tokens: int = 0
    num_labels: int = 0
    samples: list[float] = field(default_factory=list)

    def add(self, reference: Reference, logits: Tensor, *, ids: Tensor) -> None:
        """Add a batch.

        Args:
            reference: Of the same tokens.
            logits: Of the model that is compared, (sequences, tokens, vocab) float32.
            ids: The tokens themselves, (sequences, tokens).
        """
        log_q = logits.log_softmax(-1)
        labelled = log_q[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        difference = reference.log_probabilities - log_q
        kl = torch.einsum("stv,stv->st", reference.probabilities, difference)
        self.sum_kl += kl.double().sum().item()
        self.sum_loss -= labelled.double().sum().item()
        self.num_tokens += ids.numel()
        self.num_labels += labelled.numel()

    def add_hidden(self, reference: Tensor, hidden: Tensor) -> None:
        """Add the normalised error of hidden states (sequences, tokens, hidden), per sequence."""
        for one, other in zip(reference, hidden, strict=True):
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
        """Mean normalised hidden-state error."""
        return sum(self.samples) / len(self.samples)
