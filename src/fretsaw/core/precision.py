"""Which weight is stored in which number format, and what a number takes in each.

A policy speaks of kinds of weights, told apart by their named dimensions and their place in the
model, never by name patterns that can miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from fretsaw.core.axes import TensorAxes
from fretsaw.errors import RecipeError, nearest

WeightKind = Literal[
    "embedding",
    "head",
    "norm",
    "attention",
    "mamba_projection",
    "mamba_other",
    "router",
    "router_bias",
    "latent",
    "experts",
    "shared_experts",
    "mlp",
    "mtp",
]
KINDS: tuple[WeightKind, ...] = get_args(WeightKind)

SIXTEENTHS = {"fp32": 64, "bf16": 32, "fp16": 32, "fp8": 16, "nvfp4": 9, "mxfp4": 8.5}
"""Sixteenths of a byte per number, its block's scale included.

NVFP4: 4 bits and an 8-bit scale per 16 numbers. MXFP4: 4 bits and an 8-bit scale per 32.
Source: NVFP4 (NVIDIA cuDNN, block scaling), OCP Microscaling Formats 1.0.
"""

FORMATS = tuple(SIXTEENTHS)


def _known(name: str, known: tuple[str, ...], *, what: str) -> str:
    if name in known:
        return name
    guess = nearest(name, known)
    hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(known)}"
    raise RecipeError(f"unknown {what} {name!r}", hint)


@dataclass(frozen=True)
class Precision:
    """Number formats of a deployment: of weights by kind, and of what requests keep.

    Attributes:
        name: Of the preset, or the user's.
        weights: Kind of weight -> format; kinds that are not named are in `default`.
        default: Format of every other weight.
        kv: Format of the KV cache.
        state: Format of the SSM state.
        conv_state: Format of the convolution state.
    """

    name: str
    weights: Mapping[WeightKind, str] = field(default_factory=dict)
    default: str = "bf16"
    kv: str = "fp8"
    state: str = "fp32"
    conv_state: str = "bf16"

    def __post_init__(self) -> None:
        """Refuse unknown kinds and formats."""
        for kind in self.weights:
            _known(kind, KINDS, what="kind of weight")
        for text in (*self.weights.values(), self.default, self.kv, self.state, self.conv_state):
            _known(text, FORMATS, what="number format")

    def format_of(self, kind: WeightKind) -> str:
        """Format of the weights of a kind."""
        return self.weights.get(kind, self.default)

    def with_caches(self, *, kv: str | None = None, state: str | None = None) -> Precision:
        """The same weights with other formats of KV cache or SSM state."""
        return replace(self, kv=kv or self.kv, state=state or self.state)


BIAS: dict[WeightKind, str] = {"router_bias": "fp32"}

PRESETS = {
    preset.name: preset
    for preset in (
        Precision("fp32", default="fp32", kv="fp32", conv_state="fp32"),
        Precision("bf16", BIAS, kv="bf16"),
        Precision(
            "fp8",
            {**BIAS, "experts": "fp8", "shared_experts": "fp8", "mamba_projection": "fp8"},
        ),
        Precision(
            "nvfp4",
            {**BIAS, "experts": "nvfp4", "shared_experts": "fp8", "mamba_projection": "fp8"},
        ),
        Precision("mxfp4", {**BIAS, "experts": "mxfp4"}, kv="bf16"),
    )
}
"""What published checkpoints do.

`fp8`, `nvfp4`: NVIDIA-Nemotron-Labs-3-Puzzle-75B-A9B, its FP8 and NVFP4 files (arXiv:2607.04371,
2.4; shared experts of the released NVFP4 file are in FP8). `mxfp4`: experts alone, as gpt-oss.
"""


def preset(name: str) -> Precision:
    """A preset by name.

    Raises:
        RecipeError: unknown name.
    """
    return PRESETS[_known(name, tuple(PRESETS), what="precision")]


def kind_of(tensor: TensorAxes, *, part: str) -> WeightKind:
    """Kind of a weight, from its dimensions and its place in the model.

    Args:
        tensor: Its line in the tensor table.
        part: ``embedding``, ``block``, ``norm``, ``head`` or ``mtp``.
    """
    if part != "block":
        return {"embedding": "embedding", "head": "head", "norm": "norm"}.get(part, "mtp")  # type: ignore[return-value]
    for dim, kind in (
        ("shared_ffn", "shared_experts"),
        ("head_dim", "attention"),
    ):
        if tensor.has(dim):
            return kind  # type: ignore[return-value]
    if "expert" in tensor.name_dims:
        return "experts"
    if tensor.has("expert"):
        return "router" if tensor.has("hidden") else "router_bias"
    if tensor.has("mamba_head"):
        return "mamba_projection" if tensor.has("hidden") else "mamba_other"
    if tensor.has("latent"):
        return "latent"
    return "mlp" if tensor.has("ffn") else "norm"


def num_bytes(numel: float, number_format: str) -> float:
    """Bytes of that many numbers, block scales included; whole for whole blocks."""
    return numel * SIXTEENTHS[number_format] / 16
