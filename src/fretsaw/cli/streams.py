"""Standard streams that take any text."""

from __future__ import annotations

import codecs
import io
from typing import IO

PLAIN = {
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
"""What a stream says in place of a character that its encoding does not have."""

BYTE_0 = 0xDC00
"""Code point by which Python stands for byte 0 of a name that is no text (PEP 383)."""

HANDLER = "fretsaw.plain"


def write_anything(*streams: IO[str]) -> None:
    """Let streams of any encoding take any text: what they do not have, they say plainly."""
    codecs.register_error(HANDLER, _plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def _plain(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return b"".join(map(_bytes_of, characters)), error.end


def _bytes_of(character: str) -> bytes:
    """The byte of a file's name that is no text, a plain likeness, or a question mark."""
    if BYTE_0 <= ord(character) <= BYTE_0 + 0xFF:
        return bytes([ord(character) - BYTE_0])
    return PLAIN.get(character, "?").encode("ascii")
