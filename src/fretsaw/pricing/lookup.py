"""Seconds of kernels from tables that NVIDIA measured on its GPUs, engine by engine.

Between the cells of a table seconds are interpolated; where a stated model had to help, the
provider is ``table+model``; what the tables do not cover is asked of another timer, under that
timer's own name. There are no tables of Mamba's state update and scan.

Source: aiconfigurator (Apache-2.0), see `fretsaw/data/gpu_tables/README.md`.
"""

from __future__ import annotations

import io
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from fretsaw.errors import RecipeError, nearest
from fretsaw.pricing.extension import extended
from fretsaw.pricing.grid import Answer, Grid
from fretsaw.pricing.kernels import Kernel, Operation, Step, Timer, Timing

BEST_FIRST = {
    "h100_sxm": ("trtllm", "sglang", "vllm"),
    "h200_sxm": ("trtllm", "sglang", "vllm"),
    "b200_sxm": ("sglang", "trtllm", "vllm"),
    "gb200": ("sglang", "trtllm", "vllm"),
}
"""Hardware table -> engines whose tables there are, the one with the fastest experts first.

vLLM 0.24.0's FP8 experts on Hopper take five times as long as TensorRT-LLM's; TensorRT-LLM's NVFP4
experts on Blackwell have a floor four times as high as SGLang's.
"""

LOG_AXES = ("tokens", "outputs", "inputs", "bytes")
FLOORED_AXES = ("tokens", "sequences", "kept", "bytes")
FLOPS_PER_BYTE = {"bf16": 290.0, "fp8": 580.0, "nvfp4": 1120.0}
"""Where arithmetic takes as long as memory; H100, H200 and B200 agree within a third."""

TILE_ROWS = 64
LAUNCH_FLOORS = 1.5
"""A kernel below this many times the least of its table is bound by its launch."""


Found = tuple[Answer, float] | None
"""An answer, and the least time of its table."""


@dataclass(frozen=True)
class Experts:
    """Times of experts whose tokens were routed alike.

    Attributes:
        top_k: Experts of a token.
        experts: Of the model.
        hidden: Widths of their inputs, growing.
        grids: Of each width: over ffn, expert (on this GPU) and tokens.
    """

    top_k: int
    experts: int
    hidden: tuple[float, ...]
    grids: tuple[Grid, ...]

    def distance(self, kernel: Kernel) -> float:
        """How far the kernel's routing is from the measured one; 0 when it is the same."""
        s = kernel.sizes
        return abs(math.log(self.top_k / s["top_k"])) + abs(math.log(self.experts / s["experts"]))

    def look_up(self, kernel: Kernel) -> Found:
        """Seconds: of its hidden width, else affinely between the two next to it.

        Below the least measured width, down to half of it, those of experts that are as many
        times narrower instead: their weights and FLOPs are the same.
        """
        hidden, ffn = kernel.sizes["hidden"], kernel.sizes["ffn"]
        if self.hidden[0] / 2 < hidden < self.hidden[0]:
            found = self._seconds(self.grids[0], kernel, ffn=ffn * hidden / self.hidden[0])
            return _as_model((found, self.grids[0].floor) if found else None)
        at = bisect_left(self.hidden, hidden)
        if at == len(self.hidden) or hidden < self.hidden[0]:
            return None
        high = self._seconds(self.grids[at], kernel, ffn=ffn)
        if high is None or self.hidden[at] == hidden:
            return (high, self.grids[at].floor) if high else None
        low = self._seconds(self.grids[at - 1], kernel, ffn=ffn)
        if low is None:
            return None
        share = (hidden - self.hidden[at - 1]) / (self.hidden[at] - self.hidden[at - 1])
        seconds = low.seconds + (high.seconds - low.seconds) * share
        return Answer(seconds, low.is_measured and high.is_measured), self.grids[at - 1].floor

    def _seconds(self, grid: Grid, kernel: Kernel, *, ffn: float) -> Answer | None:
        """Seconds by as many tokens as give each expert as many: the model of top_k and experts.

            tokens * (top_k / measured top_k) * (measured experts / experts)

        Below one such token fewer experts are read, so seconds go affinely to the table's floor.

        Source: Own; errors in benchmarks/results/lookup.json.
        """
        s = kernel.sizes
        tokens = s["tokens"] * s["top_k"] / self.top_k * self.experts / s["experts"]
        answer = grid.at(ffn, s["expert"], max(tokens, 1.0))
        if answer is None:
            return None
        seconds = answer.seconds
        if tokens < 1:
            seconds = grid.floor + tokens * (seconds - grid.floor)
        return Answer(seconds, answer.is_measured and not self.distance(kernel))


