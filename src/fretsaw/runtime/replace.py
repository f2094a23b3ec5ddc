"""Replace-one scoring: put one variant into the current model and see what the output loses.

Block inputs are computed once and walk down the network; for each variant only the replaced block
and those after it are run, several variants as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fretsaw.core.shape import Block
from fretsaw.core.variant import Variant
from fretsaw.runtime.blocks import BlockView, run_block
from fretsaw.solver.divergence import Divergence, Reference, reference_of

Repair = Callable[[int, Variant], Mapping[str, Tensor]]
"""(block, variant) -> running tensors to use instead of the plain slice."""


@dataclass(frozen=True)
class Replacement:
    """What replacing one block by one variant did.

    Attributes:
        variant: The variant.
        kl: Mean KL(model || replaced) per token at the logits, nats.
        loss: Mean next-token loss of the replaced model, nats.
        hidden: Normalised squared error before the head, mean over sequences.
        samples: The same per sequence.
    """

    variant: Variant
    kl: float
    loss: float
    hidden: float
    samples: tuple[float, ...]


@torch.no_grad()
def replace_one(
    view: BlockView,
    variants: Mapping[int, Sequence[Variant]],
    *,
    ids: Tensor,
    batch_sequences: int,
    variants_per_pass: int,
    repair: Repair,
    enter_block: Callable[[int], None],
) -> Iterator[Replacement]:
    """Score variants block by block, first block first.

    Args:
        view: The current model, its units in importance order.
        variants: Block -> variants to score; blocks without variants are only passed through.
        ids: Held-out calibration text, (sequences, tokens).
        batch_sequences: Sequences run at once.
        variants_per_pass: Variants of a block that go through the rest as one batch.
        repair: Weights that a variant uses instead of its slice.
        enter_block: Told before each block's variants are built, so that repairs can follow.

    Yields:
        One result per variant, block by block in the order of `changes_first`.
    """
    batches = ids.split(batch_sequences)
    hidden = [view.embed(batch) for batch in batches]
    references = [reference_of(view.final(view.run(h, start=0)), view.head) for h in hidden]
    unchanged = _score_unchanged(view, references, batches=batches)
    for block in range(view.num_blocks):
        enter_block(block)
        ordered = changes_first(view.shape.blocks[block], variants.get(block, ()))
        for start in range(0, len(ordered), variants_per_pass):
            one_pass = ordered[start : start + variants_per_pass]
            group = [v for v in one_pass if _changes(v, view.shape.blocks[block])]
            if group:
                yield from _score_group(
                    view,
                    group,
                    hidden=hidden,
                    references=references,
                    batches=batches,
                    repair=repair,
                )
            yield from (replace(unchanged, variant=v) for v in one_pass if v not in group)
        hidden = [run_block(view.block(block), h) for h in hidden]


def changes_first(block: Block, variants: Sequence[Variant]) -> list[Variant]:
    """The variants in the order that passes are made of: those that change the block first."""
    return sorted(variants, key=lambda v: not _changes(v, block))


def _changes(variant: Variant, block: Block) -> bool:
    return variant.apply(block) != block


def _score_unchanged(
    view: BlockView, references: Sequence[Reference], *, batches: Sequence[Tensor]
) -> Replacement:
    """What a variant that changes nothing gives: no forward is spent on it."""
    total = Divergence()
    for reference, ids in zip(references, batches, strict=True):
        total.add(reference, reference.final, head=view.head, ids=ids)
    return Replacement(Variant(0), total.kl, total.loss, total.hidden, tuple(total.samples))


def _score_group(
    view: BlockView,
    group: Sequence[Variant],
    *,
    hidden: Sequence[Tensor],
    references: Sequence[Reference],
    batches: Sequence[Tensor],
    repair: Repair,
) -> Iterator[Replacement]:
    modules = [None if v.is_none else _build(view, v, repair=repair) for v in group]
    totals = [Divergence() for _ in group]
    for inputs, reference, ids in zip(hidden, references, batches, strict=True):
        outputs = [inputs if m is None else run_block(m, inputs) for m in modules]
        replaced = view.final(view.run(torch.cat(outputs), start=group[0].block + 1))
        for total, final in zip(totals, replaced.chunk(len(group)), strict=True):
            total.add(reference, final, head=view.head, ids=ids)
    for variant, total in zip(group, totals, strict=True):
        yield Replacement(variant, total.kl, total.loss, total.hidden, tuple(total.samples))


def _build(view: BlockView, variant: Variant, *, repair: Repair) -> torch.nn.Module:
    block = variant.apply(view.shape.blocks[variant.block])
    try:
        return view.variant(variant.block, block=block, replaced=repair(variant.block, variant))
    except Exception as error:
        error.add_note(f"while block {variant.block} was made {variant.key}")
        raise
