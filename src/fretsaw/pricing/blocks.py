"""The kernels of each kind of block on one GPU, from its named dimensions.

Splitting follows vLLM: heads, Mamba channels, shared and routed experts' widths are split by `tp`;
router and latent projections are whole on every GPU; with expert parallelism each GPU has whole
experts. Replicas of `dp` groups exchange tokens for their experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fretsaw.core.hardware import Layout
from fretsaw.core.precision import Precision, WeightKind, num_bytes
from fretsaw.core.shape import Block, Mixer, ModelShape
from fretsaw.errors import RecipeError
from fretsaw.pricing.kernels import (
    SCAN_CHUNK,
    Kernel,
    Step,
    all_reduce,
    all_to_all,
    distinct_experts,
    gemm,
    stream,
)


@dataclass(frozen=True)
class Place:
    """A block, and where and on what it runs."""

    block: Block
    step: Step
    layout: Layout
    precision: Precision

    @property
    def sequences(self) -> float:
        """Sequences of one `dp` group."""
        return self.step.sequences / self.layout.dp

    @property
    def tokens(self) -> float:
        """Tokens of one `dp` group."""
        return self.sequences * self.step.tokens

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.block.sizes["hidden"]

    def product(
        self, tokens: float, widths: tuple[float, float], *, kind: WeightKind, group: str
    ) -> Kernel:
        """A dense product from one width to another with weights of a kind."""
        return gemm(
            tokens,
            inputs=widths[0],
            outputs=widths[1],
            fmt=self.precision.format_of(kind),
            group=group,
            product=self.precision.product_of(kind),
        )


def block_kernels(
    block: Block, *, step: Step, layout: Layout, precision: Precision
) -> tuple[Kernel, ...]:
    """Kernels of one residual block on one GPU of a replica, in the order they run.

    Args:
        block: Its shape.
        step: The forward pass.
        layout: How the replica lies on its GPUs.
        precision: Number formats.

    Returns:
        Nothing for a block that is gone.
    """
    if block.mixer == "none":
        return ()
    place = Place(block, step, layout, precision)
    norm = stream(place.tokens, place.hidden, group="norm")
    return (norm, *MIXER_KERNELS[block.mixer](place))


def head_kernels(
    shape: ModelShape, *, step: Step, layout: Layout, precision: Precision
) -> tuple[Kernel, ...]:
    """Kernels of what is no block: the last norm and the head.

    While decoding every new token meets the head; of a prompt only its last.
    """
    rows = step.sequences / layout.dp * (1 if step.is_prefill else step.tokens)
    hidden, vocab = shape.sizes["hidden"], shape.sizes["vocab"]
    place = Place(Block("none", {"hidden": hidden}), step, layout, precision)
    return (
        stream(rows, hidden, group="head"),
        place.product(rows, (hidden, vocab / layout.tp), kind="head", group="head"),
    )


def _attention(place: Place) -> Iterator[Kernel]:
    s, tp = place.block.sizes, place.layout.tp
    # Fewer KV heads than GPUs: each GPU keeps a copy of one.
    kv_heads = max(1.0, s["kv_head"] / tp)
    heads = s["kv_head"] * s["q_per_kv"] / tp
    width = heads * s["head_dim"]
    qkv = width + 2 * kv_heads * s["head_dim"]
    group = "attention projections"
    yield place.product(place.tokens, (place.hidden, qkv), kind="attention", group=group)
    yield _attend(place, heads=heads, kv_heads=kv_heads)
    yield place.product(place.tokens, (width, place.hidden), kind="attention", group=group)
    yield from all_reduce(place.tokens, place.hidden, gpus=tp)


def _attend(place: Place, *, heads: float, kv_heads: float) -> Kernel:
    """Queries against the cache; of a prompt's own tokens, each sees half on average."""
    step, head_dim, cache = place.step, place.block.sizes["head_dim"], place.precision.kv
    seen = step.context + (step.tokens + 1) / 2
    kept = step.context + step.tokens
    return Kernel(
        "prefill_attention" if step.is_prefill else "attention",
        "attention",
        cache_bytes=num_bytes(place.sequences * kept * 2 * kv_heads * head_dim, cache),
        activation_bytes=num_bytes(place.tokens * 2 * heads * head_dim, "bf16"),
        flops=4.0 * place.tokens * seen * heads * head_dim,
        number_format=cache,
        sizes={
            "sequences": place.sequences,
            "tokens": step.tokens,
            "context": step.context,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
        },
    )


