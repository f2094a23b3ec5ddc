"""Takes the rows that fretsaw prices with out of NVIDIA's measured kernel tables.

    pip install -e '.[gpu-tables]' && python scripts/gpu_tables.py

Reads the parquet files of `aiconfigurator-core` (Apache-2.0), writes one
`src/fretsaw/data/gpu_tables/<hardware>/<backend>.npz` for `fretsaw.pricing.lookup`, and the page of
their sources beside them. Nothing is computed but units: milliseconds become seconds, elements of
a message bytes. Cells that were not measured are NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

OUT = Path(__file__).parents[1] / "src" / "fretsaw" / "data" / "gpu_tables"
SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "gb200")
# Newest last: a shape that two versions measured is taken from the newer.
VERSIONS = {
    "trtllm": ("1.3.0rc10", "1.3.0rc20", "1.3.0rc23"),
    "sglang": ("0.5.14",),
    "vllm": ("0.24.0",),
}
NCCL = "2.29.2"
FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}

TOKENS = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    96,
    128,
    192,
    256,
    512,
    768,
    1024,
    1536,
    2048,
    4096,
    8192,
    16384,
    32768,
)
WIDTHS = (64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536)
GROUPS = (1, 2, 4, 5, 6, 8, 12, 16, 32)
KV_HEADS = (1, 2, 4, 8)
KEPT = (2, *(2**n for n in range(7, 18)))
PROMPTS = (16, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
PROMPT_SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
TOP_K = 22
ROUTING = "power_law_1.01"
KEPT_MANTISSA_BITS = 12


@dataclass(frozen=True)
class Grid:
    """A table as it is written: named axes, seconds in their order, and where they come from."""

    name: str
    axes: Mapping[str, Sequence[float]]
    seconds: np.ndarray
    sources: Sequence[str]
    kernels: Sequence[str] = field(default=())


def main() -> None:
    data = Path(str(resources.files("aiconfigurator_core"))) / "systems" / "data"
    pages = []
    for system in SYSTEMS:
        for backend in VERSIONS:
            grids = list(read_backend(data, system=system, backend=backend))
            path = OUT / system / f"{backend}.npz"
            write(grids, path=path)
            print(f"{path}: {len(grids)} tables, {path.stat().st_size / 1e3:.0f} kB")
            pages += [(system, backend, grid) for grid in grids]
    (OUT / "README.md").write_text(sources_page(pages), encoding="utf-8")


def read_backend(data: Path, *, system: str, backend: str) -> Iterator[Grid]:
    yield from gemms(Source(data, system, backend, "gemm", "gemm_perf"))
    yield from experts(Source(data, system, backend, "moe", "moe_perf"))
    yield from decode_attention(
        Source(data, system, backend, "attention", "generation_attention_perf")
    )
    yield from prefill_attention(
        Source(data, system, backend, "attention", "context_attention_perf")
    )
    yield from all_reduce(Source(data, system, backend, "comm", "custom_allreduce_perf"))
    # NCCL and the convolution were measured once per system; every engine runs them alike.
    yield from exchange(Source(data, system, "nccl", "comm", "nccl_perf"))
    yield from convolutions(Source(data, system, "trtllm", "linear_attention", "mamba2_perf"))


@dataclass(frozen=True)
class Source:
    """One kind of table of a backend, over its versions."""

    data: Path
    system: str
    backend: str
    family: str
    name: str

    def read(self) -> pd.DataFrame:
        """Its rows, each with the file it is from and its seconds; empty if there is none."""
        frames = []
        for version_name in VERSIONS.get(self.backend, (NCCL,)):
            part = f"{self.system}/{self.family}/{self.backend}/{version_name}/{self.name}.parquet"
            if (self.data / part).exists():
                frame = pd.read_parquet(self.data / part)
                frames.append(frame.assign(file=part, seconds=frame["latency"] / 1e3))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def grid_of(rows: pd.DataFrame, *, name: str, axes: Mapping[str, Sequence[float]]) -> Grid:
    """Rows on the nodes of a grid; of several in one cell the newest file's fastest."""
    shape = tuple(len(nodes) for nodes in axes.values())
    seconds = np.full(shape, np.nan)
    for key, nodes in axes.items():
        rows = rows[rows[key].isin(nodes)]
    order = {file: at for at, file in enumerate(rows["file"].unique())}
    rows = rows.assign(age=rows["file"].map(order)).sort_values(
        ["age", "seconds"], ascending=[True, False]
    )
    where = tuple(
        rows[key].map({node: at for at, node in enumerate(nodes)}).to_numpy()
        for key, nodes in axes.items()
    )
    seconds[where] = rows["seconds"].to_numpy()
    used = rows.drop_duplicates(list(axes), keep="last")
    kernels = tuple(sorted(used["kernel_source"].unique()))
    return Grid(name, axes, seconds, tuple(sorted(used["file"].unique())), kernels)


