"""How long the parts of a model's work take on this machine: timed on blocks with random weights.

One block of each kind is made with the model's sizes; each part of a stage's work is then run on
it at the recipe's batch and sequence sizes, by the code that the stage itself runs.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock

from fretsaw.core.shape import Block, Mixer, ModelShape
from fretsaw.runtime.blocks import BlockView, run_block
from fretsaw.runtime.passes import SEED, random_model
from fretsaw.runtime.repair import Repairer, RepairSettings
from fretsaw.runtime.statistics import UNITS, observe
from fretsaw.solver.divergence import Divergence, reference_of

ENOUGH_S = 0.12
"""Spent on a part; one run that takes longer is timed once."""

LONG_S = 1.0
"""A part that would take longer is timed on fewer sequences, and taken in proportion."""

MOST_RUNS = 3
MEMORY_SHARE = 0.25
"""Of the machine's memory that the blocks may take; larger ones are made with fewer experts."""


T = TypeVar("T")


class Learned(NamedTuple):
    """A block learning from a batch: forward and backward.

    Attributes:
        seconds: Of both.
        kept_bytes: What the forward keeps for the backward, weights left out.
    """

    seconds: float
    kept_bytes: int


class Repaired(NamedTuple):
    """Repairs of a block's variants.

    Attributes:
        prepare_s: Once a block and top-k: what the experts say on the text.
        each_s: Of each variant.
    """

    prepare_s: float
    each_s: float


