"""Predicted against published serving speeds of Super-120B (parent) and Puzzle-75B (child).

    python benchmarks/paper.py [--calibrate]

Eight throughput points and two latencies of arXiv:2607.04371 (tables 7 and 4, appendix C). One
constant per hardware, `host_s`, may be fitted, on the parent's points alone (`--calibrate` shows
the fit); the child's points and all ratios are predictions. Then what each term of the model adds.
Writes benchmarks/results/paper.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fretsaw.checkpoint.reader import read_config
from fretsaw.core.hardware import Layout, Node, parse_node, parse_workload
from fretsaw.core.precision import Precision, preset
from fretsaw.core.shape import ModelShape
from fretsaw.families import family_of
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.provider import EngineModel, engine_model, pricers_of
from fretsaw.pricing.roofline import Constants
from fretsaw.serving.frontier import Point, pareto, prefill_seconds, server_rate_at, sweep

HERE = Path(__file__).parent
CONFIGS = HERE.parent / "src" / "fretsaw" / "data" / "configs"
PARENT, CHILD = "super.json", "puzzle.json"
ENGINE = "vllm"
LAYOUTS = tuple(Layout(tp, 1, ep) for tp in (1, 2, 4, 8) for ep in sorted({1, tp}))
"""The paper's sweep: tensor parallelism 1 to 8, expert parallelism on and off, equal replicas."""


@dataclass(frozen=True)
class Published:
    """A point of the paper: server tokens/s at a user speed."""

    node: str
    workload: str
    user_tokens_per_s: float
    parent: float
    child: float


POINTS = (
    Published("8xB200", "50k/2k", 100, 5128, 8210),
    Published("8xB200", "50k/2k", 125, 3784, 6412),
    Published("8xB200", "50k/2k", 150, 2532, 4523),
    Published("8xB200", "8k/64k", 100, 20939, 42601),
    Published("8xB200", "8k/64k", 125, 13074, 27918),
    Published("8xB200", "8k/64k", 150, 8522, 18047),
    Published("8xH100", "50k/2k", 100, 838, 1599),
    Published("8xH100", "8k/64k", 100, 3163, 5753),
)
PRECISIONS = {
    "8xB200": preset("nvfp4").with_caches(state="fp16"),
    "8xH100": preset("fp8"),
}
LATENCIES = (("parent", 1, 10.7e-3), ("child", 8, 20.1e-3))
"""One H100, 1M tokens of context, NVFP4 weights, FP32 state: sequences, median step."""

Models = dict[str, EngineModel]


def main() -> None:
    """Print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibrate", action="store_true", help="fit host_s on the parent first")
    options = parser.parse_args()
    started = time.perf_counter()
    shapes = {"parent": _shape(PARENT), "child": _shape(CHILD)}
    models = {node: engine_model(parse_node(node).hardware, ENGINE) for node in PRECISIONS}
    if options.calibrate:
        for node, model in models.items():
            print(node, calibrate(node, model, shapes["parent"]))
    rows = predict(models, shapes)
    latencies = predict_latencies(models["8xH100"], shapes)
    print_rows(rows)
    for row in latencies:
        print(row)
    terms = {name: summary(predict(build(models), shapes)) for name, build in TERMS.items()}
    for name, figures in terms.items():
        print(f"{name:44}", figures)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "points": rows,
        "latencies": latencies,
        "summary": summary(rows),
        "terms": terms,
        "seconds": round(time.perf_counter() - started, 1),
    }
    (HERE / "results" / "paper.json").write_text(json.dumps(result, indent=1) + "\n")


def predict(models: Models, shapes: dict[str, ModelShape]) -> list[dict[str, object]]:
    """One row per published point."""
    frontiers: dict[tuple[str, str, str], list[Point]] = {}
    rows = []
    for one in POINTS:
        found = {}
        for role, shape in shapes.items():
            key = (one.node, one.workload, role)
            if key not in frontiers:
                frontiers[key] = frontier(one.node, one.workload, models[one.node], shape=shape)
            rate = server_rate_at(frontiers[key], one.user_tokens_per_s)
            found[role] = rate if rate is not None else math.nan
        ratio, wanted = found["child"] / found["parent"], one.child / one.parent
        rows.append(
            {
                **vars(one),
                "parent_predicted": round(found["parent"]),
                "child_predicted": round(found["child"]),
                "parent_error": found["parent"] / one.parent - 1,
                "child_error": found["child"] / one.child - 1,
                "ratio": wanted,
                "ratio_predicted": ratio,
                "ratio_error": ratio / wanted - 1,
            }
        )
    return rows


def frontier(node: str, workload: str, model: EngineModel, *, shape: ModelShape) -> list[Point]:
    """The predicted Pareto frontier."""
    machine: Node = parse_node(node)
    precision: Precision = PRECISIONS[node]
    return pareto(
        sweep(
            shape,
            machine,
            workload=parse_workload(workload),
            precision=precision,
            pricer_of=pricers_of(machine.hardware, model, precision=precision),
            layouts=LAYOUTS,
        )
    )


def calibrate(node: str, model: EngineModel, parent: ModelShape) -> dict[str, float]:
    """Root mean square log error of the parent's points for values of host_s."""
    found = {}
    for host_s in [i * 0.05e-3 for i in range(31)]:
        tried = _with(model, host_s=host_s)
        errors = []
        for one in POINTS:
            if one.node != node:
                continue
            rate = server_rate_at(
                frontier(node, one.workload, tried, shape=parent), one.user_tokens_per_s
            )
            errors.append(math.log(rate / one.parent) if rate else 10.0)
        found[f"{host_s * 1e3:.2f} ms"] = round(
            math.sqrt(sum(e * e for e in errors) / len(errors)), 4
        )
    best = min(found, key=lambda key: found[key])
    return {"best": best, **found}  # type: ignore[dict-item]