@dataclass(frozen=True)
class KernelTables:
    """All tables of one engine on one GPU.

    Attributes:
        hardware: Folder under `fretsaw/data/gpu_tables`.
        backend: Engine.
        grids: Operation, format and what else tells tables apart -> its times.
        experts: Format -> times by kind of routing.
    """

    hardware: str
    backend: str
    grids: Mapping[str, Grid]
    experts: Mapping[str, tuple[Experts, ...]]


@dataclass(frozen=True)
class TableTimer:
    """Answers from tables, and from another timer where they have nothing.

    Attributes:
        tables: Of one engine on one GPU.
        fallback: Asked for what they do not cover; may be a timer of another engine's tables.
    """

    tables: KernelTables
    fallback: Timer

    def __init__(self, tables: KernelTables, *, fallback: Timer) -> None:
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "fallback", fallback)

    def time(self, kernel: Kernel) -> Timing:
        """Seconds of the kernel: interpolated, or the other timer's.

        Returns:
            `provider` is ``table``, ``table+model`` or what the other timer says.
        """
        # The tables have no weight-only products: theirs quantise the other operand too.
        look_up = None if kernel.product else LOOK_UPS.get(kernel.operation)
        found = look_up(self.tables, kernel) if look_up else None
        if found is None:
            return self.fallback.time(kernel)
        answer, floor = found
        provider = "table" if answer.is_measured else "table+model"
        bound = _bound(kernel, is_at_floor=answer.seconds < LAUNCH_FLOORS * floor)
        return Timing(answer.seconds * kernel.launches, bound, provider)


def best_timer(hardware: str, *, fallback: Timer) -> Timer:
    """A timer that takes each kernel from the best engine that has it (`BEST_FIRST`).

    Raises:
        RecipeError: no tables of that hardware.
    """
    timer = fallback
    for backend in reversed(backends(hardware)):
        timer = TableTimer(load_tables(hardware, backend=backend), fallback=timer)
    return timer


def backends(hardware: str) -> tuple[str, ...]:
    """Engines with tables for a hardware, best first.

    Raises:
        RecipeError: no tables of that hardware.
    """
    if hardware not in BEST_FIRST:
        guess = nearest(hardware, list(BEST_FIRST))
        hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(BEST_FIRST)}"
        raise RecipeError(f"no kernel tables of {hardware!r}", hint)
    return BEST_FIRST[hardware]


@cache
def load_tables(hardware_table_name: str, *, backend: str) -> KernelTables:
    """Tables of one engine on one GPU; read once.

    Raises:
        RecipeError: no such tables.
    """
    known = backends(hardware_table_name)
    if backend not in known:
        raise RecipeError(
            f"no kernel tables of {backend!r} on {hardware_table_name}",
            f"there are {', '.join(known)}",
        )
    folder = resources.files("fretsaw") / "data" / "gpu_tables" / hardware_table_name
    grids = _read((folder / f"{backend}.npz").read_bytes())
    experts = {name: grids.pop(name) for name in list(grids) if name.startswith("experts ")}
    return KernelTables(hardware_table_name, backend, grids, _by_routing(experts))


def _by_routing(grids: Mapping[str, Grid]) -> dict[str, tuple[Experts, ...]]:
    """Tables named "experts FORMAT HIDDEN TOP_K EXPERTS", by format, each kind of routing once."""
    alike: dict[tuple[str, int, int], dict[int, Grid]] = {}
    for name, grid in grids.items():
        _, fmt, hidden, top_k, count = name.split()
        alike.setdefault((fmt, int(top_k), int(count)), {})[int(hidden)] = grid
    tables: dict[str, tuple[Experts, ...]] = {}
    for (fmt, chosen, experts), found in alike.items():
        widths = tuple(sorted(found))
        kind = Experts(chosen, experts, widths, tuple(found[width] for width in widths))
        tables[fmt] = (*tables.get(fmt, ()), kind)
    return tables


def _read(content: bytes) -> dict[str, Grid]:
    with np.load(io.BytesIO(content)) as file:
        index: dict[str, dict[str, list[float]]] = json.loads(file["index"].tobytes())
        return {name: _grid(name, axes=axes, seconds=file[name]) for name, axes in index.items()}


def _grid(name: str, *, axes: Mapping[str, list[float]], seconds: Any) -> Grid:
    full, cells, modelled = extended(name, axes=axes, seconds=seconds.astype(np.float64))
    log_axes = [key for key in axes if key in LOG_AXES and not name.startswith("prefill_att")]
    return Grid(full, cells, modelled, log_axes=log_axes, floored_axes=FLOORED_AXES)


