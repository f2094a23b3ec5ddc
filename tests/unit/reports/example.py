"""A run made up by hand: two rounds, six blocks, of which the first round takes one out."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

from fretsaw.core.shape import Block, ModelShape
from fretsaw.core.variant import Choice, Variant
from fretsaw.reports.evidence import (
    Evidence,
    HeldOutText,
    Sample,
    ServedModel,
    Speeds,
    spread_of,
)
from fretsaw.reports.findings import (
    BlockForm,
    Evaluation,
    Findings,
    RoundFindings,
    SwappedModel,
    VariantScore,
    block_forms,
    trace_blocks,
)
from fretsaw.reports.summary import RunWarning, Summary, SummaryLine

MOE = Block("moe", {"ffn": 128, "expert": 16}, {"top_k": 8})
SHAPE = ModelShape(
    "nemotron_h",
    {"hidden": 64, "vocab": 512, "state": 32},
    (
        Block("mamba", {"state": 32}),
        MOE,
        MOE,
        Block("attention", {"kv_head": 2}),
        MOE,
        Block("mlp", {"ffn": 256}),
    ),
)
FIRST = Choice(
    (
        Variant(0, {"state": 24}),
        Variant(1, is_none=True),
        Variant(2, {"ffn": 96}),
        Variant(3),
        Variant(4, {"ffn": 64}),
        Variant(5),
    ),
    score=0.3,
    costs={},
    status="optimal",
)
SECOND = Choice(
    (Variant(0), Variant(1, {"top_k": 4}), Variant(2), Variant(3, {"top_k": 2}), Variant(4)),
    score=0.2,
    costs={},
    status="feasible",
    gap=0.013,
)
STATES = trace_blocks(SHAPE, (FIRST, SECOND))
BLOCKS = block_forms(SHAPE, STATES[-1])

ROUNDS = (
    RoundFindings(
        number=1,
        budget={"moe_params": "75%", "state_bytes": "75%"},
        status="optimal",
        gap=0.0,
        metric="kl",
        scores=(
            VariantScore(0, "state=24", 0.02, True),
            VariantScore(2, "ffn=64", 0.07, False),
            VariantScore(2, "ffn=96", 0.031, True),
            VariantScore(4, "ffn=128", 0.0, False),
            VariantScore(4, "ffn=64", 0.009, True),
        ),
        evaluations=(
            Evaluation(0, 2.745, 0.4321),
            Evaluation(40_000, 2.5, 0.21, 0.25),
            Evaluation(80_000, 2.411, 0.1234, 0.2),
        ),
        kept_tokens=80_000,
        swapped=(
            SwappedModel("chosen", 0.3, 0.31),
            SwappedModel("n-best", 0.32, 0.33),
            SwappedModel("uniform", 0.5, 0.47),
            SwappedModel("random", 0.9, 0.85),
            SwappedModel("random", 0.1, -1e-9),
        ),
        spearman=0.987,
        seconds={"describe": 0.5, "score": 80.0, "distill": 61.0},
    ),
    RoundFindings(
        number=2,
        budget={"active_experts": "50%"},
        status="feasible",
        gap=0.013,
        metric="kl",
        scores=(VariantScore(2, "top_k=4", 0.01, True), VariantScore(4, "top_k=2", 0.2, True)),
        evaluations=(
            Evaluation(0, 2.7, 0.41),
            Evaluation(60_000, 2.49, 0.1777, None),
            Evaluation(120_000, 2.5, 0.18, 0.19),
        ),
        kept_tokens=60_000,
        swapped=(SwappedModel("chosen", 0.2, 0.22),),
        spearman=None,
        seconds={"describe": 0.5, "score": 70.0, "distill": 100.0},
    ),
)


def _costs(share: float) -> dict[str, float]:
    names = ("params", "trunk_params", "active_params", "active_routed_params", "bytes_bf16")
    return dict.fromkeys(names, 1e6 * share) | {"state_bytes": 32768 * (0.75 if share < 1 else 1)}


RUN = Path("/runs/<demo>")
SUMMARY = Summary(
    (
        SummaryLine("parent", _costs(1), 2.3102, 0.0, 1.0, 0.0),
        SummaryLine("round 1 cut", _costs(0.8), 2.745, 0.4321, 0.701, 80.5),
        SummaryLine("round 1 healed", _costs(0.8), 2.411, 0.1234, 0.882, 61.0, 80_000),
        SummaryLine("round 2 cut", _costs(0.7), 2.7, 0.41, 0.712, 70.5),
        SummaryLine("round 2 healed", _costs(0.7), 2.49, 0.1777, 0.866, 100.0, 120_000),
    ),
    RUN / "round-2" / "08-distill" / "child",
    RUN,
    {"round 1 score": 1_500_000_000, "round 2 build": 900_000_000},
)
EVIDENCE = Evidence(
    text=HeldOutText(8192, 32, "abc"),
    spreads={
        line.name: spread_of(
            [
                (line.kl + 0.01 * i, line.loss + 0.1 * i, line.agreement, 2.3102 + 0.09 * i)
                for i in range(-4, 5)
            ]
        )
        for line in SUMMARY.lines
    },
    samples=(
        Sample("Once <upon>", " a time", " a time", is_equal=True),
        Sample("The cut", " heals.", " is & stays.", is_equal=False),
    ),
    speeds=Speeds(
        card="L40S",
        why="the smallest that holds it",
        engine="vllm",
        number_format="bf16",
        workload="1k/1k",
        context=2000,
        models=(
            ServedModel("parent", 2_000_000, 100, 50.0, 4000.0, 128),
            ServedModel("child", 1_400_000, 150, 60.0, 6000.0, 256),
        ),
        notes=("nothing was fitted",),
    ),
)
FINDINGS = Findings(
    summary=SUMMARY,
    blocks=BLOCKS,
    rounds=ROUNDS,
    parent="models/parent & co",
    recipe='{"parent": "models/parent & co", "rounds": [{}, {}]}\n',
    needs_remote_code=True,
    has_tokenizer=True,
    versions={"fretsaw": "0.1.0", "torch": "2.13.0"},
    finished="2026-07-01T12:00:00+0000",
    num_planned=2,
    evidence=EVIDENCE,
)


WIDE_MOE = Block("moe", {"ffn": 2688, "expert": 512}, {"top_k": 22})
LONG_SHAPE = (
    Block("mamba", {"state": 128}),
    WIDE_MOE,
    Block("attention", {"kv_head": 2}),
    WIDE_MOE,
)


def long_findings(*, num_blocks: int = 88, num_rounds: int = 6) -> Findings:
    """As large as runs get: many blocks, rounds and choices, long names, close values."""
    originals = [LONG_SHAPE[i % 4] for i in range(num_blocks)]
    cuts = {"ffn": 1344, "state": 96, "top_k": 11}
    blocks = tuple(
        BlockForm(
            i,
            one,
            Block("none")
            if i % 17 == 5
            else one.with_values({n: v for n, v in cuts.items() if n in one.values}),
        )
        for i, one in enumerate(originals)
    )
    rounds = tuple(_long_round(number, num_blocks) for number in range(1, num_rounds + 1))
    warnings = (RunWarning("round 1 score", "x" * 200), RunWarning("check", "short"))
    lines = (
        SUMMARY.lines[0],
        *(
            replace(line, name=f"round {n} {word}")
            for n in range(1, num_rounds + 1)
            for word, line in zip(("cut", "healed"), SUMMARY.lines[1:3], strict=True)
        ),
    )
    run = Path("/runs/a-folder-with-a-name-that-is-longer-than-a-telephone-is-wide-by-far")
    summary = replace(SUMMARY, lines=lines, run=run, child=run / "child", warnings=warnings)
    keys = {f"a_long_key_{i}": [num_rounds, i] * 20 for i in range(30)}
    recipe = json.dumps({"parent": "p", "rounds": [keys] * num_rounds})
    return replace(
        FINDINGS, summary=summary, blocks=blocks, rounds=rounds, recipe=recipe, num_planned=9
    )


def _long_round(number: int, num_blocks: int) -> RoundFindings:
    rng = random.Random(number)
    kls = [0.02 * number * rng.uniform(0.8, 1.2) for _ in range(8)]
    evaluations = tuple(
        Evaluation(i * 1_000_000, 2.3 + kl, kl, 3 * kl if i else None) for i, kl in enumerate(kls)
    )
    scores = tuple(
        VariantScore(b, f"ffn={n} top_k={n}", 10 ** rng.uniform(-7, 0), n == 2)
        for b in range(num_blocks)
        for n in range(4)
    )
    kinds = ["chosen", "uniform", *["n-best"] * 4, *["random"] * 30]
    swapped = tuple(
        SwappedModel(kind, 10 ** rng.uniform(-4, 0), 10 ** rng.uniform(-4, 0)) for kind in kinds
    )
    return replace(
        ROUNDS[0],
        number=number,
        scores=scores,
        evaluations=evaluations,
        kept_tokens=1_000_000 * kls.index(min(kls)),
        swapped=swapped,
    )
