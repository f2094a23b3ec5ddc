"""Closed-form repair of a variant, from what the block reads on some text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fretsaw.core.shape import Block
from fretsaw.runtime.blocks import BlockView

RepairKind = Literal["none", "experts", "output", "gain", "both"]
"""experts: down projections of cut experts; output or gain: the block's last projection against
the full block; both: experts, then output."""


@dataclass(frozen=True)
class RepairSettings:
    """How variants are repaired.

    Attributes:
        kind: What is re-solved.
        ridge: Pull towards the plain slice, relative to the mean second moment.
        min_tokens: Routed tokens that an expert needs; with fewer it keeps the plain slice.
        batch_sequences: Sequences that are pushed through the block at a time.
    """

    kind: RepairKind = "both"
    ridge: float = 1e-2
    min_tokens: int = 64
    batch_sequences: int = 8


class Repairer:
    """Repairs the variants of one block of a model that is in importance order.

    Keeps second moments of the experts per top-k, which serve all widths, and what the full block
    gives on the fitting text. Free it before the next block.
    """

    def __init__(
        self, view: BlockView, index: int, *, fit_hidden: Tensor, settings: RepairSettings
    ) -> None:
        """Prepare for block `index`.

        Args:
            view: The model, in importance order.
            index: Which block.
            fit_hidden: Input of the block on the fitting text, (sequences, tokens, hidden).
            settings: What to re-solve and how.
        """
        self._view, self._index = view, index
        self._fit, self._settings = fit_hidden, settings

    @torch.no_grad()
    def replaced(self, block: Block) -> dict[str, Tensor]:
        """Running tensor name -> repaired weight, for `BlockView.variant(..., replaced=...)`.

        Empty where the variant has nothing to repair (the full block, `none`, attention).
        """
        raise NotImplementedError
