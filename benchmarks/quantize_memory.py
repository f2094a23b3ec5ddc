"""Memory and speed of quantising: a random hybrid checkpoint, larger than the memory that is used.

    python benchmarks/quantize_memory.py --blocks 10 --out /tmp/quantize-memory     (6.8 GB, and 2)

Makes a checkpoint of that many MoE blocks of 0.67 GB (128 experts of 1280 x 1024), with a Mamba
block before each and one attention block, then runs `fretsaw quantize` in processes of their own:
calibrated one block at a time in bfloat16, or weight-only without text. Says the peak resident
memory of each above that of the imports, in blocks, and its speed, the imports' time taken off,
beside a plain copy of the same files. The checkpoint is kept; what is made of it is not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fretsaw.checkpoint.writer import Planned, write_json, write_weights
from fretsaw.families import family_of
from tests.pico import pico_config, write_tokenizer

ARMS = {
    "nvfp4, max": ["--to", "nvfp4"],
    "nvfp4, mse": ["--to", "nvfp4", "--method", "mse"],
    "fp8": ["--to", "fp8"],
    "weights alone, max": ["--to", "weights.yaml"],
    "weights alone, mse": ["--to", "weights.yaml", "--method", "mse"],
}
CALIBRATED = ["--sequences", "8", "--sequence-length", "128", "--dtype", "bfloat16"]
RUN = (
    "import resource, sys; from fretsaw.cli import main; import atexit;"
    "atexit.register(lambda: print('PEAK', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,"
    " file=sys.stderr)); sys.argv = ['fretsaw', *sys.argv[1:]]; main()"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10, help="MoE blocks")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("/tmp/quantize-memory"))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    source = arguments.out / f"source-{arguments.blocks}-{arguments.experts}"
    if not source.exists():
        make(source, blocks=arguments.blocks, experts=arguments.experts)
    (arguments.out / "weights.yaml").write_text("experts: nvfp4\nweight_only: [experts]\n")
    text = arguments.out / "text"
    text.mkdir(exist_ok=True)
    lines = "\n".join(json.dumps({"text": f"{i} is one of the things " * 40}) for i in range(64))
    for split in ("train", "calibration", "validation"):
        (text / f"{split}.jsonl").write_text(lines)
    size = sum(f.stat().st_size for f in source.glob("*.safetensors"))
    block = 2 * 2 * arguments.experts * 1280 * 1024
    rows: list[dict[str, Any]] = [
        {"arm": "plain copy", "bytes": size, **copied(source, arguments.out)}
    ]
    imports = "import resource, sys, fretsaw.stages.quantize;"
    said = "print('PEAK', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    imported = peak_of([sys.executable, "-c", imports + said])
    floor = imported["peak_bytes"]
    print(f"{size / 1e9:.2f} GB, a block {block / 1e9:.2f} GB, imports {floor / 1e9:.2f} GB")
    for name in arguments.arms:
        out = arguments.out / "out"
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, "-c", RUN, "quantize", source.name, "--out", "out"]
        command += ["--shard-bytes", "2GB", *ARMS[name]]
        if "weights.yaml" not in ARMS[name]:
            command += ["--text", "text", *CALIBRATED]
        row = {"arm": name, **peak_of(command, folder=arguments.out)}
        row["seconds"] -= imported["seconds"]
        row |= {"blocks": (row["peak_bytes"] - floor) / block, "bytes": size}
        rows.append(row)
        print(json.dumps(row), flush=True)
    for row in rows:
        speed, blocks = row["bytes"] / row["seconds"] / 1e6, row.get("blocks", 0.0)
        print(f"{row['arm']:20} {speed:8.0f} MB/s {blocks:6.2f} blocks")
    if arguments.results:
        write_json(arguments.results, rows)


def make(folder: Path, *, blocks: int, experts: int) -> None:
    """Random weights under the names and shapes of a hybrid, one tensor at a time."""
    words = ["attention"] + ["mamba", "moe"] * blocks
    config = pico_config(
        layers_block_type=words,
        num_hidden_layers=len(words),
        hidden_size=2048,
        num_attention_heads=16,
        head_dim=128,
        mamba_num_heads=32,
        mamba_head_dim=64,
        n_routed_experts=experts,
        num_experts_per_tok=8,
        moe_intermediate_size=1280,
        moe_latent_size=1024,
        moe_shared_expert_intermediate_size=2048,
        num_nextn_predict_layers=0,
    )
    del config["mtp_layers_block_type"]
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_json(partial / "config.json", config)
    write_tokenizer(partial)
    family = family_of(config)
    planned = [
        Planned(family.stored(name, config), dtype, row.tensor.shape(row.sizes))
        for row in family.rows(family.read_config(config))
        for name, _ in row.names()
        for dtype in ("F32" if row.tensor.dtype == "float32" else "BF16",)
    ]
    shapes = {p.key: p.shape for p in planned}
    generator = torch.Generator().manual_seed(0)

    def read(key: str) -> Tensor:
        shape = shapes[key]
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.1
        return torch.randn(shape, generator=generator) * scale

    write_weights(partial, planned, read=read, shard_bytes=2 * 10**9)
    partial.rename(folder)


def copied(source: Path, out: Path) -> dict[str, float]:
    started = time.monotonic()
    shutil.copytree(source, out / "copy")
    subprocess.run(["sync", "-f", str(out / "copy")], check=True)
    seconds = time.monotonic() - started
    shutil.rmtree(out / "copy")
    return {"seconds": seconds}


def peak_of(command: list[str], *, folder: Path | None = None) -> dict[str, float]:
    """Peak resident memory and seconds of a process."""
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    seconds = time.monotonic() - started
    lines = [line for line in done.stderr.splitlines() if line.startswith("PEAK ")]
    if done.returncode or not lines:
        raise SystemExit(done.stderr)
    return {"peak_bytes": 1024 * int(lines[-1].split()[1]), "seconds": seconds}


if __name__ == "__main__":
    main()
