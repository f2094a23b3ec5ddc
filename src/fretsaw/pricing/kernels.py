"""What runs on one GPU for one step of a block: kernels with their bytes and FLOPs, no seconds.

A step is one forward pass of a replica. Seconds come from a timer: `roofline` (physics), `lookup`
(measured tables) or `measure` (this machine).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fretsaw.core.precision import num_bytes

Operation = Literal[
    "gemm", "experts", "attention", "prefill_attention", "state_update", "scan", "conv",
    "stream", "all_reduce", "all_to_all",
]  # fmt: skip

ACTIVATION = "bf16"
SCAN_CHUNK = 128
"""Tokens that a prefill scan takes at once: `chunk_size` of the Nemotron-H configs."""


@dataclass(frozen=True)
class Step:
    """One forward pass of a replica.

    Attributes:
        sequences: In flight on the whole replica; may be a fraction, for interpolation.
        tokens: New tokens of each: 1 while decoding (1 + drafts when verifying), many in a prefill.
        context: Tokens before them.
    """

    sequences: float
    tokens: int = 1
    context: float = 0.0

    @property
    def is_prefill(self) -> bool:
        """Whether the scan form of Mamba and the causal form of attention run."""
        return self.tokens > 8  # noqa: PLR2004 - no engine drafts more than seven tokens


@dataclass(frozen=True)
class Kernel:
    """One launch, or several alike, on one GPU.

    Attributes:
        operation: What it does; a timer knows its formula or its table.
        group: What it belongs to, for the account of where time goes.
        weight_bytes: Weights read.
        cache_bytes: KV cache or state read and written.
        activation_bytes: Inputs read and outputs written.
        flops: Multiply-adds count twice.
        number_format: Of its weights (or of the cache for attention).
        product: Format of the operands where it is another: 16 bits for weight-only formats.
        sizes: Its dimensions, by the operation:
            gemm: tokens, outputs, inputs;
            experts: tokens, top_k, expert (on this GPU), experts (of the model), hidden, ffn;
            attention, prefill_attention: sequences, tokens, context, heads, kv_heads, head_dim;
            state_update, scan: sequences, tokens, heads, head_dim, state, groups;
            conv: sequences, tokens, channels; stream: tokens, width;
            all_reduce, all_to_all: bytes, gpus.
        launches: How many.
    """

    operation: Operation
    group: str
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    activation_bytes: float = 0.0
    flops: float = 0.0
    number_format: str = ACTIVATION
    sizes: Mapping[str, float] = field(default_factory=dict)
    launches: int = 1
    product: str = ""

    @property
    def bytes(self) -> float:
        """Everything that goes through memory."""
        return self.weight_bytes + self.cache_bytes + self.activation_bytes

    @property
    def largest_bytes(self) -> str:
        """What most of its bytes are: ``weights``, ``KV``, ``state`` or ``activations``."""
        if self.cache_bytes > max(self.weight_bytes, self.activation_bytes):
            return "KV" if self.group == "attention" else "state"
        return "weights" if self.weight_bytes > self.activation_bytes else "activations"

    @property
    def computed_in(self) -> str:
        """Format of the units that do its FLOPs: attention's BF16, element-wise work's FP32."""
        if self.operation in {"gemm", "experts", "scan"}:
            return self.product or self.number_format
        return "bf16" if self.operation in {"attention", "prefill_attention"} else "fp32"


@dataclass(frozen=True)
class Timing:
    """Seconds of a kernel, what bounds it, and who says so.

    Attributes:
        seconds: Of all its launches.
        bound: ``weights``, ``KV``, ``state``, ``activations``, ``compute``, ``launch``, ``link``.
        provider: ``roofline``, ``table``, ``table+model`` or ``measured``.
    """

    seconds: float
    bound: str
    provider: str


class Timer(Protocol):
    """Says how long a kernel takes."""

    def time(self, kernel: Kernel) -> Timing:
        """Seconds of the kernel on this timer's hardware and engine."""
        ...


def gemm(
    tokens: float, *, outputs: float, inputs: float, fmt: str, group: str, product: str = ""
) -> Kernel:
    """A dense product: (tokens, inputs) x (inputs, outputs), its weight read once."""
    return Kernel(
        "gemm",
        group,
        weight_bytes=num_bytes(outputs * inputs, fmt),
        activation_bytes=num_bytes(tokens * (inputs + outputs), ACTIVATION),
        flops=2.0 * tokens * outputs * inputs,
        number_format=fmt,
        sizes={"tokens": tokens, "outputs": outputs, "inputs": inputs},
        product=product if product != fmt else "",
    )


def stream(tokens: float, width: float, *, group: str) -> Kernel:
    """An element-wise kernel, such as a norm: everything read and written once."""
    return Kernel(
        "stream",
        group,
        activation_bytes=2 * num_bytes(tokens * width, ACTIVATION),
        sizes={"tokens": tokens, "width": width},
    )


def all_reduce(tokens: float, hidden: float, *, gpus: int) -> tuple[Kernel, ...]:
    """The sum of partial outputs over the GPUs of a group; nothing on one GPU."""
    size = num_bytes(tokens * hidden, ACTIVATION)
    kernel = Kernel("all_reduce", "link", sizes={"bytes": size, "gpus": gpus})
    return (kernel,) if gpus > 1 else ()


def all_to_all(tokens: float, hidden: float, *, gpus: int) -> tuple[Kernel, ...]:
    """Tokens to the GPUs of their experts, or back; nothing on one GPU."""
    size = num_bytes(tokens * hidden, ACTIVATION)
    kernel = Kernel("all_to_all", "link", sizes={"bytes": size, "gpus": gpus})
    return (kernel,) if gpus > 1 else ()


def distinct_experts(tokens: float, *, top_k: float, experts: float) -> float:
    """Expected number of different experts that a batch uses, each token choosing evenly.

        experts * (1 - (1 - top_k / experts) ** tokens)

    Real routers are less even, so they use fewer; for up to one token it is top_k * tokens.

    Source: Own; expectation of a coupon collector that draws top_k at a time.
    """
    if tokens <= 1:
        return top_k * tokens
    return float(experts * (1.0 - (1.0 - top_k / experts) ** tokens))
