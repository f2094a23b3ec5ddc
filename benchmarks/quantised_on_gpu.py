"""What a quantised folder loses in vLLM on a GPU, beside what fretsaw predicts of it on a CPU.

    python benchmarks/quantised_on_gpu.py --text runs/demo-text runs/quantize/*

For someone with an H100 (FP8; NVFP4 runs there with inputs in 16 bits) or a B200 (both): five
minutes. Needs `vllm` and `./plugins/fretsaw-vllm` in this environment or in that of
--engine-python. Each folder's held-out loss is measured by vLLM (log-probabilities of the prompt)
and by `fake_quantized`; the two should differ by less than 0.01 nats, and a folder that is read
wrongly differs by whole nats. A folder in 16 bits may be given too, and runs on a CPU.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.quant.reader import QuantizedCheckpoint, open_checkpoint
from fretsaw.runtime.fake import fake_quantized
from fretsaw.runtime.load import load_model
from fretsaw.serving.engines.base import EngineSettings
from fretsaw.serving.engines.vllm import COMPLETIONS, MODEL, Vllm, VllmSession
from fretsaw.train.data import load_split
from fretsaw.train.packing import load_tokenizer, pack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16", help="of vLLM's activations")
    parser.add_argument("--engine-python", type=Path)
    arguments = parser.parse_args()
    print(f"{'folder':40} {'vLLM':>9} {'predicted':>9} {'difference':>10}")
    for folder in arguments.folders:
        ids = held_out(folder, arguments)
        served, predicted = loss_in_vllm(folder, ids, arguments), predicted_loss(folder, ids)
        print(
            f"{folder.name:40} {served:9.4f} {predicted:9.4f} {served - predicted:+10.4f}",
            flush=True,
        )


def held_out(folder: Path, arguments: argparse.Namespace) -> Tensor:
    return pack(
        load_split(arguments.text, "validation"),
        load_tokenizer(folder),
        num_sequences=arguments.sequences,
        sequence_length=arguments.length,
        seed=0,
        vocab_size=Checkpoint(folder).shape.sizes["vocab"],
    )


def loss_in_vllm(folder: Path, ids: Tensor, arguments: argparse.Namespace) -> float:
    """Mean next-token loss by vLLM's log-probabilities of prompts, nats."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = EngineSettings(
            context=arguments.length + 8,
            sequences=4,
            scratch=Path(scratch),
            dtype=arguments.dtype,
            python=arguments.engine_python,
        )
        with Vllm().open(folder, settings) as session:
            assert isinstance(session, VllmSession)
            losses = [_loss(session, one) for one in ids.tolist()]
    return sum(losses) / len(losses)


def _loss(session: VllmSession, ids: list[int]) -> float:
    body = {"model": MODEL, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 0}
    choice = session.server.ask(COMPLETIONS, body)["choices"][0]
    found = choice["prompt_logprobs"][1:]
    pairs = zip(found, ids[1:], strict=True)
    return -sum(one[str(token)]["logprob"] for one, token in pairs) / len(found)


@torch.no_grad()
def predicted_loss(folder: Path, ids: Tensor) -> float:
    """The same through transformers, rounded as the folder's scales say."""
    checkpoint = open_checkpoint(folder)
    with ExitStack() as stack:
        if isinstance(checkpoint, QuantizedCheckpoint):
            model = stack.enter_context(fake_quantized(checkpoint))
        else:
            model = load_model(checkpoint)
        losses = [float(model(one[None], labels=one[None]).loss) for one in ids]
    return sum(losses) / len(losses)


if __name__ == "__main__":
    main()
