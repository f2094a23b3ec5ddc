"""llama.cpp: its server inside of xllamacpp, on a GGUF file that its own converter writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fretsaw.errors import RunError
from fretsaw.serving.engines.base import (
    EngineSettings,
    Generation,
    Prompt,
    Timing,
    engine_python,
)
from fretsaw.serving.engines.server import Server, closed_loop, group_peak_bytes, serve, tail

INSTALL = (
    "run `make engines` in a checkout, or give --engine-python of an environment with "
    "`xllamacpp==2026.10.11549` and llama.cpp's `conversion` and `gguf` packages"
)
COMPLETION = "/completion"
GGUF = "model-f32.gguf"


@dataclass(frozen=True)
class LlamaCpp:
    """The engine; float32 throughout."""

    name: str = "llama.cpp"

    @contextmanager
    def open(self, folder: Path, settings: EngineSettings) -> Iterator[LlamaCppSession]:
        """Convert a checkpoint folder, and start a server on it.

        Raises:
            RunError: llama.cpp is not installed, or does not take this checkpoint.
        """
        python = engine_python(self.name, module="xllamacpp", settings=settings, install=INSTALL)
        gguf = convert(folder, settings.scratch / GGUF, python=python)
        log = settings.scratch / "llamacpp.log"

        def runner_arguments(port: int) -> Sequence[str]:
            own = {
                "model": str(gguf),
                "port": port,
                "threads": settings.threads,
                "context": settings.context,
                "sequences": settings.sequences,
            }
            return [json.dumps(own)]

        with serve(
            self.name, "llamacpp_serve.py", python=python, log=log, arguments=runner_arguments
        ) as server:
            yield LlamaCppSession(server)


def convert(folder: Path, out: Path, *, python: Path) -> Path:
    """Write a checkpoint folder as a float32 GGUF file: aside, then one rename.

    Args:
        folder: Checkpoint; no code of it is run.
        out: File to write; what is there is replaced.
        python: Of llama.cpp's environment.

    Raises:
        RunError: the converter does not take this checkpoint, with its last words.
    """
    aside, log = out.with_suffix(".new.gguf"), out.with_suffix(".log")
    runner = files("fretsaw") / "data" / "engine_runners" / "llamacpp_convert.py"
    with as_file(runner) as script, log.open("wb") as output:
        command = [str(python), "-I", str(script), str(folder.absolute()), str(aside)]
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise RunError(
            f"llama.cpp's converter does not take {folder}:\n{tail(log)}",
            "it needs one expert count, latent and shared size in all blocks; see the table beside "
            "the checkpoint",
        )
    aside.replace(out)
    return out


@dataclass(frozen=True)
class LlamaCppSession:
    """A running llama.cpp server."""

    server: Server

    def generate(self, prompts: Sequence[Prompt], *, num_tokens: int) -> tuple[Generation, ...]:
        """Greedy continuations; see `Session`."""
        return tuple(self._generate(prompt, num_tokens) for prompt in prompts)

    def _generate(self, prompt: Prompt, num_tokens: int) -> Generation:
        body = request(prompt, num_tokens) | {"return_tokens": True, "n_probs": 1}
        answer = self.server.ask(COMPLETION, body)
        return Generation(
            tuple(answer["tokens"]),
            align(answer["tokens"], answer.get("completion_probabilities", [])),
        )

    def bear(
        self, prompts: Sequence[Prompt], *, num_tokens: int, concurrency: int
    ) -> tuple[Timing, ...]:
        """A closed loop; see `Session`."""

        def do(prompt: Prompt) -> Timing:
            body = request(prompt, num_tokens) | {"stream": True}
            return self.server.time(COMPLETION, body, num_tokens=_num_tokens)

        return closed_loop(prompts, concurrency=concurrency, do=do)

    def acceptance_length(self) -> float | None:
        """None: fretsaw starts it without a draft."""
        return None

    def peak_bytes(self) -> int | None:
        """Of the server; see `Session`."""
        return group_peak_bytes(self.server.process.pid)


def request(prompt: Prompt, num_tokens: int) -> dict[str, Any]:
    """Body of a greedy request by token ids."""
    return {
        "prompt": list(prompt),
        "n_predict": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def _num_tokens(event: Mapping[str, Any]) -> int:
    return int(event["tokens_predicted"])


def align(tokens: Sequence[int], entries: Sequence[Mapping[str, Any]]) -> tuple[float | None, ...]:
    """Log-probability of each token; llama.cpp leaves out tokens that end inside of a character."""
    rest = iter(entries)
    entry = next(rest, None)
    found: list[float | None] = []
    for token in tokens:
        if entry is not None and entry["id"] == token:
            found.append(float(entry["logprob"]))
            entry = next(rest, None)
        else:
            found.append(None)
    return tuple(found)
