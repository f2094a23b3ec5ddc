"""Measure a whole choice before it is built: the current model with every block swapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fretsaw.core.variant import Choice, Variant
from fretsaw.runtime.blocks import BlockView, run_block
from fretsaw.solver.divergence import Divergence, reference_of

Repairs = Mapping[tuple[int, str], Mapping[str, Tensor]]
"""(block, variant key) -> running tensors to use instead of the plain slice."""


@torch.no_grad()
def measure_choices(
    view: BlockView,
    choices: Sequence[Choice],
    *,
    ids: Tensor,
    batch_sequences: int,
    repairs: Repairs,
    on_choice: Callable[[int], None] = lambda _: None,
) -> list[float]:
    """KL(model || model with the choice's blocks) per token, for each choice.

    Args:
        view: The current model, its units in importance order.
        choices: One variant per block each.
        ids: Text to judge on, (sequences, tokens).
        batch_sequences: Sequences run at once.
        repairs: Weights that variants use instead of their slices.
        on_choice: Told how many choices are measured.

    Returns:
        One mean KL per choice, nats.
    """
    batches = ids.split(batch_sequences)
    references = [
        reference_of(view.final(view.run(view.embed(batch), start=0)), view.head)
        for batch in batches
    ]
    measured = []
    for done, choice in enumerate(choices, start=1):
        blocks = [_module(view, v, repairs=repairs) for v in choice.variants]
        total = Divergence()
        for batch, reference in zip(batches, references, strict=True):
            final = view.final(_run(blocks, view.embed(batch)))
            total.add(reference, final, head=view.head, ids=batch)
        measured.append(total.kl)
        on_choice(done)
    return measured


def _module(view: BlockView, variant: Variant, *, repairs: Repairs) -> nn.Module | None:
    if variant.is_none:
        return None
    block = variant.apply(view.shape.blocks[variant.block])
    if block == view.shape.blocks[variant.block]:
        return view.block(variant.block)
    replaced = repairs.get((variant.block, variant.key))
    return view.variant(variant.block, block=block, replaced=replaced)


def _run(blocks: Iterable[nn.Module | None], hidden: Tensor) -> Tensor:
    for block in blocks:
        if block is not None:
            hidden = run_block(block, hidden)
    return hidden
