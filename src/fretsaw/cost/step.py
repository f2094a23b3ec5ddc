"""Seconds of one forward pass: a sum over blocks and what is no block, so the search can add it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from fretsaw.core.hardware import Layout
from fretsaw.core.precision import Precision
from fretsaw.core.shape import Block, ModelShape
from fretsaw.cost.blocks import block_kernels, head_kernels
from fretsaw.cost.kernels import Kernel, Step, Timer


@dataclass(frozen=True)
class Account:
    """Where the seconds of a step go.

    Attributes:
        seconds: In all.
        by_group: Kernel group -> seconds.
        by_bound: What bounds -> seconds.
        by_provider: Who said so -> seconds.
    """

    seconds: float
    by_group: dict[str, float]
    by_bound: dict[str, float]
    by_provider: dict[str, float]


@dataclass(frozen=True)
class Pricer:
    """Prices blocks and whole models on one layout; equal questions are answered once.

    Attributes:
        timer: Says how long a kernel takes.
        layout: How a replica lies on its GPUs.
        precision: Number formats.
        host_s: Of each step outside its kernels.
    """

    timer: Timer
    layout: Layout
    precision: Precision
    host_s: float = 0.0
    _known: dict[object, float] = field(default_factory=dict, repr=False, compare=False)

    def block_seconds(self, block: Block, *, step: Step) -> float:
        """Seconds of one residual block."""
        key = (block.mixer, *sorted(block.values.items()), step)
        if key not in self._known:
            self._known[key] = self._seconds(self._kernels(block, step))
        return self._known[key]

    def fixed_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of what is no block: last norm, head, and the host's work."""
        key = (shape.sizes["hidden"], shape.sizes["vocab"], step)
        if key not in self._known:
            self._known[key] = self._seconds(self._head(shape, step))
        return self._known[key] + self.host_s

    def step_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of one forward pass of the whole model."""
        blocks = sum(self.block_seconds(block, step=step) for block in shape.blocks)
        return blocks + self.fixed_seconds(shape, step=step)

    def account(self, shape: ModelShape, *, step: Step) -> Account:
        """The same, and where it goes."""
        by_group: dict[str, float] = defaultdict(float, host=self.host_s)
        by_bound: dict[str, float] = defaultdict(float, host=self.host_s)
        by_provider: dict[str, float] = defaultdict(float, constant=self.host_s)
        kernels = [k for block in shape.blocks for k in self._kernels(block, step)]
        for kernel in (*kernels, *self._head(shape, step)):
            timing = self.timer.time(kernel)
            by_group[kernel.group] += timing.seconds
            by_bound[timing.bound] += timing.seconds
            by_provider[timing.provider] += timing.seconds
        total = sum(by_group.values())
        return Account(total, dict(by_group), dict(by_bound), dict(by_provider))

    def _kernels(self, block: Block, step: Step) -> Iterable[Kernel]:
        return block_kernels(block, step=step, layout=self.layout, precision=self.precision)

    def _head(self, shape: ModelShape, step: Step) -> Iterable[Kernel]:
        return head_kernels(shape, step=step, layout=self.layout, precision=self.precision)

    def _seconds(self, kernels: Iterable[Kernel]) -> float:
        return sum(self.timer.time(kernel).seconds for kernel in kernels)
