"""Train the demo parent on the corpus of corpus.py, export it and write its card.

    python recipes/demo/train_parent.py --corpus DIR --out DIR --minutes 70

The schedule follows the clock: the rate is constant, drops, and falls to zero by the last minute.
A snapshot and an export are written on the way; the same command takes a killed run up again.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from evaluate_parent import evaluate_parent
from export_parent import export
from optimizer import make_optimizers
from parent_model import CONTEXT, MtpHead, build_parent, load_texts, train_tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import NemotronHForCausalLM, PreTrainedTokenizerFast
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHTopkRouter

SEED = 20261201
BATCH = 4
WARMUP = 0.02
DECAY_FROM = 0.33
# A batch of 2048 tokens is noise to the peak rate: the loss stands still until the rate drops.
DROP_TO = 0.4
MTP_WEIGHT = 0.3
BIAS_RATE = 1e-3
EXPORT_EVERY_S = 600
FIRST_EXPORT_S = 60


@dataclass
class Progress:
    """Where the training stands; kept in the snapshot and beside the export."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)


class RouterBalance:
    """Counts how often each expert is chosen, and moves the correction bias against it.

    Source: auxiliary-loss-free balancing, arXiv:2408.15664.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self.routers = [m for module in modules for m in module.modules()]
        self.routers = [m for m in self.routers if isinstance(m, NemotronHTopkRouter)]
        self.counts = [torch.zeros(router.num_experts) for router in self.routers]
        for index, router in enumerate(self.routers):
            router.register_forward_hook(lambda _, __, out, index=index: self._count(index, out[2]))

    def _count(self, index: int, chosen: Tensor) -> None:
        self.counts[index] += torch.bincount(chosen.flatten(), minlength=len(self.counts[index]))

    def update(self) -> float:
        """Move every bias by `BIAS_RATE`; the largest share of one expert since the last call."""
        largest = 0.0
        for router, counts in zip(self.routers, self.counts, strict=True):
            router.e_score_correction_bias += BIAS_RATE * (counts.mean() - counts).sign()
            largest = max(largest, float(counts.max() / counts.sum()))
        self.forget()
        return largest

    def forget(self) -> None:
        """Drop the counts."""
        for counts in self.counts:
            counts.zero_()


def main() -> None:
    """Parse the command line, train, export, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by corpus.py")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--work", type=Path, help="folder of the snapshot; default OUT-work")
    parser.add_argument("--minutes", type=float, default=70.0, help="time to train")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    work = args.work or args.out.with_name(f"{args.out.name}-work")
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = prepare_tokenizer(args.corpus, work)
    streams = {
        split: prepare_stream(args.corpus, split, tokenizer=tokenizer, work=work)
        for split in ("train", "validation")
    }
    progress = train(streams, tokenizer=tokenizer, work=work, out=args.out, minutes=args.minutes)
    (work / "progress.json").write_text(json.dumps(asdict(progress)) + "\n")
    evaluate_parent(args.out, corpus=args.corpus, progress=asdict(progress))