def gemms(source: Source) -> Iterator[Grid]:
    rows = source.read().rename(columns={"m": "tokens", "n": "outputs", "k": "inputs"})
    axes = {"outputs": WIDTHS, "inputs": WIDTHS, "tokens": TOKENS}
    for theirs, fmt in FORMATS.items():
        chosen = rows[rows["gemm_dtype"] == theirs]
        if len(chosen):
            yield grid_of(chosen, name=f"gemm {fmt}", axes=axes)


def experts(source: Source) -> Iterator[Grid]:
    """Experts without a gate: the shapes of Nemotron-3 Super, Ultra and Nano.

    `num_tokens` counts the tokens of the whole EP group (64 tokens keep 64 local of 512 experts as
    busy as 512 of 512), and the time is that of the GPU whose experts get most.
    """
    rows = source.read()
    rows = rows[rows["distribution"] == ROUTING]
    if source.backend == "trtllm":
        rows = rows[rows["kernel_source"] == "moe_torch_flow_nongated"]
    nano = {"hidden_size": 2688, "num_experts": 128, "topk": 6}
    is_nano = (rows[list(nano)] == pd.Series(nano)).all(axis=1)
    rows = rows[is_nano | (rows["topk"] == TOP_K)]
    rows = rows.assign(
        ffn=rows["inter_size"] / rows["moe_tp_size"],
        expert=rows["num_experts"] / rows["moe_ep_size"],
        tokens=rows["num_tokens"],
    )
    keys = ["moe_dtype", "hidden_size", "topk", "num_experts"]
    for (theirs, hidden, top_k, count), chosen in rows.groupby(keys):
        if theirs in FORMATS:
            axes = {key: sorted(chosen[key].unique()) for key in ("ffn", "expert", "tokens")}
            name = f"experts {FORMATS[theirs]} {hidden} {top_k} {count}"
            yield grid_of(chosen, name=name, axes=axes)


def heads_of(rows: pd.DataFrame, *, head_dim: int, kv: str) -> pd.DataFrame:
    rows = rows[(rows["window_size"] == 0) & (rows["head_dim"] == head_dim)]
    rows = rows[rows["kv_cache_dtype"] == kv]
    return rows.assign(
        kv_heads=rows["num_key_value_heads"],
        q_per_kv=rows["num_heads"] / rows["num_key_value_heads"],
        sequences=rows["batch_size"],
    )


def decode_attention(source: Source) -> Iterator[Grid]:
    rows = source.read()
    rows = rows.assign(kept=rows["isl"] + rows["step"])
    sequences = [2**n for n in range(12)]
    axes = {"q_per_kv": GROUPS, "kv_heads": KV_HEADS, "kept": KEPT, "sequences": sequences}
    for kv in ("bfloat16", "fp8"):
        for head_dim in (64, 128):
            chosen = heads_of(rows, head_dim=head_dim, kv=kv)
            yield grid_of(chosen, name=f"attention {FORMATS[kv]} {head_dim}", axes=axes)


def prefill_attention(source: Source) -> Iterator[Grid]:
    """The whole prompt at once; with an FP8 cache in FP8 where the engine can, else in BF16."""
    rows = source.read()
    rows = rows.assign(tokens=rows["isl"])
    axes = {
        "q_per_kv": GROUPS,
        "kv_heads": KV_HEADS,
        "tokens": PROMPTS,
        "sequences": PROMPT_SEQUENCES,
    }
    for kv in ("bfloat16", "fp8"):
        for head_dim in (64, 128):
            chosen = heads_of(rows, head_dim=head_dim, kv=kv)
            in_kv = chosen[chosen["attn_dtype"] == kv]
            chosen = in_kv if len(in_kv) else chosen
            yield grid_of(chosen, name=f"prefill_attention {FORMATS[kv]} {head_dim}", axes=axes)


