"""Bootstrap intervals: as wide as theory says, paired, and silent where nothing can be said."""

from __future__ import annotations

import random

import pytest

from fretsaw.core.intervals import FEWEST, Interval, bootstrap


def test_u23_an_interval_is_as_wide_as_theory_says() -> None:
    rng = random.Random(0)
    values = [rng.gauss(2.0, 0.5) for _ in range(400)]
    found = bootstrap(values)
    assert found is not None
    assert found.low < sum(values) / 400 < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.5 / 20, rel=0.1)


def test_u23_a_paired_interval_is_narrow_where_both_vary_together() -> None:
    rng = random.Random(1)
    hard = [rng.gauss(2.0, 0.5) for _ in range(64)]
    differences = [0.1 + rng.gauss(0, 0.01) for _ in hard]
    alone = bootstrap([h + d for h, d in zip(hard, differences, strict=True)])
    paired = bootstrap(differences)
    assert alone is not None
    assert paired is not None
    assert paired.high - paired.low < (alone.high - alone.low) / 10
    assert paired.low > 0.09


def test_u23_few_or_equal_values() -> None:
    assert bootstrap([1.0] * (FEWEST - 1)) is None
    assert bootstrap([]) is None
    assert bootstrap([1.0] * FEWEST) == Interval(1.0, 1.0)
