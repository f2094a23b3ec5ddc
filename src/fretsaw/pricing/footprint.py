"""What a model takes of one GPU: weights, and what each request keeps, in an engine's pages.

Engines with pools of their own for attention and Mamba round a request's tokens up to whole pages.
vLLM has one pool for both, and so pages of one size:

    page tokens = unit * ceil(Mamba state of a block / (unit * KV bytes of a token))

with a unit of 16 tokens; a Mamba state is padded to that page, and blocks are counted in groups of
equal size. So a short request takes one page of each block, whatever the format of its KV cache.

Source: vLLM, vllm/platforms/interface.py (`_align_hybrid_block_size`) and
vllm/v1/core/kv_cache_utils.py (`_get_kv_cache_groups_uniform_page_size`); measured there:
https://github.com/vllm-project/vllm/issues/55196.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fretsaw.core.engines import BY_THE_BYTE, CacheRule
from fretsaw.core.hardware import ONE_GPU, Layout
from fretsaw.core.precision import PRESETS, Precision
from fretsaw.core.shape import Block, ModelShape
from fretsaw.families import family_named
from fretsaw.pricing.memory import cache_bytes, stored_bytes

NEARLY_EQUAL = 1.5
"""Blocks of two kinds whose numbers differ by less are grouped by the larger number."""


@dataclass(frozen=True)
class Footprint:
    """What a model, or a part of one, takes of one GPU's memory.

    Attributes:
        weights_bytes: Weights, once.
        kv_bytes_per_token: KV cache of one token of one sequence.
        state_bytes: SSM state and conv state of one sequence.
        page_tokens: Of a sequence's KV cache so many tokens are kept at a time.
    """

    weights_bytes: int = 0
    kv_bytes_per_token: int = 0
    state_bytes: int = 0
    page_tokens: int = 1

    def __add__(self, other: Footprint) -> Footprint:
        """Both together."""
        return Footprint(
            self.weights_bytes + other.weights_bytes,
            self.kv_bytes_per_token + other.kv_bytes_per_token,
            self.state_bytes + other.state_bytes,
            max(self.page_tokens, other.page_tokens),
        )

    def times(self, count: int) -> Footprint:
        """Of several alike."""
        return replace(
            self,
            weights_bytes=self.weights_bytes * count,
            kv_bytes_per_token=self.kv_bytes_per_token * count,
            state_bytes=self.state_bytes * count,
        )

    def sequence_bytes(self, context: float) -> float:
        """Of one sequence with that many tokens, in whole pages."""
        tokens = self.page_tokens * math.ceil(context / self.page_tokens)
        return self.kv_bytes_per_token * (tokens if self.page_tokens > 1 else context) + (
            self.state_bytes
        )


@dataclass(frozen=True)
class Pages:
    """How the caches of a model lie in an engine's memory.

    Attributes:
        tokens: Of a page of attention.
        unit_bytes: A Mamba state is padded to a multiple of it; 1 where states lie apart.
        kv_bytes: KV cache of a token, of the widest attention block on one GPU.
        states: Mamba states that each request holds.
    """

    tokens: int = 1
    unit_bytes: int = 1
    kv_bytes: int = 0
    states: int = 1

    @property
    def page_bytes(self) -> int:
        """Of one attention block."""
        return self.tokens * self.kv_bytes


def pages_of(
    blocks: Iterable[Block],
    precision: Precision,
    *,
    layout: Layout = ONE_GPU,
    rule: CacheRule = BY_THE_BYTE,
) -> Pages:
    """The pages in which an engine keeps what requests need of some blocks.

    Args:
        blocks: Of one model; an engine with one pool has one Mamba state for all of them.
        precision: Formats of the caches.
        layout: How the model lies on its GPUs.
        rule: Of the engine.
    """
    kept = [_kept(block, precision, layout=layout) for block in blocks]
    kv = max((one.kv_bytes_per_token for one in kept), default=0)
    if rule.pools == "separate" or not kv:
        return Pages(rule.tokens, 1, kv, rule.states)
    unit = rule.tokens * kv
    units = max(1, math.ceil(max(one.state_bytes for one in kept) / unit))
    return Pages(rule.tokens * units, unit, kv, rule.states)


def footprint(
    shape: ModelShape,
    precision: Precision,
    *,
    layout: Layout = ONE_GPU,
    rule: CacheRule = BY_THE_BYTE,
    has_mtp: bool = False,
) -> Footprint:
    """What a whole model takes of one GPU.

    Args:
        shape: The model.
        precision: Number formats.
        layout: How it lies on its GPUs.
        rule: How the engine keeps caches.
        has_mtp: Whether the prediction head is loaded.
    """
    kinds = [block for block, _ in shape.distinct]
    heads = shape.mtp if has_mtp else ()
    pages = pages_of((*kinds, *heads), precision, layout=layout, rule=rule)
    blocks, total = footprints(shape.with_blocks(kinds), precision, layout=layout, pages=pages)
    for one, (_, count) in zip(blocks, shape.distinct, strict=True):
        total += one.times(count)
    if has_mtp:
        total += mtp_footprint(shape, precision, layout=layout, pages=pages)
    return total + padding((*shape.blocks, *heads), pages=pages)


def footprints(
    shape: ModelShape, precision: Precision, *, layout: Layout = ONE_GPU, pages: Pages = Pages()
) -> tuple[list[Footprint], Footprint]:
    """What each block takes of one GPU, and what is no block (embedding, last norm, head)."""
    weights = [0] * shape.num_blocks
    fixed = 0
    for row in family_named(shape.family).rows(shape):
        if row.part == "block" and row.block is not None:
            weights[row.block] += stored_bytes(row, precision, layout=layout)
        elif row.part != "mtp":
            fixed += stored_bytes(row, precision, layout=layout)
    kept = [_paged(_kept(block, precision, layout=layout), pages) for block in shape.blocks]
    blocks = [Footprint(size) + one for size, one in zip(weights, kept, strict=True)]
    return blocks, Footprint(fixed)


def mtp_footprint(
    shape: ModelShape, precision: Precision, *, layout: Layout = ONE_GPU, pages: Pages = Pages()
) -> Footprint:
    """What the prediction head takes of one GPU: weights in BF16, and caches as any block's."""
    rows = family_named(shape.family).rows(shape)
    total = Footprint(
        sum(stored_bytes(r, PRESETS["bf16"], layout=layout) for r in rows if r.part == "mtp")
    )
    for block in shape.mtp:
        total += _paged(_kept(block, precision, layout=layout), pages)
    return total


