"""A load on stand-in engines whose every time is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fretsaw.core.hardware import Workload
from fretsaw.errors import RunError
from fretsaw.serving.engines.base import Generation, Prompt, Timing
from fretsaw.serving.load import WARM_UP_TOKENS, Load, Loaded, Sample, match, measure, sample_of

WORKLOAD = Workload(8, 10)
LOAD = Load(WORKLOAD, (1, 2), vocab=50, repeats=3)


@dataclass
class Clockwork:
    """Takes a second to the first token, and from then on `token_s` a token for each user."""

    name: str
    token_s: float
    seen: list[tuple[str, int, list[list[int]]]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    short_by: int = 0

    def generate(self, prompts: Sequence[Prompt], *, num_tokens: int) -> tuple[Generation, ...]:
        raise NotImplementedError

    def bear(
        self, prompts: Sequence[Prompt], *, num_tokens: int, concurrency: int
    ) -> tuple[Timing, ...]:
        self.seen.append((self.name, num_tokens, [list(p) for p in prompts]))
        self.said.append(f"{self.name} {concurrency}")
        request_s = 1 + (num_tokens - 1) * self.token_s * concurrency
        starts = [i // concurrency * request_s for i in range(len(prompts))]
        made = num_tokens - self.short_by
        return tuple(Timing(made, s, s + 1, s + request_s) for s in starts)

    def acceptance_length(self) -> float | None:
        return None

    def peak_bytes(self) -> int | None:
        return None


def test_sample_of_two_requests() -> None:
    timings = (Timing(10, 0.0, 1.0, 10.0), Timing(10, 5.0, 6.0, 25.0))

    sample = sample_of(timings)

    assert sample.user_tokens_per_s == pytest.approx((10 / 10 + 10 / 20) / 2)
    assert sample.server_tokens_per_s == pytest.approx(20 / 25)
    assert sample.ttft_s == pytest.approx(1.0)
    assert sample.decode_s == pytest.approx((9 / 9 + 19 / 9) / 2)


def test_engines_take_turns_on_the_same_prompts() -> None:
    order: list[str] = []
    parent, child = Clockwork("parent", 0.2, said=order), Clockwork("child", 0.1, said=order)

    found = measure({"parent": parent, "child": child}, LOAD)

    turns = ["parent 1", "child 1", "parent 2", "child 2"]
    assert order == turns * (1 + LOAD.repeats), "warm-up, then every repeat"
    assert [(n, p) for _, n, p in parent.seen] == [(n, p) for _, n, p in child.seen]
    assert [n for _, n, _ in parent.seen[:2]] == [WARM_UP_TOKENS] * 2
    prompts = [p for _, _, asked in parent.seen for p in asked]
    assert len({tuple(p) for p in prompts}) == len(prompts), "nothing is asked twice"
    assert [one.concurrency for one in found["child"]] == [1, 2]
    assert found["child"][1].median.user_tokens_per_s == pytest.approx(10 / (1 + 9 * 0.2))
    assert found["child"][1].median.server_tokens_per_s == pytest.approx(2 * 10 / (1 + 9 * 0.2))
    assert found["parent"][0].median.decode_s == pytest.approx(0.2)


def test_an_engine_that_stops_early_is_no_measurement() -> None:
    with pytest.raises(RunError, match="answered with 9 tokens; 10 were asked"):
        measure({"parent": Clockwork("parent", 0.1, short_by=1)}, LOAD)


def _loaded(concurrency: int, user: float, server: float) -> Loaded:
    return Loaded(concurrency, Sample(user, server, 0.1, 0.01), server, server)


def test_server_rate_at_the_parents_user_speed_is_linear_between_points() -> None:
    parent = [_loaded(1, 10, 10), _loaded(4, 6, 24)]
    child = [_loaded(1, 20, 20), _loaded(4, 8, 32), _loaded(8, 5, 38)]

    fast, slow = match(parent, child)

    assert (fast.concurrency, fast.parent) == (1, 10)
    assert fast.child == pytest.approx(32 + (20 - 32) * (10 - 8) / (20 - 8))
    assert slow.child == pytest.approx(38 + (32 - 38) * (6 - 5) / (8 - 5))
    assert slow.gain == pytest.approx(36 / 24)


def test_a_child_that_no_user_saw_so_fast_has_no_rate() -> None:
    (only,) = match([_loaded(1, 10, 10)], [_loaded(1, 9, 9)])

    assert (only.child, only.gain) == (None, None)


def test_below_its_slowest_point_a_child_counts_with_that_point() -> None:
    (only,) = match([_loaded(1, 4, 10)], [_loaded(1, 9, 9)])

    assert only.child == 9
