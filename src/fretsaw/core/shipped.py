"""Configs of published models that come with the package: ``@super`` is one of them."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from fretsaw.errors import CheckpointError, nearest

MARK = "@"
FOLDER = resources.files("fretsaw") / "data" / "configs"


@cache
def shipped_names() -> tuple[str, ...]:
    """Names of all that there are, sorted, with the mark: ``@super``."""
    files = (item.name for item in FOLDER.iterdir())
    return tuple(sorted(MARK + name.removesuffix(".json") for name in files))


def shipped_config(name: str) -> Path:
    """The config.json behind a name such as ``@super``.

    Raises:
        CheckpointError: there is none of that name; the nearest one is given.
    """
    known = shipped_names()
    if name.lower() not in known:
        guess = nearest(name, known)
        raise CheckpointError(
            f"no config named {name!r} comes with fretsaw",
            (f"did you mean {guess}? " if guess else "") + f"there are {', '.join(known)}",
        )
    return Path(str(FOLDER / f"{name.lower().removeprefix(MARK)}.json"))
