"""Config keys that transformers gives to every model: dtype, vocabulary, ids of special tokens."""

from __future__ import annotations

from typing import Any

from fretsaw.families.base import Config

DTYPE_KEYS = ("dtype", "torch_dtype")
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""Words of safetensors for a dtype -> config.json's."""

TOKEN_ID = ("_token_id", "_token_ids")


def stated_dtype(config: Config) -> str:
    """The dtype that a config states, in safetensors' word; empty if it states none."""
    word = next((config[key] for key in DTYPE_KEYS if config.get(key)), "")
    plain = str(word).removeprefix("torch.")
    return next((stored for stored, said in DTYPES.items() if said == plain), "")


def with_dtype(config: Config, stored: str) -> dict[str, Any]:
    """The config, stating a dtype under the keys that it has, or under the present one.

    Args:
        config: Of a checkpoint.
        stored: Dtype in safetensors' word; one that configs have no word for is not stated.
    """
    if stored not in DTYPES:
        return dict(config)
    keys = [key for key in DTYPE_KEYS if config.get(key)] or DTYPE_KEYS[:1]
    return {**config, **dict.fromkeys(keys, DTYPES[stored])}


def with_end_of_text(config: Config, token: int) -> dict[str, Any]:
    """The config, naming the token that ends a text."""
    return {**config, "eos_token_id": token}


def embedding_rows(config: Config) -> int | None:
    """Rows of the embedding that a config states; None if it states none."""
    rows = config.get("vocab_size")
    return rows if isinstance(rows, int) and not isinstance(rows, bool) else None


def special_ids(config: Config) -> dict[str, list[object]]:
    """Key -> token ids of a config, or of generation_config.json: begin, end, padding, others."""
    return {
        key: value if isinstance(value, list) else [value]
        for key, value in config.items()
        if key.endswith(TOKEN_ID) and value is not None
    }
