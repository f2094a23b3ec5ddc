"""`--set a.b=value`: sets the one place that it names, in every round or in one."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fretsaw.errors import RecipeError
from fretsaw.recipe.origin import ROUNDS
from fretsaw.recipe.reading import Place, parse_document


@dataclass(frozen=True)
class Override:
    """A place, and its new value.

    Attributes:
        text: As it was given, ``a.b=value``.
        place: Keys and, counted from 0, indices; ``rounds`` and an index begin that of one round.
        value: Plain data.
    """

    text: str
    place: Place
    value: Any

    @property
    def is_of_one_round(self) -> bool:
        """Whether it speaks of one round, not of all."""
        return self.place[0] == ROUNDS


def parse_overrides(texts: Iterable[str]) -> list[Override]:
    """Overrides in the order in which they apply: those of all rounds, then those of one.

    Raises:
        RecipeError: no ``a.b=value``, or two of them for one place.
    """
    overrides = [_parse(text) for text in texts]
    for i, second in enumerate(overrides):
        for first in overrides[:i]:
            shorter = min(len(first.place), len(second.place))
            if first.place[:shorter] == second.place[:shorter]:
                raise RecipeError(
                    f"--set {first.text} and --set {second.text} give one place two values",
                    "keep one of the two",
                )
    return sorted(overrides, key=lambda override: override.is_of_one_round)


def _parse(text: str) -> Override:
    path, separator, value = text.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise RecipeError(f"--set {text!r}: a.b=value was expected", "e.g. --set seed=1")
    place = tuple(_index(key, text) if key.isdecimal() else key for key in keys)
    if place[0] == ROUNDS and (len(place) < 3 or not isinstance(place[1], int)):  # noqa: PLR2004
        raise RecipeError(
            f"--set {text!r}: which round, and which key?", "e.g. --set rounds.1.distill.tokens=1M"
        )
    return Override(text, place, parse_document(value, f"--set {text!r}").data)


def _index(key: str, text: str) -> int:
    if int(key) < 1:
        raise RecipeError(
            f"--set {text!r}: rounds and entries of lists are counted from 1",
            "write 1 for the first",
        )
    return int(key) - 1


@dataclass(frozen=True)
class Parts:
    """A recipe on its way to being resolved, changed in place.

    Attributes:
        data: What is of no round.
        rounds: Each with the defaults of all rounds merged in.
        shared: Names of the sections that are a round's.
    """

    data: dict[str, Any]
    rounds: list[dict[str, Any]]
    shared: Collection[str]

    def apply(self, override: Override) -> None:
        """Put a value into its place: of every round, where it names no round.

        Raises:
            RecipeError: there is no such place.
        """
        place = override.place
        targets: list[dict[str, Any]] = [self.data]
        if override.is_of_one_round:
            number, place = place[1], place[2:]
            if not isinstance(number, int) or number >= len(self.rounds):
                raise RecipeError(
                    f"--set {override.text!r}: the recipe's last round is {len(self.rounds)}",
                    "name a round that it has, counted from 1",
                )
            targets = [self.rounds[number]]
        elif place[0] in self.shared:
            targets = self.rounds
        for target in targets:
            try:
                _put(target, place, value=override.value)
            except (IndexError, KeyError, TypeError) as error:
                raise RecipeError(
                    f"--set {override.text!r}: the recipe has no such place",
                    "see `fretsaw recipe RECIPE --resolved` for all places",
                ) from error


def _put(target: Any, place: Place, *, value: Any) -> None:
    for part in place[:-1]:
        if isinstance(part, str) and part not in target:
            target[part] = {}
        target = target[part]
    last = place[-1]
    if isinstance(target, dict) and isinstance(last, str):
        target[last] = _over(target.get(last), value, key=last)
    elif isinstance(target, list) and isinstance(last, int):
        target[last] = _over(target[last], value, key=last)
    else:
        raise TypeError


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`: sections are merged key by key, a budget is replaced whole."""
    merged = copy.deepcopy(dict(base))
    for key, value in top.items():
        merged[key] = _over(merged.get(key), value, key=key)
    return merged


def _over(old: Any, new: Any, *, key: str | int) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping) and key != "budget":
        return merge(old, new)
    return copy.deepcopy(new)
