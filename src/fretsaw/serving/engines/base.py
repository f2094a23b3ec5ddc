"""What an engine does for fretsaw: load a checkpoint folder, generate, and bear a load."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fretsaw.errors import RunError

Prompt = Sequence[int]
"""Token ids."""


@dataclass(frozen=True)
class EngineSettings:
    """How an engine is started.

    Attributes:
        context: Most tokens of a sequence, prompt and answer together.
        sequences: Most sequences at a time.
        threads: CPU threads that compute.
        dtype: Of weights and activations.
        python: Python of the engine's environment; found by `engine_python` when None.
        scratch: Existing folder for what the engine needs on disk: converted weights, logs.
        arguments: For the engine's own command line.
    """

    context: int
    sequences: int
    scratch: Path
    threads: int = 1
    dtype: str = "float32"
    python: Path | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generation:
    """Greedy continuation of one prompt.

    Attributes:
        tokens: Token ids, as many as were asked for.
        logprobs: Natural log-probability of each; None where the engine keeps it to itself
            (llama.cpp, for a token that ends inside of a character).
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float | None, ...]


@dataclass(frozen=True)
class Timing:
    """One request under load; seconds on one clock for all requests of a load.

    Attributes:
        num_tokens: Tokens generated.
        sent_s: When it was sent.
        first_s: When its first token came.
        done_s: When its last token came.
    """

    num_tokens: int
    sent_s: float
    first_s: float
    done_s: float

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_s - self.sent_s

    @property
    def total_s(self) -> float:
        """Time to the last token."""
        return self.done_s - self.sent_s


class Session(Protocol):
    """An engine that has loaded a checkpoint."""

    def generate(self, prompts: Sequence[Prompt], *, num_tokens: int) -> tuple[Generation, ...]:
        """Greedy continuations, the end-of-text token ignored, one prompt after the other."""

    def bear(
        self, prompts: Sequence[Prompt], *, num_tokens: int, concurrency: int
    ) -> tuple[Timing, ...]:
        """A closed loop: `concurrency` requests at a time, the next as soon as one is done."""

    def acceptance_length(self) -> float | None:
        """Tokens per decode step since the start; None without speculative decoding."""

    def peak_bytes(self) -> int | None:
        """Largest resident memory so far of all processes of the engine; None where unknown."""


class Engine(Protocol):
    """A way to serve checkpoint folders."""

    @property
    def name(self) -> str:
        """As users write it."""

    def open(self, folder: Path, settings: EngineSettings) -> AbstractContextManager[Session]:
        """Start it on a checkpoint; it ends with the context.

        Raises:
            RunError: it is not installed, or does not take this checkpoint.
        """


def engine_python(name: str, *, module: str, settings: EngineSettings, install: str) -> Path:
    """Python that has an engine: as told, of ``.engines/NAME``, or the one that runs fretsaw.

    Args:
        name: Of the engine.
        module: That only an environment with the engine has.
        settings: With the path that the user gave, if any.
        install: What to do when it is missing, one line.

    Raises:
        RunError: nowhere to be found.
    """
    own = Path(".engines", name.replace(".", ""), "bin", "python").absolute()
    if settings.python is not None and not settings.python.is_file():
        raise RunError(f"there is no Python at {settings.python}", install)
    for python in (settings.python, own):
        if python is not None and python.is_file():
            return python.absolute()
    if importlib.util.find_spec(module) is not None:
        return Path(sys.executable)
    raise RunError(f"{name} is not installed: neither {own} nor module {module} is there", install)
