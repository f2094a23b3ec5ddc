"""Which weight is stored in which number format, and what a number takes in each.

A policy speaks of kinds of weights, told apart by their named dimensions and their place in the
model, never by name patterns that can miss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

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
QUANTISED = ("fp8", "nvfp4", "mxfp4")
"""Formats that need scales."""

LINEAR: tuple[WeightKind, ...] = (
    "head",
    "attention",
    "mamba_projection",
    "latent",
    "experts",
    "shared_experts",
    "mlp",
)
"""Kinds that a linear map multiplies by: the only ones that can be quantised.

Norms, convolution, A, D, time steps and router decide too much for the little that they weigh; the
prediction head stays as it is in every published checkpoint.
"""


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
        weight_only: Quantised kinds whose inputs stay in 16 bits.
        blocks: (block of the trunk, kind) -> format, where a block has one of its own.
    """

    name: str
    weights: Mapping[WeightKind, str] = field(default_factory=dict)
    default: str = "bf16"
    kv: str = "fp8"
    state: str = "fp32"
    conv_state: str = "bf16"
    weight_only: tuple[WeightKind, ...] = ()
    blocks: Mapping[tuple[int, WeightKind], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse unknown kinds and formats, and formats where they cannot be."""
        for kind in (*self.weights, *self.weight_only):
            _known(kind, KINDS, what="kind of weight")
        given = [*self.weights.items(), *((k, f) for (_, k), f in self.blocks.items())]
        unfit = [(k, f) for k, f in given if f in QUANTISED and k not in LINEAR]
        if self.default in QUANTISED:
            unfit.append(("default", self.default))  # type: ignore[arg-type]
        if unfit:
            raise RecipeError(
                f"precision {self.name!r}: {unfit[0][0]} cannot be in {unfit[0][1]}",
                f"only these kinds can be quantised: {', '.join(LINEAR)}",
            )
        if idle := [k for k in self.weight_only if k not in self.quantised]:
            raise RecipeError(
                f"precision {self.name!r}: {idle[0]} is weight-only, but not quantised",
                "give it a format, or leave it out of weight_only",
            )
        for text in (*self.weights.values(), self.default, self.kv, self.state, self.conv_state):
            _known(text, FORMATS, what="number format")

    def format_of(self, kind: WeightKind, block: int | None = None) -> str:
        """Format of the weights of a kind, in a block of the trunk if it is one's."""
        if block is not None and (block, kind) in self.blocks:
            return self.blocks[block, kind]
        return self.weights.get(kind, self.default)

    def product_of(self, kind: WeightKind) -> str:
        """Format of the operands of a product with weights of a kind: 16 bits if weight-only."""
        return "bf16" if kind in self.weight_only else self.format_of(kind)

    @property
    def quantised(self) -> tuple[WeightKind, ...]:
        """Kinds that are in a format that needs scales, somewhere."""
        found = [kind for kind, text in self.weights.items() if text in QUANTISED]
        found += [kind for (_, kind), text in self.blocks.items() if text in QUANTISED]
        return tuple(dict.fromkeys(found))

    def check_kinds(self, present: Collection[WeightKind]) -> None:
        """Whether every rule is about something that the model has.

        Args:
            present: Kinds of weights of the model.

        Raises:
            RecipeError: a rule matches nothing.
        """
        if idle := [kind for kind in self.weights if kind not in present]:
            raise RecipeError(
                f"precision {self.name!r} gives {', '.join(idle)} a format; the model has none",
                f"leave it out; the model has: {', '.join(k for k in KINDS if k in present)}",
            )

    def with_caches(self, *, kv: str | None = None, state: str | None = None) -> Precision:
        """The same weights with other formats of KV cache or SSM state."""
        return replace(
            self,
            kv=self.kv if kv is None else kv,
            state=self.state if state is None else state,
        )


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
        Precision(
            "nvfp4-w4a16",
            {**BIAS, "experts": "nvfp4", "shared_experts": "nvfp4", "mamba_projection": "fp8"},
            weight_only=("experts", "shared_experts"),
        ),
        Precision("mxfp4", {**BIAS, "experts": "mxfp4"}, kv="bf16"),
    )
}
"""What published checkpoints do.

`fp8`, `nvfp4`: NVIDIA-Nemotron-Labs-3-Puzzle-75B-A9B, its FP8 and NVFP4 files (arXiv:2607.04371,
2.4; shared experts of the released NVFP4 file are in FP8). `nvfp4-w4a16`: Nemotron-3 Lightning-30B,
but for its head, which stays in BF16 here. `mxfp4`: experts alone, as gpt-oss.
"""


AUTO = "auto"
"""Chooses a format for each block and kind."""

WRITTEN = ("fp8", "nvfp4", "nvfp4-w4a16", AUTO)
"""Names that a checkpoint can be quantised to; a YAML file with one's own besides."""


def check_written(name: str) -> None:
    """Check that a checkpoint can be quantised to a name; a YAML file's is taken as it is.

    Raises:
        RecipeError: it cannot; the hint lists all that can be written.
    """
    if name in WRITTEN or is_file_name(name):
        return
    what = f"{name!r} quantises nothing" if name in PRESETS else f"unknown precision {name!r}"
    guess = nearest(name.lower(), WRITTEN)
    hint = f"did you mean {guess!r}? " if guess else ""
    raise RecipeError(what, f"{hint}take {', '.join(WRITTEN)}, or a YAML file of your own")


def is_file_name(name: str) -> bool:
    """Whether it is the name of a YAML file."""
    return name.endswith((".yaml", ".yml"))


def preset(name: str) -> Precision:
    """A preset by name.

    Raises:
        RecipeError: unknown name.
    """
    return PRESETS[_known(name, tuple(PRESETS), what="precision")]


CACHES = ("default", "kv", "state", "conv_state")


def precision_from(data: Mapping[str, object], *, name: str = "own") -> Precision:
    """One's own precision from plain data.

    Args:
        data: Kind of weight, ``default``, ``kv``, ``state`` or ``conv_state`` -> format, and
            ``weight_only`` -> list of kinds. What is not named is as in `Precision`.
        name: What messages call it.

    Raises:
        RecipeError: an unknown key or format, or a format where it cannot be.
    """
    weights: dict[WeightKind, str] = {}
    others: dict[str, Any] = {}
    for key, value in data.items():
        if key == "weight_only":
            continue
        if key in CACHES:
            others[key] = str(value)
        else:
            _known(key, (*KINDS, *CACHES, "weight_only"), what="kind of weight")
            weights[cast("WeightKind", key)] = str(value)
    only = data.get("weight_only", ())
    if not isinstance(only, list | tuple):
        raise RecipeError(f"weight_only is {only!r}", "give a list of kinds, such as [experts]")
    return Precision(name, weights, weight_only=tuple(only), **others)


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


def may_stay_float32(tensor: TensorAxes) -> bool:
    """Whether a weight is rightly in float32 beside 16-bit ones: vectors, and what routes."""
    is_vector = len(tensor.axes) == 1
    return is_vector or tensor.dtype == "float32" or kind_of(tensor, part="block") == "router"


def num_bytes(numel: float, number_format: str) -> float:
    """Bytes of that many numbers, block scales included; whole for whole blocks."""
    return numel * SIXTEENTHS[number_format] / 16
