"""Memory that each stage of a round takes at its peak, from the shapes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fretsaw.core.shape import Block, ModelShape
from fretsaw.pricing.memory import model_costs
from fretsaw.stages.outline import Outline, by_mixer, typical
from fretsaw.train.metrics import CACHE_BYTES

LEARNING_COPIES = 4
"""Weights, gradients and AdamW's two moments, all in float32."""

LOGIT_COPIES = 3
"""Logits of a batch, their exponentials, and what is made of both."""

QUANTIZE_BATCH = 8
"""Sequences that a quantised model is compared on at a time."""

FP32 = 4.0


@dataclass(frozen=True)
class Occupancy:
    """Bytes beside what the process takes anyway."""

    outline: Outline

    def weights(self, shape: ModelShape) -> float:
        """A running model, in the working dtype."""
        return model_costs(shape)["params"] * self._itemsize

    def calibrate(self) -> float:
        """The model, and a block at work on a batch."""
        o, fit = self.outline, self.outline.settings.calibrate
        tokens = min(o.batch, fit.sequences) * fit.sequence_length
        return self.weights(o.shape) + self._at_work(tokens)

    def rank(self) -> float:
        """The model."""
        return self.weights(self.outline.shape)

    def score(self) -> float:
        """The model, hidden states of all text that is judged on, repairs, and a wide pass."""
        o, judge = self.outline, self.outline.settings.score
        batch = min(o.batch, judge.sequences) * o.settings.calibrate.sequence_length
        logits = LOGIT_COPIES * batch * o.shape.sizes["vocab"] * FP32
        wide = self._at_work(batch * judge.variants_per_pass)
        work = self._repairing() + max(wide, logits)
        return self.weights(o.shape) + self._judged() + work

    def search(self) -> float:
        """As scoring, and the repaired weights of every variant that some choice takes."""
        o = self.outline
        kept = sum(
            self._repaired(v.apply(o.shape.blocks[block]), whole=o.shape.blocks[block])
            for block, variants in o.taken(o.choices).items()
            for v in variants
        )
        return self.weights(o.shape) + self._judged() + self._repairing() + kept

    def build(self) -> float:
        """The model and repairs; tensors of the child are written one at a time."""
        return self.weights(self.outline.shape) + self._repairing()

    def distill(self) -> float:
        """Teacher, student with gradients and moments, what backward needs, and both logits."""
        o, heal = self.outline, self.outline.settings.distill
        sequences, length = heal.batch_size, heal.sequence_length
        gauge, vocab = o.machine.gauge, o.shape.sizes["vocab"]
        kept = o.each(
            o.child.blocks, lambda b: gauge.learn(b, sequences=sequences, length=length).kept_bytes
        )
        logits = LOGIT_COPIES * sequences * length * vocab * FP32
        known = heal.validation_sequences * o.held_out_length * vocab * FP32
        student = model_costs(o.child)["params"] * FP32 * LEARNING_COPIES
        cached = known if known <= CACHE_BYTES else 0.0
        return self.weights(o.parent) + student + kept + logits + cached

    def quantize(self) -> float:
        """Two models in float32 beside each other; healing, with the rounded weights kept."""
        o, params = self.outline, model_costs(self.outline.child)["params"]
        if o.recipe.quantize.heal_tokens:
            return self.distill() + params * FP32
        both = (params + model_costs(o.parent)["params"]) * FP32
        batch = QUANTIZE_BATCH * o.held_out_length * o.shape.sizes["vocab"] * FP32
        return both + LOGIT_COPIES * batch

    @property
    def _itemsize(self) -> int:
        dtype: torch.dtype = getattr(torch, self.outline.recipe.compute.dtype)
        return dtype.itemsize

    def _hidden(self, tokens: float) -> float:
        return tokens * self.outline.shape.sizes["hidden"] * self._itemsize

    def _judged(self) -> float:
        """Hidden states of the text that is judged on: as they come, and the reference's two."""
        o = self.outline
        return 3 * self._hidden(o.settings.score.sequences * o.settings.calibrate.sequence_length)

    def _at_work(self, tokens: float) -> float:
        """One block at work, at most: what its forward would keep for a backward."""
        o, heal = self.outline, self.outline.settings.distill
        sequences, length = heal.batch_size, heal.sequence_length
        kinds = [typical(alike) for alike in by_mixer(o.shape.blocks).values()]
        gauge = o.machine.gauge
        kept = max(gauge.learn(b, sequences=sequences, length=length).kept_bytes for b in kinds)
        return kept * tokens / (sequences * length)

    def _repairing(self) -> float:
        """The text's hidden states, and what a block and its experts say on it."""
        o, library = self.outline, self.outline.settings.library
        if library.repair == "none":
            return 0.0
        length = o.settings.calibrate.sequence_length
        tokens = library.repair_sequences * length
        said = [0.0]
        for index, variants in o.changing.items():
            full = o.shape.blocks[index]
            if full.mixer == "moe":
                chosen = {v.apply(full).settings["top_k"] for v in variants if not v.is_none}
                said.append(sum(chosen) * full.sizes["ffn"] * FP32 * tokens)
        batch = min(tokens, o.batch * length)
        return 2 * self._hidden(tokens) + max(said) + self._at_work(batch)

    def _repaired(self, block: Block, *, whole: Block) -> float:
        """Weights that a repaired variant has of its own."""
        s = block.sizes
        if self.outline.settings.library.repair == "none" or block.mixer != whole.mixer:
            return 0.0
        if block.mixer == "moe":
            width = s.get("latent", s["hidden"])
            return s["expert"] * s["ffn"] * width * self._itemsize
        if block.mixer == "mamba":
            return s["mamba_head"] * s["mamba_dim"] * s["hidden"] * self._itemsize
        return 0.0
