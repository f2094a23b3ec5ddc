"""Architectures that fretsaw knows: the only place with checkpoint names and config keys."""

from __future__ import annotations

from fretsaw.errors import UnsupportedModelError, nearest
from fretsaw.families.base import Config, Family, Row
from fretsaw.families.nemotron_h import FAMILY as NEMOTRON_H

FAMILIES: tuple[Family, ...] = (NEMOTRON_H,)


def family_of(config: Config) -> Family:
    """The family that reads a config.

    Raises:
        UnsupportedModelError: no family has this `model_type`.
    """
    model_type = config.get("model_type")
    known = {name: family for family in FAMILIES for name in family.model_types}
    if isinstance(model_type, str) and model_type in known:
        return known[model_type]
    guess = nearest(str(model_type), known)
    raise UnsupportedModelError(
        f"unknown architecture model_type={model_type!r}; known: {', '.join(known)}",
        f"did you mean {guess!r}?" if guess else "add a family: see ARCHITECTURE.md, section 3",
    )


def family_named(name: str) -> Family:
    """The family with this registry name."""
    return next(family for family in FAMILIES if family.name == name)


__all__ = ["FAMILIES", "Config", "Family", "Row", "family_named", "family_of"]
