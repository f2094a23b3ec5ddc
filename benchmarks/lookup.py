"""How far the shipped kernel tables are from the measured rows that they leave out.

    python benchmarks/lookup.py TABLES [--results benchmarks/results/lookup.json]

TABLES is `aiconfigurator_core/systems/data` of an installed aiconfigurator-core 0.12.0 (extra
`gpu-tables`). Prints relative errors |answer / measured - 1| of

- gemm, attention, prefill attention: rows of the full tables that are no nodes of the shipped ones;
- experts, width: each inner measured width from its neighbours, and the narrower half of the widths
  from the wider half (the model below a table's least width);
- experts, hidden: the width 2048 from 1024 and 4096, and 1024 from 2048 (the model below a table's
  least hidden width), where they were measured;
- experts, top_k: the model of top_k and number of experts, on shapes that were measured with two
  (gated experts, other models, the same kernel): the second from the first;

and what loading and asking take.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from fretsaw.pricing.grid import Grid
from fretsaw.pricing.kernels import Kernel, Timing, gemm
from fretsaw.pricing.lookup import BEST_FIRST, Experts, TableTimer, load_tables

SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm")
VERSIONS = {"trtllm": "1.3.0rc20", "sglang": "0.5.14", "vllm": "0.24.0"}
FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}
ROWS = 20_000
ROUTING = "power_law_1.01"


class Nothing:
    """A fall-back that is told apart."""

    def time(self, kernel: Kernel) -> Timing:
        return Timing(float("nan"), kernel.operation, "none")


@dataclass(frozen=True)
class Case:
    """A row that was measured, and what the tables say."""

    what: str
    errors: np.ndarray
    asked: int

    def row(self) -> dict[str, float | str]:
        """Quantiles of its errors, in percent."""
        median, p90, worst = 100 * np.quantile(self.errors, (0.5, 0.9, 1.0))
        return {
            "case": self.what,
            "rows": self.asked,
            "answered": len(self.errors),
            "median_percent": round(float(median), 1),
            "p90_percent": round(float(p90), 1),
            "worst_percent": round(float(worst), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/lookup.json"))
    arguments = parser.parse_args()
    cases = [case.row() for case in every_case(arguments.tables) if len(case.errors)]
    print_cases(cases)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "aiconfigurator_core": "0.12.0",
        "errors": cases,
        "speed": speed(),
        "machine": platform.processor() or platform.machine(),
    }
    print(json.dumps(result["speed"]))
    arguments.results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def every_case(data: Path) -> Iterator[Case]:
    for system in SYSTEMS:
        for backend in BEST_FIRST[system]:
            yield from left_out(data, system=system, backend=backend)
    for system in SYSTEMS:
        for backend in BEST_FIRST[system]:
            for fmt, kinds in load_tables(system, backend=backend).experts.items():
                for kind in (kind for kind in kinds if kind.top_k == 22):
                    name = f"{system} {backend} {fmt}"
                    yield from widths(kind, name=name)
                    yield from hidden_widths(kind, name=name)
    for system in SYSTEMS:
        for backend in BEST_FIRST[system]:
            yield from routings(data, system=system, backend=backend)


def left_out(data: Path, *, system: str, backend: str) -> Iterator[Case]:
    """Rows of the full tables beside those that are shipped."""
    timer = TableTimer(load_tables(system, backend=backend), fallback=Nothing())
    for family, name, kernel_of in (
        ("gemm", "gemm_perf", gemm_kernel),
        ("attention", "generation_attention_perf", decode_kernel),
        ("attention", "context_attention_perf", prefill_kernel),
    ):
        file = data / system / family / backend / VERSIONS[backend] / f"{name}.parquet"
        rows = fastest(pd.read_parquet(file))
        rows = rows.sample(min(ROWS, len(rows)), random_state=0)
        kernels = [(kernel_of(row), row.latency / 1e3) for row in rows.itertuples()]
        timed = [(timer.time(kernel), seconds) for kernel, seconds in kernels if kernel]
        errors = [abs(t.seconds / s - 1) for t, s in timed if t.provider == "table"]
        # A row that is a node comes back to the rounding of the shipped file.
        beside = np.array([error for error in errors if error > 2e-4])
        yield Case(f"{name.removesuffix('_perf')} {system} {backend}", beside, len(timed))


def fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """One row of each shape: where two kernels were measured the shipped tables have the faster."""
    named = {"kernel_source", "latency", "framework", "version", "device", "op_name"}
    keys = [key for key in rows.columns if key not in named]
    return rows.sort_values("latency").drop_duplicates(keys)


def gemm_kernel(row: object) -> Kernel | None:
    fmt = FORMATS.get(row.gemm_dtype)
    return gemm(row.m, outputs=row.n, inputs=row.k, fmt=fmt, group="") if fmt else None


def decode_kernel(row: object) -> Kernel | None:
    return attention_kernel(row, "attention", tokens=1, context=row.isl + row.step - 1)


def prefill_kernel(row: object) -> Kernel | None:
    if row.isl < 16 or (row.kv_cache_dtype == "fp8" and row.attn_dtype != "fp8"):
        return None
    return attention_kernel(row, "prefill_attention", tokens=row.isl, context=0)


def attention_kernel(
    row: object, operation: str, *, tokens: float, context: float
) -> Kernel | None:
    if row.window_size or row.head_dim not in {64, 128} or row.num_key_value_heads > 8:
        return None
    sizes = {
        "sequences": row.batch_size,
        "tokens": tokens,
        "context": context,
        "heads": row.num_heads,
        "kv_heads": row.num_key_value_heads,
        "head_dim": row.head_dim,
    }
    return Kernel(operation, "", number_format=FORMATS[row.kv_cache_dtype], sizes=sizes)  # type: ignore[arg-type]


def widths(kind: Experts, *, name: str) -> Iterator[Case]:
    """Widths from other widths, for all numbers of tokens and of experts on the GPU."""
    for hidden, grid in zip(kind.hidden, kind.grids, strict=True):
        if hidden == 1024:
            for at in range(2, len(grid.axes["ffn"]) - 1):
                ffn = grid.axes["ffn"][at]
                rest = without(grid, axis="ffn", at=at)
                yield case_of(grid, f"width {ffn:g} left out, {name}", at=at, ask=rest.at)
            half = len(grid.axes["ffn"]) // 2
            if half > 1:
                yield below(grid, f"narrower half of widths from the wider, {name}", half=half)


def below(grid: Grid, what: str, *, half: int) -> Case:
    """The model below the least width, as `pricing.extension` has it, on a shorter table."""
    low, high = grid.axes["ffn"][half], grid.axes["ffn"][half + 1]
    slope = (grid.seconds[half + 1] - grid.seconds[half]) / (high - low)
    errors = []
    for at in range(1, half):
        line = grid.seconds[half] - slope * (low - grid.axes["ffn"][at])
        line = np.maximum(line, np.nanmin(grid.seconds[half:]))
        off = np.abs(line / grid.seconds[at] - 1)[..., :-1]
        errors += off[np.isfinite(off)].tolist()
    return Case(what, np.array(errors), len(errors))


def without(grid: Grid, *, axis: str, at: int) -> Grid:
    nodes = [node for index, node in enumerate(grid.axes[axis]) if index != at]
    where = list(grid.axes).index(axis)
    return replace(
        grid,
        axes=dict(grid.axes) | {axis: nodes},
        seconds=np.delete(grid.seconds, at, axis=where),
        modelled=np.delete(grid.modelled, at, axis=where),
    )


def case_of(grid: Grid, what: str, *, at: int, ask: Callable[..., object]) -> Case:
    errors, asked = [], 0
    ffn, experts, tokens = (list(nodes) for nodes in grid.axes.values())
    for e, t in np.argwhere(np.isfinite(grid.seconds[at]) & ~grid.modelled[at]):
        asked += 1
        if (answer := ask(ffn[at], experts[e], tokens[t])) is not None:
            errors.append(abs(answer.seconds / grid.seconds[at, e, t] - 1))  # type: ignore[attr-defined]
    return Case(what, np.array(errors), asked)


def hidden_widths(kind: Experts, *, name: str) -> Iterator[Case]:
    """The hidden width 2048 from those at both sides; 1024 as experts of 2048 half as wide."""
    if not {1024, 2048, 4096} <= set(kind.hidden):
        return
    grid = kind.grids[kind.hidden.index(2048)]
    rest = without_hidden(kind, {2048})
    for at in range(1, len(grid.axes["ffn"])):
        what = f"hidden 2048 left out at width {grid.axes['ffn'][at]:g}, {name}"
        yield case_of(grid, what, at=at, ask=asker(rest, hidden=2048))
    grid, rest = kind.grids[0], without_hidden(kind, {1024})
    # Told to be just above half of the least width, where the model ends.
    rest = replace(rest, hidden=(2047.9, *rest.hidden[1:]))
    for at in range(1, len(grid.axes["ffn"])):
        what = f"hidden 1024 by equal area at width {grid.axes['ffn'][at]:g}, {name}"
        yield case_of(grid, what, at=at, ask=asker(rest, hidden=1024))


def without_hidden(kind: Experts, left_out: set[int]) -> Experts:
    kept = [at for at, hidden in enumerate(kind.hidden) if hidden not in left_out]
    return replace(
        kind,
        hidden=tuple(kind.hidden[at] for at in kept),
        grids=tuple(kind.grids[at] for at in kept),
    )


def asker(kind: Experts, *, hidden: float) -> Callable[..., object]:
    def ask(ffn: float, expert: float, tokens: float) -> object:
        sizes = {"tokens": tokens, "top_k": kind.top_k, "expert": expert, "hidden": hidden}
        sizes |= {"experts": kind.experts, "ffn": ffn}
        found = kind.look_up(Kernel("experts", "", sizes=sizes))
        return found and found[0]

    return ask


def routings(data: Path, *, system: str, backend: str) -> Iterator[Case]:
    """Shapes that were measured with two routings: the second from the first, whole on one GPU."""
    rows = pd.read_parquet(data / system / "moe" / backend / VERSIONS[backend] / "moe_perf.parquet")
    rows = rows[(rows["distribution"] == ROUTING) & (rows["moe_tp_size"] == 1)]
    rows = rows.assign(expert=rows["num_experts"] / rows["moe_ep_size"])
    same = ["moe_dtype", "kernel_source", "hidden_size", "inter_size"]
    for key, shape in rows.groupby(same):
        kinds = sorted(shape.groupby(["topk", "num_experts"]).groups)
        for from_, to in ((a, b) for a in kinds for b in kinds if a != b and a[0] > 1):
            kind = experts_of(shape, *from_)
            wanted = shape[(shape["topk"] == to[0]) & (shape["num_experts"] == to[1])]
            errors = []
            for row in wanted.itertuples():
                sizes = {"tokens": row.num_tokens, "top_k": to[0], "experts": to[1]}
                sizes |= {"hidden": row.hidden_size, "ffn": row.inter_size, "expert": row.expert}
                if found := kind.look_up(Kernel("experts", "", sizes=sizes)):
                    errors.append(abs(found[0].seconds * 1e3 / row.latency - 1))
            what = f"top {from_[0]} of {from_[1]} -> top {to[0]} of {to[1]}"
            name = f"{what}, {system} {backend} {key[0]} {key[1]}"
            yield Case(name, np.array(errors), len(wanted))


def experts_of(shape: pd.DataFrame, top_k: int, experts: int) -> Experts:
    chosen = shape[(shape["topk"] == top_k) & (shape["num_experts"] == experts)]
    table = chosen.pivot_table(index="expert", columns="num_tokens", values="latency") / 1e3
    width = float(shape["inter_size"].iloc[0])
    axes = {
        "ffn": [width],
        "expert": [float(node) for node in table.index],
        "tokens": [float(node) for node in table.columns],
    }
    seconds = table.to_numpy()[None]
    grid = Grid(axes, seconds, np.zeros(seconds.shape, dtype=bool), log_axes=["tokens"])
    return Experts(top_k, experts, (float(shape["hidden_size"].iloc[0]),), (grid,))


def speed() -> dict[str, float]:
    """Milliseconds to load one engine's tables, microseconds of an answer."""
    load_tables.cache_clear()
    start = time.perf_counter()
    tables = load_tables("b200_sxm", backend="sglang")
    loaded = time.perf_counter()
    timer = TableTimer(tables, fallback=Nothing())
    known = {"top_k": 22, "expert": 512, "experts": 512, "hidden": 1024}
    kernels = [
        Kernel("experts", "", number_format="nvfp4", sizes=known | {"tokens": 9 + n, "ffn": 1280})
        for n in range(5000)
    ]
    kernels += [gemm(9 + n, outputs=5376, inputs=4096, fmt="fp8", group="") for n in range(5000)]
    timer.time(kernels[0])
    timer.time(kernels[-1])
    asked = time.perf_counter()
    for kernel in kernels:
        timer.time(kernel)
    return {
        "load_ms": round(1e3 * (loaded - start), 1),
        "answer_us": round(1e6 * (time.perf_counter() - asked) / len(kernels), 1),
    }


def print_cases(cases: list[dict[str, float | str]]) -> None:
    table = Table(title="answer against measured, percent")
    for key in cases[0]:
        table.add_column(key.removesuffix("_percent"), overflow="fold")
    for case in cases:
        table.add_row(*map(str, case.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
