"""Generated recipes: each is read or refused in our words, and what is read reads back the same.

The slice of the tests is short; for a long one run ``python -m tests.unit.recipe.test_fuzz 20000``.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fretsaw.errors import FretsawError
from fretsaw.recipe import Recipe, resolve_recipe
from fretsaw.recipe.reading import parse_document

DEMO = (Path(__file__).parents[3] / "recipes" / "demo.yaml").read_text(encoding="utf-8")
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, 1e-3, 1e9, 1e308, 10**30, float("nan"), float("inf")),
    *("", " ", "auto", "75%", "150%", "-5%", "10M", "1,5", "5GB", "128KiB", "010", "1:30", "yes"),
    *("no", "~", "null", "2026-12-07", "1e-3", "0x10", "kl", "H100", "8k/64k", "tp2", "\x00", "é"),
    *([], {}, [1], ["75%"], {"a": 1}, [[]], {"serve": [{}]}, {"serve": [{"hardware": "H100"}]}),
)
MARKS = "{}[],:-#&*!|>'\"%@`\t\n \\~=<>?0\x00\x07é"


def _places(data: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(data, dict):
        items = data.items()
    elif isinstance(data, list):
        items = enumerate(data)
    return [place, *(p for key, value in items for p in _places(value, (*place, key)))]


def _spoil_data(rng: random.Random) -> tuple[Any, list[str]]:
    data, sets = yaml.safe_load(DEMO), []
    for _ in range(rng.randint(1, 3)):
        place = rng.choice(_places(data)[1:])
        target = data
        for part in place[:-1]:
            target = target[part]
        value = copy.deepcopy(rng.choice(SCALARS))
        if rng.random() < 0.3:
            text = json.dumps(value) if rng.random() < 0.5 else str(value)
            sets.append(f"{'.'.join(str(p) for p in place)}={text}")
        elif rng.random() < 0.2 and isinstance(target, dict):
            target[rng.choice(("tokens", "ffn", "budget", "", "a.b", "seed", 5, None))] = value
        else:
            target[place[-1]] = value
    return data, sets


def _spoil_text(rng: random.Random) -> str:
    text = DEMO
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        cut = rng.choice((0, 1, 1, rng.randrange(30)))
        text = (
            text[:at]
            + rng.choice((rng.choice(MARKS), "", text[at : at + 20] * 2))
            + text[at + cut :]
        )
    return text


def fuzz(seed: int) -> str:
    """One recipe: whether it was read, or how it was refused.

    Raises:
        AssertionError: refused in words that are not ours, or another recipe when read back.
    """
    rng = random.Random(seed)
    try:
        if seed % 2:
            recipe = resolve_recipe(*_spoil_data(rng))
        else:
            recipe = resolve_recipe(parse_document(_spoil_text(rng), "r.yaml").data)
    except FretsawError as error:
        _check_words(error, seed=seed)
        return error.message
    assert _read_back(recipe) == recipe, seed
    return "read"


def _check_words(error: FretsawError, *, seed: int) -> None:
    text = f"{error.message}\n{error.hint}"
    assert error.message, seed
    assert not [w for w in ("Input should", "pydantic", "another kind") if w in text], (seed, text)


def _read_back(recipe: Recipe) -> Recipe:
    return resolve_recipe(parse_document(recipe.to_json(), "recipe.resolved.json").data)


@pytest.mark.parametrize("start", range(0, 600, 100))
def test_f2_f12_generated_recipes_are_read_or_refused(start: int) -> None:
    for seed in range(start, start + 100):
        fuzz(seed)


if __name__ == "__main__":
    from collections import Counter

    count = int(sys.argv[1])
    found = Counter(fuzz(seed) == "read" for seed in range(count))
    print(
        f"{count} recipes: {found[True]} read and read back, {found[False]} refused, no traceback"
    )
