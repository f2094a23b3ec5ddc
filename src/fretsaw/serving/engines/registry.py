"""Engines by name."""

from __future__ import annotations

from fretsaw.core.engines import engine_key
from fretsaw.serving.engines.base import Engine
from fretsaw.serving.engines.llamacpp import LlamaCpp
from fretsaw.serving.engines.transformers import Transformers
from fretsaw.serving.engines.vllm import Vllm

ENGINES: dict[str, Engine] = {e.name: e for e in (Vllm(), LlamaCpp(), Transformers())}


def engine_named(name: str) -> Engine:
    """An engine by its name.

    Raises:
        RecipeError: unknown name.
    """
    return ENGINES[engine_key(name, ENGINES)]
