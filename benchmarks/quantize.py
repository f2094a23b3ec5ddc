"""Number formats on one checkpoint: held-out loss, KL to the original, bytes, and what QAD returns.

    python recipes/demo/corpus.py --out runs/demo-text
    python benchmarks/quantize.py --text runs/demo-text --out runs/quantize

Every arm is written by `fretsaw quantize` and judged twice: with its weights dequantised alone, and
with inputs and KV cache rounded as a GPU would round them. Arms that are there are judged again,
not made again. Prints a table and writes benchmarks/results/quantize.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.quant.plan import plan_export
from fretsaw.runtime.fake import fake_quantized
from fretsaw.runtime.load import load_model
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantize import quantize
from fretsaw.stages.quantize_options import QuantizeOptions, precision_of
from fretsaw.train.data import load_split
from fretsaw.train.metrics import HeldOut
from fretsaw.train.packing import load_tokenizer, pack

BATCH = 8


def arms(arguments: argparse.Namespace) -> dict[str, QuantizeOptions]:
    """What is compared, by name."""
    common = QuantizeOptions(
        to=arguments.to,
        text=arguments.text,
        sequences=arguments.sequences,
        sequence_length=arguments.length,
        batch_sequences=BATCH,
        heal_tokens=arguments.heal_tokens,
        heal_sequence_length=arguments.length,
        seed=arguments.seed,
    )
    healed = replace(common, teacher=arguments.teacher, learning_rate=arguments.learning_rate)
    name = Path(arguments.to).stem
    return {
        "fp8": replace(common, to="fp8"),
        f"{name}, max": common,
        f"{name}, mse": replace(common, method="mse"),
        "nvfp4-w4a16, mse": replace(common, to="nvfp4-w4a16", method="mse"),
        f"{name} + QAD": healed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=Path, default=Path("recipes/demo/parent"))
    parser.add_argument("--teacher", type=Path, help="default: the child itself")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--to", default="nvfp4", help="precision that is healed, or a YAML file")
    parser.add_argument("--out", type=Path, default=Path("runs/quantize"))
    parser.add_argument("--sequences", type=int, default=64, help="of calibration text")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--held-out", type=int, default=64, help="sequences of held-out text")
    parser.add_argument("--heal-tokens", type=int, default=200_000)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/quantize.json"))
    arguments = parser.parse_args()
    arguments.teacher = arguments.teacher or arguments.child
    source = Checkpoint(arguments.child)
    exact = load_model(source)
    held_out = HeldOut(exact, _held_out_ids(source, arguments), batch_size=BATCH)
    rows = [{"arm": "bf16", "rounded": asdict(held_out.measure(exact)), "bytes": _bytes(source)}]
    for name, options in arms(arguments).items():
        out = arguments.out / name.replace(", ", "-").replace(" + ", "-")
        row: dict[str, Any] = {"arm": name, "seconds": 0.0}
        if not out.exists():
            started = time.monotonic()
            out.parent.mkdir(parents=True, exist_ok=True)
            quantize(arguments.child, out=out, options=options, reporter=Reporter())
            row["seconds"] = time.monotonic() - started
        row |= _judged(out, held_out)
        row["planned_bytes"] = plan_export(source, precision_of(options)).num_bytes
        rows.append(row)
        print(json.dumps(row), flush=True)
    arguments.results.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def _judged(folder: Path, held_out: HeldOut) -> dict[str, Any]:
    checkpoint = Checkpoint(folder)
    with fake_quantized(checkpoint) as model:
        rounded = held_out.measure(model)
    weights: PreTrainedModel = load_model(checkpoint)
    return {
        "rounded": asdict(rounded),
        "weights": asdict(held_out.measure(weights)),
        "bytes": _bytes(checkpoint),
    }


def _bytes(checkpoint: Checkpoint) -> int:
    """Bytes of tensors in the files: all but their headers."""
    total = 0
    for file in checkpoint.folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            total += file.stat().st_size - 8 - int.from_bytes(stream.read(8), "little")
    return total


def _held_out_ids(source: Checkpoint, arguments: argparse.Namespace) -> Tensor:
    return pack(
        load_split(arguments.text, "validation"),
        load_tokenizer(source.folder),
        num_sequences=arguments.held_out,
        sequence_length=arguments.length,
        seed=arguments.seed,
        vocab_size=source.shape.sizes["vocab"],
        min_sequences=1,
    )


def table(rows: list[dict[str, Any]]) -> str:
    """One line an arm; KL is to the model in 16 bits."""
    exact = rows[0]["rounded"]["loss"]
    lines = ["| arm | bytes | loss | loss - bf16 | KL | KL, weights alone | seconds |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        rounded, weights = row["rounded"], row.get("weights", row["rounded"])
        lines.append(
            f"| {row['arm']} | {row['bytes']:,} | {rounded['loss']:.4f} | "
            f"{rounded['loss'] - exact:+.4f} | {rounded['kl']:.5f} | {weights['kl']:.5f} | "
            f"{row.get('seconds', 0.0):.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
