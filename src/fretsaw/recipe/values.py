"""What numbers and words in a recipe may be: each kind is parsed here, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from fretsaw.core.units import parse_count, parse_fraction, parse_shard_bytes
from fretsaw.errors import RecipeError

REFUSED = "refused"
"""Type of the errors of this module; their context says what was expected, and what to do."""

MOST = 10**15
"""Of anything that is counted: far above all text and all models."""


def refused(
    expected: str, hint: str = "", *, key: str = "", value: object = None
) -> PydanticCustomError:
    """The error of a value; `key` and `value` say which where pydantic sees a section around it."""
    context = {"expected": expected, "hint": hint}
    if key:
        context |= {"key": key, "value": value}  # type: ignore[dict-item]
    return PydanticCustomError(REFUSED, "{expected}", context)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Whole:
    """A whole number, or a quantity such as 10M.

    Attributes:
        least: Smallest that is allowed.
        most: Largest.
    """

    least: int = 1
    most: int = MOST

    def __call__(self, value: object) -> int:
        """The number.

        Raises:
            PydanticCustomError: something else.
        """
        expected = f"expected a whole number of at least {self.least}, such as {self._example()}"
        if isinstance(value, str):
            try:
                number: float = parse_count(value)
            except RecipeError as error:
                raise refused(expected) from error
        elif isinstance(value, int | float) and _is_number(value):
            number = value
        else:
            raise refused(expected)
        if not math.isfinite(number) or number != int(number) or number < self.least:
            raise refused(expected)
        if number > self.most:
            raise refused(f"expected at most {self.most:,}")
        return int(number)

    def _example(self) -> str:
        return "1000 or 10M" if self.most == MOST else str(max(self.least, min(8, self.most)))


@dataclass(frozen=True)
class Real:
    """A number; where `is_share`, also a percentage such as 10%.

    Attributes:
        least: Smallest that is allowed.
        most: Largest.
        is_above: Whether `least` itself is not allowed.
        is_share: Of something.
    """

    least: float = 0.0
    most: float = math.inf
    is_above: bool = False
    is_share: bool = False

    def __call__(self, value: object) -> float:
        """The number.

        Raises:
            PydanticCustomError: something else.
        """
        if self.is_share and isinstance(value, str) and value.strip().endswith("%"):
            try:
                value = parse_fraction(value)
            except RecipeError as error:
                raise refused(self._expected()) from error
        if not isinstance(value, int | float) or not _is_number(value):
            raise refused(self._expected(), self._hint(value))
        too_small = value <= self.least if self.is_above else value < self.least
        if not abs(value) <= LARGEST or too_small or value > self.most:
            raise refused(self._expected(), self._hint(value))
        return float(value)

    def _expected(self) -> str:
        what = "a share such as 0.1 or 10%" if self.is_share else "a number"
        low = f"above {self.least:g}" if self.is_above else f"of at least {self.least:g}"
        if math.isinf(self.most):
            return f"expected {what} {low}"
        return f"expected {what}, {low} and at most {self.most:g}"

    def _hint(self, value: object) -> str:
        if isinstance(value, str):
            return "write a plain number, without quotes, such as 0.001 or 1e-3"
        if self.is_share and isinstance(value, int | float) and 1 < value <= PERCENT:
            return f"did you mean {value:g}%?"
        return ""


LARGEST = 1e30
PERCENT = 100


def _rate(value: object) -> float | str:
    if value == "auto":
        return "auto"
    try:
        return Real(is_above=True, most=10.0)(value)
    except PydanticCustomError as error:
        hint = (error.context or {})["hint"]
        raise refused("expected a rate such as 1e-3, or auto", hint) from error


def _size(value: object) -> int | str:
    """A size of a block, or a percentage of the parent's."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            share = parse_fraction(value)
        except RecipeError as error:
            raise refused(SIZE) from error
        if not 0 < share <= 1:
            raise refused("expected above 0% and at most 100%: no block grows")
        return value.strip()
    try:
        return Whole()(value)
    except PydanticCustomError as error:
        is_share = isinstance(value, float) and 0 < value < 1
        raise refused(SIZE, f"did you mean {100 * value:g}%?" if is_share else "") from error  # type: ignore[operator]


SIZE = "expected a size such as 128, or a share of the parent such as 75%"


def _file_bytes(value: object) -> int:
    expected = "expected a size such as 5GB"
    if not isinstance(value, str) and not _is_number(value):
        raise refused(expected)
    try:
        size = parse_shard_bytes(value)  # type: ignore[arg-type]
    except RecipeError as error:
        raise refused(expected, error.hint) from error
    if size > MOST:
        raise refused("expected at most 1000TB")
    return size


def _text(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    if not isinstance(value, str):
        hint = "put it in quotes if it is text" if value is not None else ""
        raise refused("expected text", hint)
    if not value.strip() or "\0" in value:
        raise refused("expected text that is not empty")
    return value


def _list(value: object) -> Any:
    if isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(value, str | int | float):
        raise refused("expected a list", f"write [{value}]")
    raise refused("expected a list", "write each entry after a dash" if value is not None else "")


def _checked(check: Callable[[object], Any]) -> BeforeValidator:
    return BeforeValidator(check)


Positive = Annotated[int, _checked(Whole())]
Natural = Annotated[int, _checked(Whole(least=0))]
Seed = Annotated[int, _checked(Whole(least=0, most=2**32 - 1))]
Threads = Annotated[int, _checked(Whole(most=4096))]
AboveZero = Annotated[float, _checked(Real(is_above=True))]
NotNegative = Annotated[float, _checked(Real())]
Fraction = Annotated[float, _checked(Real(most=1.0, is_share=True))]
Share = Annotated[float, _checked(Real(most=1.0, is_above=True, is_share=True))]
Rate = Annotated[float | Literal["auto"], _checked(_rate)]
Size = Annotated[int | str, _checked(_size)]
FileBytes = Annotated[int, _checked(_file_bytes)]
Text = Annotated[str, _checked(_text)]
AsList = _checked(_list)
"""For fields that are tuples: `Annotated[tuple[…], AsList]`."""
