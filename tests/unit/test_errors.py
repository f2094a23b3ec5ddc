from __future__ import annotations

import pytest

from fretsaw import errors
from fretsaw.errors import FretsawError, RecipeError, nearest

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FretsawError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_carries_message_hint_and_exit_code(kind: type[FretsawError]) -> None:
    error = kind("`depth` is no recipe key", "did you mean `width`?")
    assert (str(error), error.message) == ("`depth` is no recipe key",) * 2
    assert error.hint == "did you mean `width`?"
    assert error.exit_code == 2


def test_there_is_one_kind_per_sort_of_mistake() -> None:
    assert {kind.__name__ for kind in KINDS} == {
        "FretsawError",
        "CheckpointError",
        "ShapeError",
        "RecipeError",
        "UnsupportedModelError",
        "InfeasibleError",
        "DataError",
        "RunError",
    }


def test_a_hint_is_optional() -> None:
    assert RecipeError("bad").hint == ""


@pytest.mark.parametrize(
    ("word", "found"),
    [("distil", "distill"), ("serch", "search"), ("search", "search"), ("zzz", None), ("", None)],
)
def test_nearest(word: str, found: str | None) -> None:
    assert nearest(word, iter(["search", "distill", "score"])) == found
