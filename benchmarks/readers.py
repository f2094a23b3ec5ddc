"""Greedy text of quantised folders through every reader that runs on a CPU, against fretsaw's own.

    python benchmarks/readers.py --child runs/demo/round-3/08-distill/child --text runs/demo-text

Quantises the child to each format, and continues eight prompts through: plain transformers (a
process of its own that knows nothing of fretsaw, `trust_remote_code=True`, no keyboard), vLLM (the
plug-in dequantises: on a CPU it has no kernels for these formats) and llama.cpp (GGUF, dequantised
by `export`). Engines come from `make engines`. Writes benchmarks/results/readers.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from transformers import __version__ as transformers_version

from fretsaw.quant.reader import open_checkpoint
from fretsaw.serving.engines.base import EngineSettings, Generation
from fretsaw.serving.engines.registry import engine_named
from fretsaw.serving.engines.transformers import Transformers
from fretsaw.stages.export import rewrite
from fretsaw.stages.loaders import loaders_of
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantize import QuantizeOptions, quantize
from fretsaw.stages.verify import PROMPTS
from fretsaw.train.packing import load_tokenizer

FORMATS = ("fp8", "nvfp4", "nvfp4-w4a16")
NUM_TOKENS = 32
CONTEXT = 256

PLAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompts, length = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32)
length = {"min_new_tokens": length, "max_new_tokens": length}
run = lambda p: model.generate(torch.tensor([p]), do_sample=False, **length)[0, len(p):].tolist()
found = [run(p) for p in prompts]
print("TOKENS" + json.dumps(found))
"""


def plain_transformers(
    folder: Path, prompts: Sequence[Sequence[int]], *, python: str
) -> list[tuple[int, ...]]:
    """Greedy tokens as a stranger's process gives them; it has no keyboard and no network."""
    command = [python, "-I", "-c", PLAIN, str(folder), json.dumps(prompts), str(NUM_TOKENS)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(folder.parent / "hf")},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOKENS")]
    if not lines:
        raise SystemExit(f"plain transformers failed:\n{done.stderr[-2000:]}")
    return [tuple(tokens) for tokens in json.loads(lines[0].removeprefix("TOKENS"))]


def main() -> None:
    """Quantise, ask every reader, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--vllm-python", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/readers.json"))
    given = parser.parse_args()
    tokenizer = load_tokenizer(given.child)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in FORMATS:
            folder = Path(scratch) / name
            options = QuantizeOptions(to=name, text=given.text, sequences=64, sequence_length=128)
            quantize(given.child, out=folder, options=options)
            found[name] = compared(folder, prompts, vllm_python=given.vllm_python)
            own = found[name].pop("own")
            found[name] |= {
                "who_can_load": {r.engine: r.verdict for r in loaders_of(open_checkpoint(folder))},
                "texts": {p: tokenizer.decode(t) for p, t in zip(PROMPTS, own, strict=True)},
            }
            print(name, json.dumps({k: v for k, v in found[name].items() if "tokens" in str(v)}))
    report = {
        "child": str(given.child),
        "prompts": len(PROMPTS),
        "tokens": NUM_TOKENS,
        "transformers": transformers_version,
        "formats": found,
    }
    given.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def compared(
    folder: Path, prompts: Sequence[Sequence[int]], *, vllm_python: Path | None
) -> dict[str, object]:
    """What each reader says of a folder, beside the tokens of fretsaw's own."""
    settings = EngineSettings(context=CONTEXT, sequences=4, scratch=folder)
    with Transformers().open(folder, settings) as session:
        own = session.generate(prompts, num_tokens=NUM_TOKENS)
    said = {
        f"transformers {transformers_version}": plain_transformers(
            folder, prompts, python=sys.executable
        )
    }
    scratch = folder.parent / f"{folder.name}-engine"
    scratch.mkdir()
    vllm = EngineSettings(context=CONTEXT, sequences=4, scratch=scratch, python=vllm_python)
    with engine_named("vllm").open(folder, vllm) as engine:
        said["vllm (dequantised)"] = tokens_of(engine.generate(prompts, num_tokens=NUM_TOKENS))
    dense = scratch / "dequantised"
    dense.mkdir()
    rewrite(open_checkpoint(folder), dense, reporter=Reporter(is_quiet=True))
    llamacpp = EngineSettings(context=CONTEXT, sequences=4, scratch=scratch)
    with engine_named("llama.cpp").open(dense, llamacpp) as engine:
        said["llama.cpp (dequantised)"] = tokens_of(engine.generate(prompts, num_tokens=NUM_TOKENS))
    return {"own": tokens_of(own)} | {
        reader: agreement(tokens, tokens_of(own)) for reader, tokens in said.items()
    }


def tokens_of(found: Sequence[Generation]) -> list[tuple[int, ...]]:
    """The tokens alone."""
    return [one.tokens for one in found]


def agreement(said: Sequence[Sequence[int]], own: Sequence[Sequence[int]]) -> str:
    """Such as ``256 of 256 tokens``: up to the first that differs in each prompt."""
    same = 0
    for a, b in zip(said, own, strict=True):
        same += next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(b))
    return f"{same} of {sum(map(len, own))} tokens"


if __name__ == "__main__":
    main()
