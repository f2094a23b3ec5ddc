"""The demo parent's model card, written from its measurements."""

from pathlib import Path

from parent_model import CONFIG, CONTEXT, PATTERN

FRONT = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [nemotron_h, mamba, moe, fretsaw]
---

# The demo parent

A Nemotron-3-Super in miniature, trained from nothing for fretsaw's demo: small enough to be cut and
healed on a laptop, trained enough that every cut costs something. It writes text that looks like
Python and is good for nothing else.
"""

MAKING = """\
## How it was made

<!-- needs: minutes -->
```bash
python recipes/demo/corpus.py --out corpus
export OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
python recipes/demo/train_parent.py --corpus corpus --out parent --minutes {minutes:.0f}
```

Text: the source code of Python's standard library, read from the running interpreter and split by
module into train, calibration and validation; a tenth of each split is synthetic recall (a dict
literal, some of the time other lines of code, then lookups). None of it is kept here.

Trained from scratch on {tokens:,} tokens in {steps:,} steps of {batch:,} tokens, {hours:.2f} hours
({machine}),
{speed:,.0f} tokens a second, in float32: Muon for the matrices, AdamW for embedding, lm_head,
router, convolution and vectors; constant rate, a drop, then a linear fall to zero.
Fan-in initialisation; routers balanced without an auxiliary loss. The MTP head was
trained along on half of each batch, with no gradient into the trunk, its embedding or its lm_head.
Weights are stored in bfloat16 (A_log, D, dt_bias and the router's correction bias in float32).

The two malloc settings (glibc) keep freed tensors in the process instead of giving them back to the
system at every step. A run is not reproducible to the bit: the schedule follows the clock.

## Licence

Apache-2.0. The training text is the Python standard library, under the PSF licence.
"""


def write_card(path: Path, results: dict) -> None:
    """Write the model card.

    Args:
        path: File to write.
        results: What `evaluate_parent` measured.
    """
    training = results["training"]
    making = MAKING.format(
        minutes=round(training["elapsed_s"] / 60),
        tokens=training["tokens"],
        steps=training["step"],
        batch=training["tokens"] // training["step"],
        hours=training["elapsed_s"] / 3600,
        machine=results["machine"],
        speed=training["tokens"] / training["elapsed_s"],
    )
    parts = [FRONT, _sizes(results["sizes"]), _quality(results), _curve(training), making]
    path.write_text("\n".join(parts), encoding="utf-8")


def _sizes(sizes: dict[str, int]) -> str:
    rows = {
        "parameters without MTP": f"{sizes['total']:,}",
        "trunk (without embedding and lm_head)": f"{sizes['trunk']:,}",
        "routed experts, share of the trunk": f"{sizes['routed_experts'] / sizes['trunk']:.1%}",
        "MTP head": f"{sizes['mtp']:,}",
        "blocks (M mamba, E moe, * attention)": f"`{PATTERN}`",
        "hidden, vocab": f"{CONFIG['hidden_size']}, {CONFIG['vocab_size']}",
        "mamba": "{mamba_num_heads} heads of {mamba_head_dim}, {n_groups} groups, "
        "state {ssm_state_size}".format(**CONFIG),
        "attention": "{num_attention_heads} heads of {head_dim}, {num_key_value_heads} kv head, "
        "no position encoding".format(**CONFIG),
        "moe": "{n_routed_experts} experts, top-k {num_experts_per_tok}, width "
        "{moe_intermediate_size}, latent {moe_latent_size}, shared expert "
        "{moe_shared_expert_intermediate_size}".format(**CONFIG),
        "trained context": f"{CONTEXT} tokens",
    }
    return "## Sizes\n\n" + _table(("what", "value"), list(rows.items()))


def _quality(results: dict) -> str:
    knockouts = results["knockouts"]
    base = knockouts["loss"]
    named = {
        "all routed experts out": "routed_experts_out",
        "top-k halved in every block": "top_k_halved",
        "Mamba state halved, by contribution": "state_halved_by_contribution",
        "Mamba state halved, first half kept": "state_halved_first_half_kept",
    }
    rows = [(what, f"{knockouts[key]:+.4f}") for what, key in named.items()]
    kinds = {"M": "mamba", "E": "moe", "*": "attention"}
    rows += [
        (f"block {index} ({kinds[PATTERN[index]]}) out", f"{cost:+.4f}")
        for index, cost in enumerate(knockouts["block_out"])
    ]
    recall, mtp = results["recall"], results["mtp"]
    return (
        "## Quality\n\nMeasured on the stored bfloat16 weights, validation split, windows of "
        f"{CONTEXT} tokens, in nats a token.\n\n"
        f"- Loss on the whole split ({results['validation_tokens']:,} tokens): "
        f"**{results['validation_loss']:.4f}** ({results['bits_per_byte']:.3f} bits a byte).\n"
        f"- Recall: {recall['accuracy']:.1%} of {recall['lookups']:,} looked-up values right "
        f"(a guess among the values of the dict: {recall['guess_among_values']:.1%}).\n"
        f"- MTP head: {mtp['accuracy']:.1%} of the tokens after next right, loss "
        f"{mtp['loss']:.4f} (trunk, next token: {mtp['next_token_accuracy']:.1%}).\n"
        f"- Router: the busiest expert of any block gets {max(results['largest_expert_share']):.1%}"
        f" of the choices (even share {1 / CONFIG['n_routed_experts']:.1%}).\n\n"
        f"What a cut costs, on a sample with loss {base:.4f}. The state's halves are chosen within "
        "each group; contribution is mean |B| times mean |C|.\n\n" + _table(("cut", "loss"), rows)
    )


def _curve(training: dict) -> str:
    rows = [
        (f"{point['tokens']:,}", f"{point['loss']:.3f}", f"{point['mtp_loss']:.3f}")
        for point in training["curve"]
    ]
    return "## Curve\n\n" + _table(("tokens", "validation loss", "MTP loss"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
