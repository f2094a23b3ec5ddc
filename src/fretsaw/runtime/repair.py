"""Closed-form repair of a variant, from what the block reads on some text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock

from fretsaw.core.shape import Block
from fretsaw.importance.repair import (
    output_gain,
    repair_channels,
    repair_jointly,
    repair_projection,
)
from fretsaw.runtime.blocks import BlockView, mixer_input
from fretsaw.runtime.inspect import EXPERTS_DOWN, LAST_PROJECTION, expert_activations, projected

RepairKind = Literal["none", "experts", "output", "gain", "both", "joint"]
"""experts: down projections of cut experts; output or gain: the block's last projection against
the full block; both: experts, then output; joint: experts, then all of them together against what
the full block's experts gave, then output."""


@dataclass(frozen=True)
class RepairSettings:
    """How variants are repaired.

    Attributes:
        kind: What is re-solved.
        ridge: Pull towards the plain slice, relative to the mean second moment.
        min_tokens: Routed tokens that an expert needs; with fewer it keeps the plain slice.
        sweeps: Times that each expert is solved where all are solved together.
        batch_sequences: Sequences that are pushed through the block at a time.
    """

    kind: RepairKind = "both"
    ridge: float = 1e-2
    min_tokens: int = 64
    sweeps: int = 2
    batch_sequences: int = 8


class Repairer:
    """Repairs the variants of one block of a model that is in importance order.

    Keeps, per top-k, the activations of the experts on the fitting text, (tokens * top_k, ffn) in
    float32, which serve all widths, and what the full block gives. Free it before the next block.
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
        self._fit = torch.split(fit_hidden, settings.batch_sequences)
        self._settings = settings
        self._seen: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._latent: Tensor | None = None
        self._given: list[Tensor] = []

    @torch.no_grad()
    def replaced(self, block: Block) -> dict[str, Tensor]:
        """Running tensor name -> repaired weight, for `BlockView.variant(..., replaced=...)`.

        Empty where the variant has nothing to repair (the full block, `none`, attention).
        """
        full = self._view.shape.blocks[self._index]
        kind = self._settings.kind
        if kind == "none" or block.mixer not in LAST_PROJECTION or block == full:
            return {}
        replaced: dict[str, Tensor] = {}
        is_cut = block.mixer == "moe" and block.sizes["ffn"] < full.sizes["ffn"]
        if is_cut and kind in ("experts", "both", "joint"):
            replaced[EXPERTS_DOWN] = self._repaired_experts(block)
        if block.mixer == "moe" and kind == "joint":
            prior = replaced.get(EXPERTS_DOWN, self._module().mixer.experts.down_proj)
            replaced[EXPERTS_DOWN] = self._joint_experts(block, prior)
        if kind != "experts":
            replaced |= self._repaired_projection(block, replaced)
        return replaced

    def _repaired_experts(self, block: Block) -> Tensor:
        keep = block.sizes["ffn"]
        down_proj = self._module().mixer.experts.down_proj
        repaired: Tensor = down_proj[..., :keep].clone()
        for expert, (features, _) in enumerate(self._features(block.settings["top_k"])):
            if len(features) >= self._settings.min_tokens:
                repaired[expert] = repair_channels(
                    features[:, :keep].T @ features,
                    down_proj=down_proj[expert],
                    ridge=self._settings.ridge,
                )
        return repaired

    def _joint_experts(self, block: Block, prior: Tensor) -> Tensor:
        keep = block.sizes["ffn"]
        experts = self._features(block.settings["top_k"])
        return repair_jointly(
            [features[:, :keep] for features, _ in experts],
            [rows for _, rows in experts],
            wanted=self._latents(),
            prior=prior,
            ridge=self._settings.ridge,
            sweeps=self._settings.sweeps,
        )

    def _features(self, top_k: int) -> list[tuple[Tensor, Tensor]]:
        """Per expert its weighted activations (tokens_e, ffn) float32, and their tokens."""
        if top_k not in self._seen:
            self._seen[top_k] = list(self._gather(top_k))
        return self._seen[top_k]

    def _gather(self, top_k: int) -> Iterator[tuple[Tensor, Tensor]]:
        block = self._module()
        normed = torch.cat([mixer_input(block, hidden) for hidden in self._fit])
        for e in expert_activations(block.mixer, normed, top_k=top_k):
            yield e.activations.float() * e.weights.float().unsqueeze(-1), e.rows

    def _latents(self) -> Tensor:
        """What the full block's experts give together, (tokens, latent)."""
        if self._latent is None:
            name = LAST_PROJECTION["moe"]
            given = [projected(self._module(), h, name=name).inputs for h in self._fit]
            self._latent = torch.cat(given)
        return self._latent

    def _repaired_projection(self, block: Block, replaced: dict[str, Tensor]) -> dict[str, Tensor]:
        variant = self._view.variant(self._index, block=block, replaced=replaced)
        name = LAST_PROJECTION[block.mixer]
        module = variant.get_submodule(name)
        cross, moments = self._projection_moments(variant, name)
        down_proj = variant.mixer.experts.down_proj if block.mixer == "moe" else cross
        prior = (
            module.weight
            if isinstance(module, nn.Linear)
            else torch.eye(len(cross), dtype=down_proj.dtype, device=down_proj.device)
        )
        solved = prior * output_gain(cross, moments, prior=prior)
        if self._settings.kind != "gain":
            ridge = self._settings.ridge
            solved = repair_projection(cross, moments, prior=solved, ridge=ridge)
        if isinstance(module, nn.Linear):
            return {f"{name}.weight": solved}
        return {EXPERTS_DOWN: solved @ down_proj}

    def _projection_moments(self, variant: NemotronHBlock, name: str) -> tuple[Tensor, Tensor]:
        """``sum y z^T`` and ``sum z z^T`` of what is wanted and what the projection reads."""
        if not self._given:
            self._given = [projected(self._module(), h, name=name).outputs for h in self._fit]
        cross = moments = torch.zeros((), dtype=torch.float64)
        for hidden, given in zip(self._fit, self._given, strict=True):
            z = projected(variant, hidden, name=name).inputs.double()
            cross, moments = cross + given.double().T @ z, moments + z.T @ z
        return cross, moments

    def _module(self) -> NemotronHBlock:
        return self._view.block(self._index)
