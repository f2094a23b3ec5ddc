"""What each part of the demo parent is worth, measured on its bfloat16 export, and its card.

Losses are in nats a token, on windows of the validation split unless said otherwise.
"""

import json
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from parent_card import write_card
from parent_model import CONTEXT, MtpHead, load_texts, prepare
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, NemotronHForCausalLM, PreTrainedTokenizerFast
from transformers.models.nemotron_h.modeling_nemotron_h import (
    NemotronHBlock,
    NemotronHExperts,
    NemotronHMamba2Mixer,
    NemotronHTopkRouter,
)

from fretsaw.runtime.scan import causal_conv

BATCH = 4
NUM_WINDOWS = 64
NUM_RECALL_DOCUMENTS = 200
LOOKUP = re.compile(r'^assert \w+\["\w+"\] == "(\w+)"$', re.MULTILINE)


def evaluate_parent(folder: Path, *, corpus: Path, progress: dict) -> dict:
    """Measure the checkpoint in `folder`; write results.json and README.md into it.

    Args:
        folder: Exported checkpoint.
        corpus: Folder written by corpus.py.
        progress: Steps, tokens, seconds and curve of the training.

    Returns:
        The measurements.
    """
    torch.set_grad_enabled(False)
    model, mtp = load_parent(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    documents = load_texts(corpus, "validation")
    stream = tokenize(documents, tokenizer)
    windows = spread_windows(stream, NUM_WINDOWS)
    whole = mean_loss(model, spread_windows(stream, (len(stream) - 2) // CONTEXT))
    results = {
        "sizes": count_parameters(model, mtp),
        "training": progress,
        "machine": f"{platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} thread",
        "validation_tokens": len(stream),
        "validation_loss": whole,
        "bits_per_byte": whole / 0.6931 * len(stream) / count_bytes(documents),
        "knockouts": measure_knockouts(model, windows),
        "largest_expert_share": measure_largest_share(model, windows),
        "recall": measure_recall(model, documents, tokenizer=tokenizer),
        "mtp": measure_mtp(model, mtp, windows=windows),
    }
    text = json.dumps(results, indent=2) + "\n"
    (folder / "results.json").write_text(text, encoding="utf-8")
    write_card(folder / "README.md", results)
    return results


def load_parent(folder: Path) -> tuple[NemotronHForCausalLM, MtpHead]:
    """Trunk and MTP head of an export, its bfloat16 weights in float32."""
    model = NemotronHForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="grouped_mm"
    )
    prepare(model)
    stored: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        stored |= {k: v.float() for k, v in load_file(path).items() if k.startswith("mtp.")}
    mtp = MtpHead()
    state = {}
    for name, tensor in mtp.state_dict().items():
        if name.endswith(("experts.up_proj", "experts.down_proj")):
            stem, projection = name.rsplit(".", 1)
            names = [f"mtp.{stem}.{e}.{projection}.weight" for e in range(len(tensor))]
            state[name] = torch.stack([stored[n] for n in names])
        else:
            state[name] = stored[f"mtp.{name}"]
    mtp.load_state_dict(state)
    return model.eval(), mtp.eval()


def tokenize(documents: list[dict[str, str]], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Tokens of all documents, each followed by the end token, (tokens,)."""
    ids: list[int] = []
    for document in documents:
        ids += [*tokenizer(document["text"])["input_ids"], tokenizer.eos_token_id]
    return torch.tensor(ids)


def spread_windows(stream: Tensor, num_windows: int) -> Tensor:
    """Evenly spread windows of a stream, (num_windows, CONTEXT + 2)."""
    starts = torch.linspace(0, len(stream) - CONTEXT - 2, num_windows).long().tolist()
    return torch.stack([stream[start : start + CONTEXT + 2] for start in starts])


def count_bytes(documents: list[dict[str, str]]) -> int:
    """UTF-8 bytes of all documents."""
    return sum(len(document["text"].encode()) for document in documents)


def count_parameters(model: NemotronHForCausalLM, mtp: MtpHead) -> dict[str, int]:
    """Parameters of the whole, by part."""
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    outside = sum(n for name, n in counts.items() if "embeddings" in name or "lm_head" in name)
    return {
        "total": sum(counts.values()),
        "trunk": sum(counts.values()) - outside,
        "routed_experts": sum(n for name, n in counts.items() if ".experts." in name),
        "mtp": sum(parameter.numel() for parameter in mtp.parameters()),
    }


def mean_loss(model: NemotronHForCausalLM, windows: Tensor) -> float:
    """Cross-entropy of the next token over windows, in nats."""
    total = 0.0
    for batch in windows.split(BATCH):
        logits = model(input_ids=batch[:, :CONTEXT], use_cache=False).logits
        target = batch[:, 1 : CONTEXT + 1]
        total += functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), reduction="sum"
        ).item()
    return total / (len(windows) * CONTEXT)


def measure_knockouts(model: NemotronHForCausalLM, windows: Tensor) -> dict:
    """Loss as it is, and what it rises by when a part of the model is taken out."""
    base = mean_loss(model, windows)

    def cost(part: Callable[[], object]) -> float:
        with part():
            return mean_loss(model, windows) - base

    every_state = state_contributions(model, windows[:8])
    first_half = {
        mixer: torch.arange(values.shape[1], 0, -1.0).expand(values.shape)
        for mixer, values in every_state.items()
    }
    return {
        "loss": base,
        "routed_experts_out": cost(lambda: without_experts(model)),
        "top_k_halved": cost(lambda: halved_top_k(model)),
        "state_halved_by_contribution": cost(lambda: halved_state(every_state)),
        "state_halved_first_half_kept": cost(lambda: halved_state(first_half)),
        "block_out": [cost(lambda b=block: without_block(b)) for block in model.model.layers],
    }


@contextmanager
def without_experts(model: nn.Module) -> Iterator[None]:
    """All routed experts give zero."""
    experts = [m for m in model.modules() if isinstance(m, NemotronHExperts)]
    with ExitStack() as stack:
        for module in experts:
            stack.enter_context(_hooked(module, lambda _, __, out: torch.zeros_like(out)))
        yield


@contextmanager
def without_block(block: NemotronHBlock) -> Iterator[None]:
    """One block passes its input on."""
    with _hooked(block, lambda _, inputs, __: inputs[0]):
        yield


@contextmanager
def halved_top_k(model: nn.Module) -> Iterator[None]:
    """Half as many experts a token, their weights normalised anew."""
    routers = [m for m in model.modules() if isinstance(m, NemotronHTopkRouter)]
    full = routers[0].top_k
    try:
        for router in routers:
            router.top_k = full // 2
        yield
    finally:
        for router in routers:
            router.top_k = full


@contextmanager
def halved_state(importance: dict[NemotronHMamba2Mixer, Tensor]) -> Iterator[None]:
    """Of each group's state only the more important half is read.

    Args:
        importance: For each mixer, (group, state).
    """
    kept: list[tuple[Tensor, Tensor]] = []
    try:
        for mixer, values in importance.items():
            num_groups, state = values.shape
            lost = values.argsort(dim=1)[:, : state // 2]
            first = mixer.intermediate_size + num_groups * state
            rows = (first + torch.arange(num_groups)[:, None] * state + lost).flatten()
            for parameter in (mixer.conv1d.weight, mixer.conv1d.bias):
                kept.append((parameter, parameter.clone()))
                parameter[rows] = 0
        yield
    finally:
        for parameter, values in kept:
            parameter.copy_(values)


@contextmanager
def _hooked(module: nn.Module, hook: Callable) -> Iterator[None]:
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def state_contributions(
    model: NemotronHForCausalLM, windows: Tensor
) -> dict[NemotronHMamba2Mixer, Tensor]:
    """Contribution of every state channel: mean |B| times mean |C|, (group, state) a mixer."""
    contributions: dict[NemotronHMamba2Mixer, Tensor] = {}

    def record(mixer: NemotronHMamba2Mixer, projected: Tensor) -> None:
        inner, states = mixer.intermediate_size, mixer.n_groups * mixer.ssm_state_size
        mixed = projected[..., inner : inner + mixer.conv_dim]
        mixed = functional.silu(
            causal_conv(mixed, mixer.conv1d.weight.squeeze(1), bias=mixer.conv1d.bias)
        )
        _, written, read = mixed.split([inner, states, states], dim=-1)
        contribution = written.abs().mean((0, 1)) * read.abs().mean((0, 1))
        contributions[mixer] = contribution.view(mixer.n_groups, -1)

    with ExitStack() as stack:
        for mixer in model.modules():
            if isinstance(mixer, NemotronHMamba2Mixer):
                hook = lambda _, __, out, mixer=mixer: record(mixer, out)  # noqa: E731
                stack.enter_context(_hooked(mixer.in_proj, hook))
        mean_loss(model, windows)
    return contributions


def measure_largest_share(model: NemotronHForCausalLM, windows: Tensor) -> list[float]:
    """For each MoE block, the share of all choices that its busiest expert gets."""
    routers = [m for m in model.modules() if isinstance(m, NemotronHTopkRouter)]
    counts = {router: torch.zeros(router.num_experts) for router in routers}

    def count(router: NemotronHTopkRouter, _: object, out: tuple[Tensor, ...]) -> None:
        counts[router] += torch.bincount(out[2].flatten(), minlength=router.num_experts)

    with ExitStack() as stack:
        for router in routers:
            stack.enter_context(_hooked(router, count))
        mean_loss(model, windows)
    return [float(c.max() / c.sum()) for c in counts.values()]


def measure_recall(
    model: NemotronHForCausalLM,
    documents: list[dict[str, str]],
    *,
    tokenizer: PreTrainedTokenizerFast,
) -> dict[str, float]:
    """Share of looked-up values that greedy decoding gets wholly right, and of chance."""
    texts = [d["text"] for d in documents if d["module"] == "recall"][:NUM_RECALL_DOCUMENTS]
    right: list[bool] = []
    chance: list[float] = []
    for text in texts:
        encoded = tokenizer(text, return_offsets_mapping=True)
        ids = torch.tensor(encoded["input_ids"][: 2 * CONTEXT])
        predicted = model(input_ids=ids[None], use_cache=False).logits[0].argmax(-1)
        hit = predicted[:-1] == ids[1:]
        lookups = list(LOOKUP.finditer(text))
        for lookup in lookups:
            low, high = lookup.span(1)
            tokens = [
                i
                for i, (start, end) in enumerate(encoded["offset_mapping"][: len(ids)])
                if start < high and end > low
            ]
            if tokens:
                right.append(all(bool(hit[i - 1]) for i in tokens))
                chance.append(1 / len(lookups))
    return {
        "accuracy": sum(right) / len(right),
        "guess_among_values": sum(chance) / len(chance),
        "lookups": len(right),
    }


def measure_mtp(model: NemotronHForCausalLM, mtp: MtpHead, *, windows: Tensor) -> dict[str, float]:
    """Loss and accuracy of the MTP head on the token after next; of the trunk on the next."""
    losses, hits, next_hits = [], [], []
    for batch in windows.split(BATCH):
        hidden = model.model(input_ids=batch[:, :CONTEXT], use_cache=False).last_hidden_state
        following = model.model.embeddings(batch[:, 1 : CONTEXT + 1])
        logits = model.lm_head(mtp(hidden, following)).flatten(0, 1)
        target = batch[:, 2:].flatten()
        losses.append(functional.cross_entropy(logits, target))
        hits.append((logits.argmax(-1) == target).float().mean())
        following_hit = model.lm_head(hidden).argmax(-1) == batch[:, 1 : CONTEXT + 1]
        next_hits.append(following_hit.float().mean())
    return {
        "loss": torch.stack(losses).mean().item(),
        "accuracy": torch.stack(hits).mean().item(),
        "next_token_accuracy": torch.stack(next_hits).mean().item(),
    }