def padding(blocks: Sequence[Block], *, pages: Pages) -> Footprint:
    """Pages that a shared pool wastes on groups that are not full.

    Blocks of both kinds are counted in groups of as many as the rarer kind has; a group that is
    not full takes as much as a full one.
    """
    attention = sum(block.mixer == "attention" for block in blocks)
    mamba = sum(block.mixer == "mamba" for block in blocks)
    if pages.unit_bytes == 1 or not attention or not mamba:
        return Footprint()
    size, most = sorted((attention, mamba))
    size = most if most < NEARLY_EQUAL * size else size
    state = pages.page_bytes * pages.states
    return Footprint(0, pages.kv_bytes * (-attention % size), state * (-mamba % size))


def _kept(block: Block, precision: Precision, *, layout: Layout) -> Footprint:
    """What a sequence keeps of a block on one GPU, to the byte."""
    cache = cache_bytes(block, precision, layout=layout)
    state = cache.get("state_bytes", 0) + cache.get("conv_state_bytes", 0)
    return Footprint(0, cache.get("kv_bytes_per_token", 0), state)


def _paged(kept: Footprint, pages: Pages) -> Footprint:
    """The same in whole pages."""
    padded = pages.unit_bytes * math.ceil(kept.state_bytes / pages.unit_bytes)
    tokens = pages.tokens if kept.kv_bytes_per_token else 1
    return replace(kept, state_bytes=padded * pages.states, page_tokens=tokens)
