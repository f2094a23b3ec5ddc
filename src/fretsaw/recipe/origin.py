"""Where each value of a resolved recipe stands: in the file, in a round, in an override."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fretsaw.recipe.reading import Place, named

ROUNDS = "rounds"


@dataclass(frozen=True)
class Origin:
    """The parts that a recipe was resolved from.

    Attributes:
        rounds: Entries of `rounds` as they were written.
        sections: Names of the sections that may stand at the top, too.
        lines: Where each value was read, ``line 7 of FILE``.
        sets: Place -> the text of the override that gives it; places of all rounds at once are
            without ``rounds``.
    """

    rounds: Sequence[Any]
    sections: Collection[str]
    lines: Mapping[Place, str] = field(default_factory=dict)
    sets: Mapping[Place, str] = field(default_factory=dict)

    def name(self, place: Place) -> str:
        """A place as it is written: lists counted from 1, a default of all rounds without them."""
        return named(self._written(place))

    def where(self, place: Place) -> str:
        """`` (line 7 of FILE)``, `` (--set seed=x)``; empty if nobody knows."""
        for candidate in dict.fromkeys((place, self._common(place))):
            for end in range(len(candidate), 0, -1):
                if candidate[:end] in self.sets:
                    return f" (--set {self.sets[candidate[:end]]})"
        written = self._written(place)
        return f" ({self.lines[written]})" if written in self.lines else ""

    def _written(self, place: Place) -> Place:
        """Where a value of a round stands: in its entry, or among the defaults of all rounds."""
        common = self._common(place)
        if common == place or not common:
            return place
        if any(place[:end] in self.sets for end in range(3, len(place) + 1)):
            return place
        if any(common[:end] in self.sets for end in range(1, len(common) + 1)):
            return common
        entry = place[1]
        inside = self.rounds[entry] if isinstance(entry, int) and entry < len(self.rounds) else {}
        return place if _holds(inside, common) else common

    def _common(self, place: Place) -> Place:
        """The place without the round that it is in."""
        return place[2:] if place[:1] == (ROUNDS,) and len(place) > 2 else place  # noqa: PLR2004


def _holds(data: Any, place: Place) -> bool:
    for part in place:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
