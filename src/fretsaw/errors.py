"""Errors that a user can meet: what is wrong, what was expected, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FretsawError(Exception):
    """Base of all errors that are the user's to mend.

    Attributes:
        message: What is wrong with the value seen, and what was expected.
        hint: What to do.
        exit_code: Exit code of the command line.
    """

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CheckpointError(FretsawError):
    """A checkpoint folder is missing, incomplete or damaged."""


class ShapeError(FretsawError):
    """A tensor does not have the shape that its table gives."""


class RecipeError(FretsawError):
    """The recipe or an option of the command line does not make sense."""


class UnsupportedModelError(FretsawError):
    """No family reads this architecture."""


class InfeasibleError(FretsawError):
    """No choice of variants meets the budgets."""


class DataError(FretsawError):
    """A text or data set is missing, too short, or not as described."""


class RunError(FretsawError):
    """A run folder cannot be used, or a stage cannot go on."""


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option that looks most like a word, for a "did you mean"; None if none does."""
    found = difflib.get_close_matches(word, list(options), n=1, cutoff=0.5)
    return found[0] if found else None
