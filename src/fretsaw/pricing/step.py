"""Seconds of one forward pass: a sum over blocks and what is no block, so the search can add it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fretsaw.core.hardware import Layout
from fretsaw.core.precision import Precision
from fretsaw.core.shape import Block, ModelShape
from fretsaw.pricing.blocks import block_kernels, head_kernels
from fretsaw.pricing.kernels import Kernel, Step, Timer, Timing

OVERLAP_TOKENS = 256
"""Tokens up to which shared experts run beside the routed ones; vLLM 0.32's default."""


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
        shared_overlap: Share of the shared experts' time that runs beside the routed experts
            in steps of up to `OVERLAP_TOKENS`.
        sequence_s: Of each sequence of a step outside its kernels: sampling, output.
    """

    timer: Timer
    layout: Layout
    precision: Precision
    host_s: float = 0.0
    shared_overlap: float = 0.0
    sequence_s: float = 0.0
    _known: dict[object, float] = field(default_factory=dict, repr=False, compare=False)

    def block_seconds(self, block: Block, *, step: Step) -> float:
        """Seconds of one residual block."""
        key = (block.mixer, *sorted(block.values.items()), step)
        if key not in self._known:
            self._known[key] = self._seconds(self._kernels(block, step), step)
        return self._known[key]

    def fixed_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of what is no block: last norm, head, and the host's work."""
        key = (shape.sizes["hidden"], shape.sizes["vocab"], step)
        if key not in self._known:
            self._known[key] = self._seconds(self._head(shape, step), step)
        return self._known[key] + self._host_seconds(step)

    def step_seconds(self, shape: ModelShape, *, step: Step) -> float:
        """Seconds of one forward pass of the whole model."""
        blocks = sum(n * self.block_seconds(b, step=step) for b, n in shape.distinct)
        return blocks + self.fixed_seconds(shape, step=step)

    def provider(self, shape: ModelShape, *, step: Step) -> str:
        """Who says what a model's blocks take, or its head if it has none: ``roofline, table``."""
        kernels = [k for block, _ in shape.distinct for k in self._kernels(block, step)]
        timings = map(self.timer.time, kernels or self._head(shape, step))
        return ", ".join(sorted({timing.provider for timing in timings}))

    def account(self, shape: ModelShape, *, step: Step) -> Account:
        """The same, and where it goes."""
        parts = Parts()
        parts.add("host", Timing(self._host_seconds(step), "host", "constant"))
        for block, count in shape.distinct:
            for kernel, timing in self._timed(self._kernels(block, step), step):
                parts.add(kernel.group, timing, count=count)
        for kernel, timing in self._timed(self._head(shape, step), step):
            parts.add(kernel.group, timing)
        return Account(
            sum(parts.by_group.values()),
            dict(parts.by_group),
            dict(parts.by_bound),
            dict(parts.by_provider),
        )

    def _host_seconds(self, step: Step) -> float:
        return self.host_s + self.sequence_s * step.sequences

    def _kernels(self, block: Block, step: Step) -> Iterable[Kernel]:
        return block_kernels(block, step=step, layout=self.layout, precision=self.precision)

    def _head(self, shape: ModelShape, step: Step) -> Iterable[Kernel]:
        return head_kernels(shape, step=step, layout=self.layout, precision=self.precision)

    def _seconds(self, kernels: Iterable[Kernel], step: Step) -> float:
        return sum(timing.seconds for _, timing in self._timed(kernels, step))

    def _timed(self, kernels: Iterable[Kernel], step: Step) -> list[tuple[Kernel, Timing]]:
        """Kernels with their seconds, less what runs beside others."""
        timed = [(kernel, self.timer.time(kernel)) for kernel in kernels]
        beside = sum(t.seconds for k, t in timed if k.group == "experts")
        shared = sum(t.seconds for k, t in timed if k.group == "shared experts")
        tokens = step.sequences * step.tokens / self.layout.dp
        if tokens > OVERLAP_TOKENS or not shared or not self.shared_overlap:
            return timed
        left = 1 - self.shared_overlap * min(1.0, beside / shared)
        return [
            (k, replace(t, seconds=t.seconds * left) if k.group == "shared experts" else t)
            for k, t in timed
        ]


class Parts:
    """Seconds summed by three names."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.by_group: dict[str, float] = defaultdict(float)
        self.by_bound: dict[str, float] = defaultdict(float)
        self.by_provider: dict[str, float] = defaultdict(float)

    def add(self, group: str, timing: Timing, *, count: int = 1) -> None:
        """A kernel that runs `count` times."""
        seconds = timing.seconds * count
        self.by_group[group] += seconds
        self.by_bound[timing.bound] += seconds
        self.by_provider[timing.provider] += seconds