def prepare_tokenizer(corpus: Path, work: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of an earlier run in `work`, or a new one trained on the train split."""
    folder = work / "tokenizer"
    if not folder.exists():
        train_tokenizer([d["text"] for d in load_texts(corpus, "train")]).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def prepare_stream(
    corpus: Path, split: str, *, tokenizer: PreTrainedTokenizerFast, work: Path
) -> Tensor:
    """All tokens of a split, documents parted by the end token, (tokens,) int32; kept in `work`."""
    path = work / f"{split}.pt"
    if path.exists():
        return torch.load(path)
    texts = [document["text"] for document in load_texts(corpus, split)]
    ids: list[int] = []
    for start in range(0, len(texts), 500):
        for encoded in tokenizer(texts[start : start + 500])["input_ids"]:
            ids += [*encoded, tokenizer.eos_token_id]
    stream = torch.tensor(ids, dtype=torch.int32)
    torch.save(stream, path)
    return stream


def train(
    streams: dict[str, Tensor],
    *,
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
    out: Path,
    minutes: float,
) -> Progress:
    """Train for `minutes`, with snapshots in `work` and exports in `out`."""
    model, mtp = build_parent(SEED)
    optimizers = make_optimizers({"model": model, "mtp": mtp})
    progress = _resume(work, model=model, mtp=mtp, optimizers=optimizers)
    balance = RouterBalance(model, mtp)
    order = window_order(streams["train"])
    saved_s = progress.elapsed_s + FIRST_EXPORT_S - EXPORT_EVERY_S
    began_s = time.monotonic() - progress.elapsed_s
    while progress.elapsed_s < minutes * 60:
        fraction = progress.elapsed_s / (minutes * 60)
        set_rates(optimizers, learning_rate_factor(fraction))
        batch = take_batch(streams["train"], order, step=progress.step)
        losses = training_step(model, mtp, batch=batch, optimizers=optimizers)
        largest_share = balance.update()
        progress.step += 1
        progress.tokens += BATCH * CONTEXT
        progress.elapsed_s = time.monotonic() - began_s
        if progress.step % 10 == 0:
            _log(progress, loss=losses[0], mtp=losses[1], largest_share=largest_share)
        is_last = progress.elapsed_s >= minutes * 60
        if is_last or progress.elapsed_s - saved_s > EXPORT_EVERY_S:
            saved_s = progress.elapsed_s
            _validate(model, mtp, stream=streams["validation"], progress=progress)
            balance.forget()
            _save(work, model=model, mtp=mtp, optimizers=optimizers, progress=progress)
            export(out, model=model, mtp=mtp, tokenizer=tokenizer)
    return progress


def training_step(
    model: NemotronHForCausalLM,
    mtp: MtpHead,
    *,
    batch: Tensor,
    optimizers: list[torch.optim.Optimizer],
) -> tuple[float, float]:
    """One update; the losses of trunk and MTP head."""
    loss, mtp_loss = compute_losses(model, mtp, batch=batch)
    (loss + MTP_WEIGHT * mtp_loss).backward()
    nn.utils.clip_grad_norm_([*model.parameters(), *mtp.parameters()], 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), mtp_loss.item()


def compute_losses(
    model: NemotronHForCausalLM, mtp: MtpHead, *, batch: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats of the next token, and of the token after next by the MTP head.

    The head learns on half of the batch and sends no gradient into trunk, embedding or lm_head.

    Args:
        batch: Token ids, (batch, CONTEXT + 2).
    """
    hidden = model.model(input_ids=batch[:, :CONTEXT], use_cache=False).last_hidden_state
    loss = _cross_entropy(model.lm_head(hidden), batch[:, 1 : CONTEXT + 1])
    half = slice(0, max(1, len(batch) // 2))
    following = model.model.embeddings(batch[half, 1 : CONTEXT + 1]).detach()
    predicted = mtp(hidden[half].detach(), following)
    logits = functional.linear(predicted, model.lm_head.weight.detach())
    return loss, _cross_entropy(logits, batch[half, 2:])


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def window_order(stream: Tensor) -> Tensor:
    """Starts of all training windows in a seeded order."""
    starts = torch.arange(0, len(stream) - CONTEXT - 2, CONTEXT)
    return starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(SEED))]


def take_batch(stream: Tensor, order: Tensor, *, step: int) -> Tensor:
    """Token ids of one step, (BATCH, CONTEXT + 2); after an epoch it begins anew."""
    index = torch.arange(step * BATCH, (step + 1) * BATCH) % len(order)
    return torch.stack([stream[s : s + CONTEXT + 2] for s in order[index].tolist()]).long()


def learning_rate_factor(fraction: float) -> float:
    """Warm-up, constant, a drop to `DROP_TO`, and from there a linear fall."""
    if fraction < WARMUP:
        return max(0.05, fraction / WARMUP)
    if fraction < DECAY_FROM:
        return 1.0
    return DROP_TO * max(0.01, (1 - fraction) / (1 - DECAY_FROM))


def set_rates(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set each group's learning rate to `factor` of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor


@torch.no_grad()
def _validate(
    model: NemotronHForCausalLM, mtp: MtpHead, *, stream: Tensor, progress: Progress
) -> None:
    order = torch.linspace(0, len(stream) - CONTEXT - 2, 64).long()
    batches = [take_batch(stream, order, step=step) for step in range(len(order) // BATCH)]
    losses = torch.tensor(
        [[x.item() for x in compute_losses(model, mtp, batch=b)] for b in batches]
    )
    loss, mtp_loss = losses.mean(0).tolist()
    progress.curve.append({"tokens": progress.tokens, "loss": loss, "mtp_loss": mtp_loss})
    _log(progress, validation_loss=loss, validation_mtp_loss=mtp_loss)


def _log(progress: Progress, **values: float) -> None:
    numbers = " ".join(f"{name} {value:.4f}" for name, value in values.items())
    speed = progress.tokens / max(progress.elapsed_s, 1e-9)
    print(
        f"step {progress.step} tokens {progress.tokens} elapsed_s {progress.elapsed_s:.0f} "
        f"tokens_per_s {speed:.0f} {numbers}",
        flush=True,
    )


def _save(
    work: Path,
    *,
    model: nn.Module,
    mtp: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
) -> None:
    snapshot = {
        "model": model.state_dict(),
        "mtp": mtp.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": asdict(progress),
    }
    torch.save(snapshot, work / "snapshot.aside")
    (work / "snapshot.aside").replace(work / "snapshot.pt")


def _resume(
    work: Path,
    *,
    model: nn.Module,
    mtp: nn.Module,
    optimizers: list[torch.optim.Optimizer],
) -> Progress:
    path = work / "snapshot.pt"
    if not path.exists():
        return Progress()
    snapshot = torch.load(path)
    model.load_state_dict(snapshot["model"])
    mtp.load_state_dict(snapshot["mtp"])
    for optimizer, state in zip(optimizers, snapshot["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    return Progress(**snapshot["progress"])


if __name__ == "__main__":
    main()