def all_reduce(source: Source) -> Iterator[Grid]:
    """`message_size` counts BF16 elements: read as bytes, it would be twice as slow as NCCL."""
    rows = source.read()
    if not len(rows):
        return
    rows = rows[~rows["kernel_source"].str.contains("eager")]
    rows = rows.assign(bytes=2 * rows["message_size"], gpus=rows["num_gpus"])
    axes = {"gpus": [2, 4, 8], "bytes": sorted(rows["bytes"].unique())}
    yield grid_of(rows, name="all_reduce", axes=axes)


def exchange(source: Source) -> Iterator[Grid]:
    """All-gather before the experts, reduce-scatter after them, over the bytes of the whole group.

    With 22 experts a token, seven of eight GPUs want each token: an all-to-all has nothing to save.
    """
    rows = source.read()
    rows = rows[(rows["nccl_dtype"] == "half")]
    rows = rows[rows["op_name"].isin(["all_gather", "reduce_scatter"])]
    keys = ["file", "kernel_source", "num_gpus", "message_size"]
    rows = rows.groupby(keys, as_index=False)["seconds"].mean()
    rows = rows.assign(bytes=2 * rows["message_size"], gpus=rows["num_gpus"])
    axes = {"gpus": [2, 4, 8], "bytes": sorted(rows["bytes"].unique())}
    yield grid_of(rows, name="all_to_all", axes=axes)


def convolutions(source: Source) -> Iterator[Grid]:
    """One new token of many sequences, and one whole prompt.

    Several prompts took as long as one after another, which no engine does: they are left out.
    """
    rows = source.read()
    if not len(rows):
        return
    channels = rows["nheads"] * rows["head_dim"] + 2 * rows["n_groups"] * rows["d_state"]
    rows = rows.assign(channels=channels, tokens=rows["num_tokens"])
    for phase, name in (("generation", "conv"), ("context", "prefill_conv")):
        chosen = rows[rows["phase"] == phase]
        if phase == "context":
            chosen = chosen[chosen["batch_size"] == 1]
        axes = {key: sorted(chosen[key].unique()) for key in ("channels", "tokens")}
        yield grid_of(chosen, name=name, axes=axes)


def write(grids: Sequence[Grid], *, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    index = {
        grid.name: {key: [float(node) for node in nodes] for key, nodes in grid.axes.items()}
        for grid in grids
    }
    arrays = {grid.name: shortened(grid.seconds) for grid in grids}
    text = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    np.savez_compressed(path, index=text, **arrays)


def shortened(seconds: np.ndarray) -> np.ndarray:
    """Float32 with 12 bits of mantissa: 0.012 % off at most, and half the size on disk."""
    drop = 23 - KEPT_MANTISSA_BITS
    bits = seconds.astype(np.float32).view(np.uint32)
    rounded = ((bits + (1 << (drop - 1))) >> drop) << drop
    return np.where(np.isnan(seconds), np.float32("nan"), rounded.view(np.float32))


def sources_page(pages: Sequence[tuple[str, str, Grid]]) -> str:
    lines = [
        "# Measured GPU kernels",
        "",
        "Rows taken by `scripts/gpu_tables.py` from the tables of NVIDIA's aiconfigurator",
        f"(`aiconfigurator-core` {version('aiconfigurator-core')}, Apache-2.0,",
        "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES;",
        "https://github.com/ai-dynamo/aiconfigurator). Changed: fewer rows, other units (seconds,",
        "bytes), 12 bits of mantissa. Files are under `aiconfigurator_core/systems/data`.",
        f"Routing of experts: {ROUTING}. Read by `fretsaw.pricing.lookup`.",
        "",
        "| hardware | backend | table | cells | file | kernels |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for system, backend, grid in pages:
        cells = int(np.isfinite(grid.seconds).sum())
        files = "<br>".join(file.removeprefix(f"{system}/") for file in grid.sources)
        kernels = ", ".join(grid.kernels)
        lines.append(f"| {system} | {backend} | {grid.name} | {cells} | {files} | {kernels} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