@dataclass
class Gauge:
    """Times parts of work on blocks of a model; equal questions are answered once.

    Attributes:
        shape: The model.
        config: Its config.
        dtype: Working dtype.
        device: Where it runs.
    """

    shape: ModelShape
    config: Mapping[str, Any]
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    _known: dict[object, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Make one block of each kind, as large as the largest."""
        kinds = {mixer: _largest(self.shape, mixer) for mixer in _mixers(self.shape)}
        kinds = {mixer: self._within_memory(block) for mixer, block in kinds.items()}
        self._index: dict[Mixer, int] = {mixer: i for i, mixer in enumerate(kinds)}
        self._shape = self.shape.with_blocks(kinds.values())
        model = random_model(replace(self._shape, mtp=()), self.config, dtype=self.dtype)
        nn.Module.to(model, self.device)
        self.view = BlockView(model, self._shape)

    def forward(self, block: Block, *, sequences: int, length: int) -> float:
        """Seconds of a block on that many sequences, without gradients."""
        return self.once(
            ("forward", _key(block), sequences, length),
            lambda: self._paced(
                lambda hidden: run_block(self.module(block), hidden),
                sequences=sequences,
                length=length,
            ),
        )

    def observe(self, block: Block, *, sequences: int, length: int) -> float:
        """Seconds of calibrating a block on that many sequences, its output included."""
        if block.mixer not in UNITS:
            return self.forward(block, sequences=sequences, length=length)

        def run(hidden: Tensor) -> object:
            return self._with(block, lambda view, i: observe(view, i, hidden=hidden))

        key = ("observe", _key(block), sequences, length)
        return self.once(key, lambda: self._paced(run, sequences=sequences, length=length))

    def judge(self, *, sequences: int, length: int) -> float:
        """Seconds of comparing what two models give to the head."""
        head = self.view.head

        def run(hidden: Tensor) -> object:
            ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
            Divergence().add(reference, hidden, head=head, ids=ids)
            return None

        reference = reference_of(self.hidden(1, length), head)
        key = ("judge", sequences, length)
        return self.once(key, lambda: sequences * seconds_of(lambda: run(self.hidden(1, length))))

    def repair(
        self, full: Block, small: Block, *, sequences: int, length: int, settings: RepairSettings
    ) -> Repaired:
        """Seconds of repairing a smaller form of a block on that many sequences."""
        key = ("repair", _key(full), _key(small), sequences, length)
        return self.once(
            key,
            lambda: self._repair(
                full, small, settings=settings, sequences=sequences, length=length
            ),
        )

    def learn(self, block: Block, *, sequences: int, length: int) -> Learned:
        """A block learning: its forward with all that the backward needs, and the backward."""
        key = ("learn", _key(block), sequences, length)
        return self.once(key, lambda: self._learn(block, sequences=sequences, length=length))

    def parameters(self) -> list[nn.Parameter]:
        """Of one block of each kind."""
        return [p for i in self._index.values() for p in self.view.block(i).parameters()]

    def module(self, block: Block) -> NemotronHBlock:
        """A running block of that form."""
        index = self._index[block.mixer]
        small = self._fitted(block)
        if small == self._shape.blocks[index]:
            return self.view.block(index)
        key = ("module", _key(small))
        if key not in self._known:
            module = self.view.variant(index, block=small)
            with torch.no_grad():
                for p in module.parameters():
                    p.data = p.data.clone()
            self._known[key] = module
        found: NemotronHBlock = self._known[key]
        return found

    def _fitted(self, block: Block) -> Block:
        """The block within the sizes that were made."""
        made = self._shape.blocks[self._index[block.mixer]].values
        return block.with_values({d: min(v, made[d]) for d, v in block.values.items()})

    def _with(self, block: Block, run: Callable[[BlockView, int], T]) -> T:
        """Run something with the block in the model's place of its kind."""
        index = self._index[block.mixer]
        before, module = self.view.block(index), self.module(block)
        self.view.swap(index, module, block=self._fitted(block))
        try:
            return run(self.view, index)
        finally:
            self.view.swap(index, before, block=self._shape.blocks[index])

    def _repair(
        self, full: Block, small: Block, *, settings: RepairSettings, sequences: int, length: int
    ) -> Repaired:
        small = self._fitted(small)

        def run(view: BlockView, index: int) -> tuple[float, float]:
            solver = Repairer(
                view, index, fit_hidden=self.hidden(measured, length), settings=settings
            )
            first = _timed(lambda: solver.replaced(small))
            return first, _timed(lambda: solver.replaced(small))

        one = self.forward(full, sequences=1, length=length)
        measured = max(1, min(sequences, math.floor(LONG_S / max(4 * one, 1e-9))))
        first, second = self._with(full, run)
        scale = sequences / measured
        return Repaired(max(0.0, first - second) * scale, second * scale)

    def _learn(self, block: Block, *, sequences: int, length: int) -> Learned:
        module = self.module(block)
        one = self.forward(block, sequences=1, length=length)
        measured = max(1, min(sequences, math.floor(LONG_S / max(3 * one, 1e-9))))
        weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        def run() -> None:
            hidden = self.hidden(measured, length).requires_grad_()
            run_block(module, hidden).sum().backward()
            module.zero_grad(set_to_none=True)

        module.requires_grad_(True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            run()
        seconds = seconds_of(run)
        module.requires_grad_(False)
        scale = sequences / measured
        return Learned(seconds * scale, int(sum(kept.values()) * scale))

    @torch.no_grad()
    def _paced(self, run: Callable[[Tensor], object], *, sequences: int, length: int) -> float:
        """Seconds on that many sequences; on fewer, in proportion, where it would take long."""
        one = _timed(lambda: run(self.hidden(1, length)))
        one = _timed(lambda: run(self.hidden(1, length)))
        measured = max(1, min(sequences, math.floor(LONG_S / max(one, 1e-9))))
        hidden = self.hidden(measured, length)
        return sequences / measured * seconds_of(lambda: run(hidden))

    def hidden(self, sequences: int, length: int) -> Tensor:
        """What a block could read, (sequences, length, hidden)."""
        generator = torch.Generator().manual_seed(SEED)
        width = self.shape.sizes["hidden"]
        hidden = torch.randn(sequences, length, width, generator=generator)
        return hidden.to(device=self.device, dtype=self.dtype)

    def once(self, key: object, measure: Callable[[], T]) -> T:
        """An answer that is found once."""
        if key not in self._known:
            self._known[key] = measure()
        return cast("T", self._known[key])

    def _within_memory(self, block: Block) -> Block:
        """The block, with fewer experts where whole ones would not fit."""
        allowed = MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        while (
            block.mixer == "moe"
            and block.sizes["expert"] >= 2 * block.settings["top_k"]
            and _expert_bytes(block) > allowed
        ):
            block = block.with_values({"expert": block.sizes["expert"] // 2})
        return block


def _expert_bytes(block: Block) -> int:
    s = block.sizes
    return 2 * s["expert"] * s["ffn"] * s.get("latent", s["hidden"]) * 4


def _mixers(shape: ModelShape) -> list[Mixer]:
    return list(dict.fromkeys(b.mixer for b in shape.blocks if b.mixer != "none"))


def _largest(shape: ModelShape, mixer: Mixer) -> Block:
    """A block of a kind with each of its sizes as large as it occurs."""
    blocks = [block for block in shape.blocks if block.mixer == mixer]
    most = {dim: max(b.values[dim] for b in blocks) for dim in blocks[0].values}
    return blocks[0].with_values(most)


def _key(block: Block) -> tuple[object, ...]:
    return (block.mixer, *sorted(block.values.items()))


def seconds_of(run: Callable[[], object]) -> float:
    """The median of a few runs after one that is not counted, or one where they are long."""
    first = _timed(run)
    timings: list[float] = []
    while len(timings) < MOST_RUNS and sum(timings) + first < ENOUGH_S:
        timings.append(_timed(run))
    return statistics.median(timings) if timings else _again(run, first)


def _again(run: Callable[[], object], first: float) -> float:
    """A second run, for what the first spends on beginning; none where it takes very long."""
    return min(first, _timed(run)) if first < LONG_S else first


def _timed(run: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
