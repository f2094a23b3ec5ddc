"""Standard streams that take any text, and whose reader may go before the end."""

from __future__ import annotations

import codecs
import io
import os
from typing import IO

PLAIN = str.maketrans(
    {
        "×": "x",
        "→": "->",
        "–": "-",
        "—": "-",
        "…": "...",
        "≥": ">=",
        "≤": "<=",
        "±": "+-",
        "µ": "u",
        "²": "2",
        "·": "*",
        "’": "'",
    }
)
"""What a stream says in place of a character that its encoding does not have."""

HANDLER = "fretsaw.plain"


def write_anything(*streams: IO[str]) -> None:
    """Let streams of any encoding take any text: what they do not have, they say plainly."""
    codecs.register_error(HANDLER, _plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN)
    return "".join(char if char.isascii() else "?" for char in text), error.end


def close_quietly(stream: IO[str]) -> None:
    """Send what is left of a stream nowhere, so that closing it says nothing."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), stream.fileno())
