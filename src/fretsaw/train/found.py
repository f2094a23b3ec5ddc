"""What was found in a text: files, documents, and what was repaired, skipped or ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["repaired", "skipped", "noted"]

OUTCOMES = ("repaired", "skipped", "noted", "ignored")

NAMED_FILES = 20
"""So many files are named where a text is described; all of them are counted."""


@dataclass(frozen=True)
class Counted:
    """How often something was met, and where first.

    Attributes:
        what: In words, such as ``no text in the row``.
        count: How often.
        first: File, and line or row.
    """

    what: str
    count: int
    first: str

    def __str__(self) -> str:
        """Such as ``no text in the row (3 times, first a.jsonl:7)``."""
        times = f"{self.count:,} times, first" if self.count > 1 else "once:"
        return f"{self.what} ({times} {self.first})"


@dataclass
class Tally:
    """Counts of one reading of a text, from its beginning.

    Attributes:
        documents: Documents given.
        form: How a row became text, such as ``column 'text'``.
        is_all: The reading has come to the end of the text.
    """

    documents: int = 0
    form: str = ""
    is_all: bool = False
    _counts: dict[tuple[Outcome, str], Counted] = field(default_factory=dict)

    def begin(self) -> None:
        """Forget what an earlier reading has counted."""
        self.documents, self.form, self.is_all = 0, "", False
        self._counts.clear()

    def count(self, outcome: Outcome, what: str, *, where: object, number: int = 1) -> None:
        """Count something that was met at a place."""
        known = self._counts.get((outcome, what), Counted(what, 0, str(where)))
        now = Counted(what, known.count + number, known.first)
        self._counts[outcome, what] = now

    def counted(self, outcome: Outcome) -> tuple[Counted, ...]:
        """All that had this outcome, in the order in which it was met."""
        return tuple(c for (known, _), c in self._counts.items() if known == outcome)


@dataclass(frozen=True)
class FoundText:
    """A split as it was read.

    Attributes:
        split: Which of ours.
        path: What the user gave.
        share: Share of the source's pieces that belong to the split by hash; None if the files
            are the split's own.
        kinds: Kinds of files and their number, such as ``JSON lines`` and 2.
        num_files: Files that were read, or would be if the text went on so far.
        files: Names of the first of them, below `path`.
        form: How a row became text, such as ``column 'text'``; empty for plain text.
        documents: Documents that were looked through.
        is_all: These are all that there are; a long text is read only as far as it is needed.
        tokens: Token ids taken of them.
        repaired: What was mended.
        skipped: What was left out, row by row.
        noted: What else should be known.
        ignored: Files that were not read, by the reason.
    """

    split: str
    path: str
    share: float | None
    kinds: tuple[tuple[str, int], ...]
    num_files: int
    files: tuple[str, ...]
    form: str
    documents: int
    is_all: bool
    tokens: int
    repaired: tuple[Counted, ...] = ()
    skipped: tuple[Counted, ...] = ()
    noted: tuple[Counted, ...] = ()
    ignored: tuple[Counted, ...] = ()

    def __str__(self) -> str:
        """In a line: where it comes from and how much of it was read."""
        is_one = len(self.kinds) == 1
        kinds = ", ".join(kind if is_one else f"{n} {kind}" for kind, n in self.kinds)
        files = self.path if self.num_files == 1 else f"{self.num_files} files in {self.path}"
        if self.num_files == 1 and not self.path.endswith(self.files[0]):
            files = f"{self.path}/{self.files[0]}"
        form = f", {self.form}" if self.form else ""
        share = "" if self.share is None else f"; {self.share:.0%} of all pieces, by hash"
        first = "" if self.is_all else "first "
        return (
            f"{self.split}: {first}{self.documents:,} documents of {files} ({kinds}{form}{share}); "
            f"{self.tokens:,} tokens taken"
        )

    def warnings(self) -> tuple[str, ...]:
        """What should not be missed, a line each."""
        spoken = {"repaired": self.repaired, "skipped": self.skipped, "ignored": self.ignored}
        lines = [
            f"{outcome}: {', '.join(map(str, counts))}"
            for outcome, counts in spoken.items()
            if counts
        ]
        return (*lines, *map(str, self.noted))

    def to_json(self) -> dict[str, Any]:
        """Plain data, as JSON gives it back."""
        data = asdict(self)
        lists = {name: list(data[name]) for name in ("files", *OUTCOMES)}
        return data | lists | {"kinds": [list(kind) for kind in self.kinds]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FoundText:
        """What `to_json` gave."""
        counts = {name: tuple(Counted(**one) for one in data[name]) for name in OUTCOMES}
        kinds = tuple((kind, number) for kind, number in data["kinds"])
        return cls(**{**data, **counts, "kinds": kinds, "files": tuple(data["files"])})


def by_split(texts: Iterable[FoundText]) -> tuple[FoundText, ...]:
    """The longest reading of each split: shorter ones have read the first part of the same."""
    longest: dict[str, FoundText] = {}
    for text in texts:
        known = longest.get(text.split)
        if known is None or (text.documents, text.tokens) > (known.documents, known.tokens):
            longest[text.split] = text
    return tuple(longest.values())
