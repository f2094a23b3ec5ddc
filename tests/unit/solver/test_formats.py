"""Formats chosen under a size, against every combination there is."""

from __future__ import annotations

import itertools
import random

import pytest

from fretsaw.errors import InfeasibleError
from fretsaw.solver.formats import FormatOption, choose_formats

SIZES = {"bf16": 16, "fp8": 8, "nvfp4": 5}


def options(seed: int) -> list[FormatOption]:
    """Four blocks of one or two kinds; finer formats diverge less."""
    draw = random.Random(seed)
    found = []
    for block in range(4):
        for kind in ("experts", "shared_experts")[: 1 + block % 2]:
            numel = draw.randrange(100, 5000)
            worst = draw.random()
            for name, bits in SIZES.items():
                kl = {"bf16": 0.0, "fp8": worst * draw.random() / 5, "nvfp4": worst}[name]
                found.append(FormatOption(block, kind, name, kl, numel * bits // 8))  # type: ignore[arg-type]
    draw.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_is_the_best_of_all(seed: int) -> None:
    found = options(seed)
    places: dict[tuple[int, str], list[FormatOption]] = {}
    for option in found:
        places.setdefault((option.block, option.kind), []).append(option)
    full = sum(max(o.num_bytes for o in own) for own in places.values())
    limit = full * 45 // 100
    fitting = (
        combination
        for combination in itertools.product(*places.values())
        if sum(o.num_bytes for o in combination) <= limit
    )
    best = min(sum(o.kl for o in combination) for combination in fitting)
    chosen = choose_formats(found, limit_bytes=limit)
    assert {(o.block, o.kind) for o in chosen} == set(places)
    assert sum(o.num_bytes for o in chosen) <= limit
    assert sum(o.kl for o in chosen) == pytest.approx(best, abs=1e-7)


def test_without_a_bound_nothing_is_rounded() -> None:
    assert {o.number_format for o in choose_formats(options(0), limit_bytes=10**9)} == {"bf16"}


def test_too_small_a_size_names_the_least() -> None:
    found = options(1)
    with pytest.raises(InfeasibleError, match="the smallest takes"):
        choose_formats(found, limit_bytes=10)
