from __future__ import annotations

import pytest

from fretsaw.core.units import (
    format_bytes,
    format_count,
    format_latency,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_fraction,
    parse_shard_bytes,
)
from fretsaw.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("75B", 75_000_000_000),
        ("75.4b", 75_400_000_000),
        ("128k", 128_000),
        ("1.5 M", 1_500_000),
        ("2T", 2 * 10**12),
        ("1_000", 1000),
        ("8,030,261,248", 8_030_261_248),
        (" 7 ", 7),
        (42, 42),
        (1e3, 1000),
        (1e18, 10**18),
        (2**63, 2**63),
        ("0", 0),
    ],
)
def test_parse_count(text: str | float, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "B", "-1", -1, "1e9", "75G", "75%", "1.", "1.2.3", "many", True, float("nan"), "٣", "1 2"],
)
def test_what_is_no_count(text: str | float) -> None:
    with pytest.raises(RecipeError, match="is no count") as caught:
        parse_count(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint == "known units: k, M, B, T"


@pytest.mark.parametrize("text", ["0.5", 2.5, "1.2345k"])
def test_a_count_is_whole(text: str | float) -> None:
    with pytest.raises(RecipeError, match="no whole number"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("78GiB", 78 * 2**30),
        ("78gib", 78 * 2**30),
        ("5GB", 5 * 10**9),
        ("1.5 KiB", 1536),
        ("0.3 kB", 300),
        ("12 B", 12),
        ("1TiB", 2**40),
        (1000, 1000),
    ],
)
def test_parse_bytes(text: str | float, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["78G", "-1GB", "GiB", "62%", False])
def test_what_is_no_size(text: str | float) -> None:
    with pytest.raises(RecipeError, match="is no size") as caught:
        parse_bytes(text)
    assert "GiB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "fraction"),
    [("62%", 0.62), ("75 %", 0.75), ("12.5%", 0.125), ("0%", 0.0), ("7%", 0.07)],
)
def test_parse_fraction(text: str, fraction: float) -> None:
    assert parse_fraction(text) == fraction


@pytest.mark.parametrize("text", ["0.62", "62", "%", "-3%", "62%%"])
def test_what_is_no_percentage(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_fraction(text)
    assert caught.value.hint == 'write it like "62%"'


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (999.4, "999"),
        (999.7, "1k"),
        (1000, "1k"),
        (128_000, "128k"),
        (999_400, "999k"),
        (999_900, "1M"),
        (12_770_237_440, "12.8B"),
        (120_668_707_840, "121B"),
        (2.5e15, "2500T"),
        (-1500, "-1.5k"),
    ],
)
def test_format_count(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1023.7 * 1024, "1 MiB"),
        (999.7 * 1024, "1000 KiB"),
        (1010 * 2**20, "1010 MiB"),
        (44.34 * 2**30, "44.3 GiB"),
    ],
)
def test_format_bytes(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (640e-9, "640 ns"),
        (12.34e-6, "12.3 us"),
        (9.85e-3, "9.85 ms"),
        (0.9999, "1 s"),
        (120, "120 s"),
    ],
)
def test_format_latency(seconds: float, text: str) -> None:
    assert format_latency(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.424, "0.42 s"),
        (9.96, "10 s"),
        (12.4, "12 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7199, "2 h 00 min"),
        (7800, "2 h 10 min"),
        (360_000, "100 h 00 min"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("count", [1000, 128_000, 75_400_000_000])
def test_what_is_printed_can_be_parsed(count: int) -> None:
    assert parse_count(format_count(count)) == count


def test_a_file_of_weights_holds_something() -> None:
    assert parse_shard_bytes("5GB") == 5 * 10**9
    with pytest.raises(RecipeError, match="holds no tensor"):
        parse_shard_bytes(0)
