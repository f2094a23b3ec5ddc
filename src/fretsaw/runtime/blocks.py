"""A running model seen as a flat list of blocks: run from any block on, swap one for a variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from transformers import NemotronHForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock

from fretsaw.checkpoint.slicing import prefix, reorder
from fretsaw.core.axes import TensorAxes
from fretsaw.core.shape import Block, ModelShape
from fretsaw.families.mixers import block_table
from fretsaw.runtime.load import empty_block, running_axes, running_name

Orders = Mapping[int, Mapping[str, Tensor]]
"""Block index -> dimension -> unit indices, most important first."""


class BlockView:
    """The model as embedding, blocks, norm and head, for packed sequences without padding."""

    def __init__(self, model: NemotronHForCausalLM, shape: ModelShape) -> None:
        self.model = model
        self.shape = shape

    @property
    def num_blocks(self) -> int:
        """Residual blocks of the trunk."""
        return len(self.model.model.layers)

    def block(self, index: int) -> NemotronHBlock:
        """The running block."""
        block: NemotronHBlock = self.model.model.layers[index]
        return block

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids (sequences, tokens) -> input of block 0 (sequences, tokens, hidden)."""
        hidden: Tensor = self.model.model.embeddings(ids.to(self.model.device))
        return hidden

    def run(self, hidden: Tensor, *, start: int, stop: int | None = None) -> Tensor:
        """Push (sequences, tokens, hidden) through the blocks start … stop-1."""
        for block in self.model.model.layers[start:stop]:
            hidden = run_block(block, hidden)
        return hidden

    def final(self, hidden: Tensor) -> Tensor:
        """Output of the last block -> what the head reads, (sequences, tokens, hidden)."""
        final: Tensor = self.model.model.norm_f(hidden)
        return final

    def logits(self, final: Tensor) -> Tensor:
        """Output of `final` -> float32 logits (sequences, tokens, vocab)."""
        logits: Tensor = self.model.lm_head(final)
        return logits.float()

    @property
    def head(self) -> Tensor:
        """Weight of the head, (vocab, hidden): logits are ``final @ head.T``."""
        weight: Tensor = self.model.lm_head.weight
        return weight

    def variant(
        self, index: int, *, block: Block, replaced: Mapping[str, Tensor] | None = None
    ) -> NemotronHBlock:
        """Block `index` with only its first units kept, sharing memory where it can.

        Args:
            index: Which block.
            block: Its smaller sizes and its settings.
            replaced: Running tensor name -> weights to use instead of the slice (a repair).
        """
        small = empty_block(self.model.config, block=block, index=index)
        state = sliced_state(self.block(index), old=self.shape.blocks[index], new=block)
        small.load_state_dict({**state, **(replaced or {})}, strict=True, assign=True)
        return small.requires_grad_(False)

    def swap(self, index: int, module: NemotronHBlock, *, block: Block) -> None:
        """Put another block in place for good."""
        self.model.model.layers[index] = module
        blocks = list(self.shape.blocks)
        blocks[index] = block
        self.shape = self.shape.with_blocks(blocks)


def run_block(block: nn.Module, hidden: Tensor) -> Tensor:
    """One block on (sequences, tokens, hidden), causal, without cache or padding."""
    positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
    output: Tensor = block(hidden, attention_mask=None, position_ids=positions)
    return output


def mixer_input(block: NemotronHBlock, hidden: Tensor) -> Tensor:
    """What the block's mixer reads: the normed residual stream."""
    normed: Tensor = block.norm(hidden)
    return normed


def running_table(block: Block) -> Iterator[TensorAxes]:
    """Tensor table of a running block: names and axes with fused experts."""
    for row in block_table(block):
        yield TensorAxes(running_name(row.name), running_axes(row), row.dtype)


def sliced_state(module: NemotronHBlock, *, old: Block, new: Block) -> dict[str, Tensor]:
    """The block's weights with only the first units of each dimension: views where possible."""
    state = module.state_dict()
    return {
        row.name: prefix(state[row.name], row.axes, old=old.sizes, new=new.sizes)
        for row in running_table(old)
    }


def order_model(view: BlockView, orders: Orders) -> None:
    """Put the units of every block into importance order, in place; the function is unchanged."""
    for index, by_dim in orders.items():
        module = view.block(index)
        block = view.shape.blocks[index]
        state = module.state_dict()
        for row in running_table(block):
            relevant = {d: o for d, o in by_dim.items() if row.has(d)}
            if relevant:
                state[row.name] = reorder(
                    state[row.name], row.axes, sizes=block.sizes, orders=relevant
                )
        module.load_state_dict(state, strict=True, assign=True)