def _mamba(place: Place) -> Iterator[Kernel]:
    s, tp = place.block.sizes, place.layout.tp
    kind: WeightKind = "mamba_projection"
    inner = s["mamba_head"] * s["mamba_dim"] / tp
    groups = max(1.0, s["group"] / tp)
    channels = inner + 2 * groups * s["state"]
    outputs = inner + channels + s["mamba_head"] / tp
    group = "Mamba projections"
    yield place.product(place.tokens, (place.hidden, outputs), kind=kind, group=group)
    yield Kernel(
        "conv",
        "convolution",
        cache_bytes=2
        * num_bytes(place.sequences * channels * (s["kernel"] - 1), place.precision.conv_state),
        activation_bytes=2 * num_bytes(place.tokens * channels, "bf16"),
        flops=2.0 * place.tokens * channels * s["kernel"],
        sizes={"sequences": place.sequences, "tokens": place.step.tokens, "channels": channels},
    )
    yield _recur(place, inner=inner, groups=groups)
    yield stream(place.tokens, 1.5 * inner, group="norm")
    yield place.product(place.tokens, (inner, place.hidden), kind=kind, group=group)
    yield from all_reduce(place.tokens, place.hidden, gpus=tp)


def _recur(place: Place, *, inner: float, groups: float) -> Kernel:
    """One step of the recurrence, or the chunked scan of a prompt.

    FLOPs a token: update 5 N and output 2 N per channel; the scan's four products (C B^T within a
    chunk of Q, its product with X, states, outputs) are 2 Q N G + 2 Q HP + 4 N HP, the first two
    halved because they are causal.

    Source: Mamba-2, arXiv:2405.21060, section 6.
    """
    s, is_prefill = place.block.sizes, place.step.is_prefill
    state = s["state"]
    per_token = 7.0 * inner * state
    if is_prefill:
        per_token = SCAN_CHUNK * (state * groups + inner) + 4.0 * inner * state
    return Kernel(
        "scan" if is_prefill else "state_update",
        "state",
        cache_bytes=2 * num_bytes(place.sequences * inner * state, place.precision.state),
        activation_bytes=num_bytes(place.tokens * (3 * inner + 2 * groups * state), "bf16"),
        flops=place.tokens * per_token,
        number_format="bf16" if is_prefill else place.precision.state,
        sizes={
            "sequences": place.sequences,
            "tokens": place.step.tokens,
            "heads": s["mamba_head"] / place.layout.tp,
            "head_dim": s["mamba_dim"],
            "state": state,
            "groups": groups,
        },
    )


def _mlp(place: Place) -> Iterator[Kernel]:
    tp = place.layout.tp
    yield from _two_products(place, place.block.sizes["ffn"] / tp, kind="mlp", group="MLP")
    yield from all_reduce(place.tokens, place.hidden, gpus=tp)


def _two_products(place: Place, width: float, *, kind: WeightKind, group: str) -> Iterator[Kernel]:
    yield place.product(place.tokens, (place.hidden, width), kind=kind, group=group)
    yield stream(place.tokens, width, group=group)
    yield place.product(place.tokens, (width, place.hidden), kind=kind, group=group)