def _look_up_gemm(tables: KernelTables, kernel: Kernel) -> Found:
    s = kernel.sizes
    grid = tables.grids.get(f"gemm {kernel.number_format}")
    return _found(grid, s["outputs"], s["inputs"], s["tokens"])


def _look_up_experts(tables: KernelTables, kernel: Kernel) -> Found:
    kinds = tables.experts.get(kernel.number_format, ())
    for kind in sorted(kinds, key=lambda kind: kind.distance(kernel)):
        if found := kind.look_up(kernel):
            return found
    return None


def _look_up_attention(tables: KernelTables, kernel: Kernel) -> Found:
    """Several new tokens of a sequence read its cache once.

    A tile of the tensor core has 64 rows, of which one token fills as many as a KV head has
    queries: measured times hardly differ between 2 and 64 of them. Beyond, tiles are counted.
    """
    s = kernel.sizes
    grid = tables.grids.get(f"attention {kernel.number_format} {s['head_dim']:.0f}")
    queries = s["heads"] / s["kv_heads"]
    found = _found(grid, queries, s["kv_heads"], s["context"] + s["tokens"], s["sequences"])
    if found is None or s["tokens"] == 1:
        return found
    tiles = max(1.0, queries * s["tokens"] / TILE_ROWS)
    return Answer(found[0].seconds * tiles, is_measured=False), found[1]


def _look_up_prefill(tables: KernelTables, kernel: Kernel) -> Found:
    """A prompt; with a context before it, the whole less the context's own prompt.

    Both are triangles of causal attention, whose difference is the part that is asked for.
    """
    s = kernel.sizes
    grid = tables.grids.get(f"prefill_attention {kernel.number_format} {s['head_dim']:.0f}")
    heads = s["heads"] / s["kv_heads"], s["kv_heads"]
    whole = _found(grid, *heads, s["context"] + s["tokens"], s["sequences"])
    if not s["context"] or whole is None:
        return whole
    before = _found(grid, *heads, s["context"], s["sequences"])
    if before is None:
        return None
    floor = whole[1]
    return Answer(max(floor, whole[0].seconds - before[0].seconds), is_measured=False), floor


def _look_up_conv(tables: KernelTables, kernel: Kernel) -> Found:
    """New tokens of a sequence count as sequences; prompts of several as one of their length."""
    s = kernel.sizes
    is_prefill = Step(s["sequences"], int(s["tokens"])).is_prefill
    grid = tables.grids.get("prefill_conv" if is_prefill else "conv")
    found = _found(grid, s["channels"], s["sequences"] * s["tokens"])
    is_as_measured = s["sequences"] <= 1 if is_prefill else s["tokens"] == 1
    return found if is_as_measured else _as_model(found)


def _look_up_all_reduce(tables: KernelTables, kernel: Kernel) -> Found:
    s = kernel.sizes
    return _found(tables.grids.get("all_reduce"), s["gpus"], s["bytes"])


def _look_up_all_to_all(tables: KernelTables, kernel: Kernel) -> Found:
    """As the all-gather and the reduce-scatter that engines do, over the bytes of all GPUs."""
    s = kernel.sizes
    return _found(tables.grids.get("all_to_all"), s["gpus"], s["bytes"] * s["gpus"])


LOOK_UPS: Mapping[Operation, Callable[[KernelTables, Kernel], Found]] = {
    "gemm": _look_up_gemm,
    "experts": _look_up_experts,
    "attention": _look_up_attention,
    "prefill_attention": _look_up_prefill,
    "conv": _look_up_conv,
    "all_reduce": _look_up_all_reduce,
    "all_to_all": _look_up_all_to_all,
}


def _found(grid: Grid | None, *point: float) -> Found:
    answer = grid.at(*point) if grid else None
    return (answer, grid.floor) if grid and answer else None


def _as_model(found: Found) -> Found:
    return found and (Answer(found[0].seconds, is_measured=False), found[1])


def _bound(kernel: Kernel, *, is_at_floor: bool) -> str:
    """What a kernel of that many bytes and FLOPs waits for."""
    if kernel.operation in ("all_reduce", "all_to_all"):
        return "link"
    if is_at_floor:
        return "launch"
    if kernel.flops > FLOPS_PER_BYTE.get(kernel.number_format, 290.0) * kernel.bytes:
        return "compute"
    return kernel.largest_bytes