def predict_latencies(model: EngineModel, shapes: dict[str, ModelShape]) -> list[dict[str, object]]:
    """Median step at 1M tokens, and how much faster the child takes a prompt of 990k."""
    hardware = parse_node("H100").hardware
    pricer = pricers_of(hardware, model, precision=preset("nvfp4"))(Layout())
    rows: list[dict[str, object]] = []
    for role, sequences, seconds in LATENCIES:
        found = pricer.step_seconds(shapes[role], step=Step(sequences, 1, 1_000_000))
        rows.append(
            {
                "model": role,
                "sequences": sequences,
                "step_ms": seconds * 1e3,
                "predicted_ms": round(found * 1e3, 2),
                "error": round(found / seconds - 1, 3),
            }
        )
    prompts = [prefill_seconds(shapes[role], 990_000, pricer=pricer) for role in shapes]
    rows.append(
        {"prefill of 990k, child faster by": 1.2, "predicted": round(prompts[0] / prompts[1], 3)}
    )
    return rows


def summary(rows: Sequence[dict[str, object]]) -> dict[str, float]:
    """Geometric mean and largest |error| of the ratios; root mean square log errors."""
    ratio = [abs(float(row["ratio_error"])) for row in rows]  # type: ignore[arg-type]
    logs = {
        role: [math.log1p(float(row[f"{role}_error"])) for row in rows]  # type: ignore[arg-type]
        for role in ("parent", "child")
    }
    return {
        "ratio_error_geometric_mean": round(math.exp(sum(map(math.log, ratio)) / len(ratio)), 3),
        "ratio_error_mean": round(sum(ratio) / len(ratio), 3),
        "ratio_error_largest": round(max(ratio), 3),
        **{
            f"{role}_rms_log_error": round(math.sqrt(sum(e * e for e in errors) / len(errors)), 3)
            for role, errors in logs.items()
        },
    }


def _shape(name: str) -> ModelShape:
    config = read_config(CONFIGS / name)
    return family_of(config).read_config(config)


def _with(model: EngineModel, **constants: float) -> EngineModel:
    return replace(model, constants=replace(model.constants, **constants))


def _physics(model: EngineModel) -> EngineModel:
    """Data-sheet rates, nothing else."""
    zero = Constants(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    return replace(model, constants=zero, tables=())


def _efficiencies(model: EngineModel) -> EngineModel:
    zero = {"kernel_s": 0.0, "experts_s": 0.0, "pair_s": 0.0, "link_s": 0.0}
    return replace(_with(model, host_s=0.0, shared_overlap=0.0, **zero), tables=())


def _floors(model: EngineModel) -> EngineModel:
    return replace(_with(model, host_s=0.0, shared_overlap=0.0), tables=())


def _all(change: Callable[[EngineModel], EngineModel]) -> Callable[[Models], Models]:
    return lambda models: {node: change(model) for node, model in models.items()}


TERMS: dict[str, Callable[[Models], Models]] = {
    "bytes and FLOPs at data-sheet rates": _all(_physics),
    "+ efficiencies": _all(_efficiencies),
    "+ floors of kernels, experts and links": _all(_floors),
    "+ measured tables": _all(lambda m: _with(m, host_s=0.0, shared_overlap=0.0)),
    "+ shared experts beside the routed": _all(lambda m: _with(m, host_s=0.0)),
    "+ host (calibrated on the parent): all": _all(lambda m: m),
    "all, but roofline instead of tables": _all(lambda m: replace(m, tables=())),
    "all, but every table's experts believed": _all(lambda m: replace(m, without_experts=())),
}
"""What is in the model -> the models of each hardware."""


def print_rows(rows: Sequence[dict[str, object]]) -> None:
    """As a table in Markdown."""
    print(
        "| node | workload | user tok/s | parent | predicted | child | predicted | ratio |", end=""
    )
    print(" predicted |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for r in rows:
        print(
            f"| {r['node']} | {r['workload']} | {r['user_tokens_per_s']} | {r['parent']:,} |"
            f" {r['parent_predicted']:,} ({r['parent_error']:+.0%}) | {r['child']:,} |"
            f" {r['child_predicted']:,} ({r['child_error']:+.0%}) | {r['ratio']:.2f} |"
            f" {r['ratio_predicted']:.2f} ({r['ratio_error']:+.0%}) |"
        )
    print(summary(rows))


if __name__ == "__main__":
    main()
