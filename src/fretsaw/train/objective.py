"""The loss of a distillation step."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fretsaw.runtime.routing import record_routing
from fretsaw.train.losses import balance_loss, cosine_distance, kl_divergence, next_token_loss
from fretsaw.train.plan import DistillSettings


class Objective:
    """KL to the teacher's logits; by default nothing else.

        loss = KL(teacher || student) + cosine_weight * (1 - cos of hidden states)
               + label_weight * next-token loss + balance_weight * router load balance

    The teacher runs in evaluation mode and without gradients. The routers' correction biases are
    buffers: no term has a gradient for them and they stay what they were in the parent.

    Args:
        teacher: The original parent.
        settings: The weights.
        autocast: Dtype that the student computes in around its float32 weights; float32 for none.

    Source: Puzzle, arXiv:2411.19146, section 5 (KL and cosine, no label loss);
        arXiv:2607.04371, section 2.2 (match the logits of the original parent).
    """

    def __init__(
        self,
        teacher: PreTrainedModel,
        settings: DistillSettings,
        *,
        autocast: torch.dtype = torch.float32,
    ) -> None:
        self._teacher = teacher
        self._autocast = autocast
        self._has_autocast = autocast != torch.float32
        self._settings = settings
        self.last_kl = 0.0
        self.suspect: str | None = None

    def __call__(self, student: nn.Module, ids: Tensor) -> Tensor:
        """Loss of a batch.

        Args:
            student: The model that learns, perhaps wrapped.
            ids: (sequences, tokens) int64, no padding.

        Returns:
            Scalar float32. `last_kl` holds its KL, `suspect` names what is not finite.
        """
        settings = self._settings
        with_hidden = settings.cosine_weight > 0
        arguments = {"input_ids": ids, "use_cache": False, "output_hidden_states": with_hidden}
        with torch.no_grad():
            target = self._teacher(**arguments)
        with ExitStack() as stack:
            watched = settings.balance_weight > 0
            routings = stack.enter_context(record_routing(student)) if watched else []
            stack.enter_context(torch.autocast(ids.device.type, self._autocast, self._has_autocast))
            output = student(**arguments)
        kl = kl_divergence(output.logits, target.logits)
        loss = kl
        if with_hidden:
            distance = cosine_distance(output.hidden_states, target.hidden_states)
            loss = loss + settings.cosine_weight * distance
        if settings.label_weight > 0:
            loss = loss + settings.label_weight * next_token_loss(output.logits, ids)
        for routing in routings:
            balance = balance_loss(routing.scores, routing.chosen)
            loss = loss + settings.balance_weight / len(routings) * balance
        self.last_kl = kl.item()
        self.suspect = None if loss.isfinite() else _suspect(target.logits, output.logits)
        return loss


def _suspect(teacher_logits: Tensor, student_logits: Tensor) -> str:
    for name, logits in (("teacher", teacher_logits), ("student", student_logits)):
        if not logits.isfinite().all():
            return f"{name} logits"
    return "loss"
