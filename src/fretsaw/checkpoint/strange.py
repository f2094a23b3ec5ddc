"""Files that are not what their name says: what they are, by their first bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Strange:
    """What a file is instead of what it should be.

    Attributes:
        name: In words that follow "is".
        hint: How to get the right file.
    """

    name: str
    hint: str


LFS = b"version https://git-lfs"
AGAIN = "download the file again"
SIGNS = (
    (b"PK\x03\x04", Strange("a ZIP archive (a pickle of PyTorch looks so)", "take safetensors")),
    *(
        (bytes((0x80, version)), Strange("a pickle", "take safetensors: a pickle can run code"))
        for version in range(2, 6)
    ),
    (b"GGUF", Strange("a GGUF file", "take the safetensors that it was made from")),
    (b"\x1f\x8b", Strange("packed with gzip", "unpack it")),
    (b"\x89HDF", Strange("an HDF5 file", "take safetensors")),
    (b"Entry not found", Strange("the hub's answer that there is no such file", AGAIN)),
)


def unlike(start: bytes, expected: Iterable[bytes] = ()) -> Strange | None:
    """What a file is by its first bytes, if it is something well known that it should not be.

    Args:
        start: The first 512 bytes, or all of a shorter file.
        expected: Beginnings that are right for such a file.
    """
    text = start.lstrip()
    if not text:
        return Strange("empty", AGAIN) if not start else Strange("blank", AGAIN)
    if text.startswith(tuple(expected)):
        return None
    if text.startswith(LFS):
        return _pointer(text)
    if text[:1] == b"<" and re.match(rb"<(!doctype|html|\?xml|head|body)", text, re.IGNORECASE):
        return Strange("a web page (often that of an error)", AGAIN)
    if text.startswith((b'{"', b"{\n", b"{\r", b"{ ")):
        return Strange("JSON text (often that of an error)", AGAIN)
    return next((what for sign, what in SIGNS if start.startswith(sign)), None)


def _pointer(text: bytes) -> Strange:
    size = re.search(rb"^size (\d{1,18})$", text, re.MULTILINE)
    stands = f" that stands for {int(size[1]):,} bytes" if size else ""
    return Strange(
        f"a Git-LFS pointer{stands}", "run `git lfs pull` in the clone, or download the file"
    )