def _moe(place: Place) -> Iterator[Kernel]:
    s, layout, tokens = place.block.sizes, place.layout, place.tokens
    width, group = s.get("latent", place.hidden), "latent projections"
    yield place.product(tokens, (place.hidden, s["expert"]), kind="router", group="router")
    yield stream(tokens, s["expert"], group="router")
    if "latent" in s:
        yield place.product(tokens, (place.hidden, width), kind="latent", group=group)
    if layout.dp > 1 and layout.ep > 1:
        yield from all_to_all(place.tokens, width, gpus=layout.gpus)
    yield _experts(place, hidden=width)
    if layout.dp > 1 and layout.ep > 1:
        yield from all_to_all(place.tokens, width, gpus=layout.gpus)
    if "latent" in s:
        yield place.product(tokens, (width, place.hidden), kind="latent", group=group)
    yield from _two_products(
        place, s["shared_ffn"] / layout.tp, kind="shared_experts", group="shared experts"
    )
    yield from all_reduce(place.tokens, place.hidden, gpus=layout.tp)


def _experts(place: Place, *, hidden: float) -> Kernel:
    """The routed experts of one GPU: split by width, or whole ones of which each GPU has a share.

    With expert parallelism the tokens of all `dp` groups meet each GPU's experts, of which each
    takes `top_k / ep`.
    """
    s, layout = place.block.sizes, place.layout
    top_k, fmt = place.block.settings["top_k"], place.precision.format_of("experts")
    product = place.precision.product_of("experts")
    tokens = place.tokens * (layout.dp if layout.ep > 1 else 1)
    ffn = s["ffn"] if layout.ep > 1 else s["ffn"] / layout.tp
    local = s["expert"] / layout.ep
    pairs = tokens * top_k / layout.ep
    used = distinct_experts(tokens, top_k=top_k, experts=s["expert"]) / layout.ep
    return Kernel(
        "experts",
        "experts",
        weight_bytes=num_bytes(used * 2 * hidden * ffn, fmt),
        activation_bytes=num_bytes(pairs * 2 * (hidden + ffn), "bf16"),
        flops=4.0 * pairs * hidden * ffn,
        number_format=fmt,
        sizes={
            "tokens": tokens,
            "top_k": top_k,
            "expert": local,
            "experts": s["expert"],
            "hidden": hidden,
            "ffn": ffn,
        },
        product=product if product != fmt else "",
    )


MIXER_KERNELS: dict[Mixer, Callable[[Place], Iterator[Kernel]]] = {
    "attention": _attention,
    "mamba": _mamba,
    "mlp": _mlp,
    "moe": _moe,
}


MOST_GPUS = 64
"""Of one replica, in hints."""


def check_layout(shape: ModelShape, layout: Layout, *, gpus: int) -> None:
    """Check that a model can be laid out so.

    Heads are split evenly. Of KV heads fewer than GPUs each GPU keeps a copy of one, as of a lone
    group of Mamba.

    Raises:
        RecipeError: the layout does not divide heads, groups, experts or the node.

    Source: vLLM's `QKVParallelLinear` and `MambaMixer2`.
    """
    if gpus % layout.gpus:
        sizes = [str(n) for n in range(1, min(gpus, MOST_GPUS) + 1) if gpus % n == 0]
        raise RecipeError(
            f"layout {layout} takes {layout.gpus} GPUs, which does not divide the node's {gpus}",
            f"take a layout of one of these numbers of GPUs: {', '.join(sizes)}",
        )
    for index, block in enumerate(shape.blocks):
        for what, size in _divided(block, tp=layout.tp):
            if size % layout.tp:
                raise RecipeError(
                    f"tp{layout.tp} does not divide the {size} {what} of block {index}",
                    "take a tp that divides heads and groups",
                )
        if layout.ep > 1 and block.mixer == "moe" and block.sizes["expert"] % layout.ep:
            raise RecipeError(
                f"ep{layout.ep} does not divide the {block.sizes['expert']} experts of block "
                f"{index}",
                "take another ep, or ep1",
            )


def _divided(block: Block, *, tp: int) -> Iterator[tuple[str, int]]:
    """What has to be split evenly, and how many there are."""
    s = block.sizes
    if block.mixer == "attention":
        yield "query heads", s["kv_head"] * s["q_per_kv"]
        if tp % s["kv_head"]:
            yield "KV heads", s["kv_head"]
    if block.mixer == "mamba":
        yield "Mamba heads", s["mamba_head"]
        if s["group"] > 1:
            yield "groups", s["group"]
