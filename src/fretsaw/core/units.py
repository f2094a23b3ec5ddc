"""Quantities as people write them: "75B", "128k", "78GiB", "62%"."""

from __future__ import annotations

import re
from decimal import Decimal

from fretsaw.errors import RecipeError

COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}b": 1000 ** (i + 1) for i, p in enumerate("kmgt")},
    **{f"{p}ib": 1024 ** (i + 1) for i, p in enumerate("kmgt")},
}
QUANTITY = re.compile(
    r"\s*((?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9][0-9_]{0,40})(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*"
)
"""Commas stand before groups of three digits: "1,5" means 1.5 to some, and is refused."""

LEAST_MEMORY_BYTES = 2**20
"""No memory of a GPU, and no model's weights, are smaller: a unit was forgotten."""

LEAST_FILE_BYTES = 1000
PERCENTAGE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
MINUTE_S = 60
HOUR_S = 3600


def parse_count(text: str | float) -> int:
    """A count such as 1000, "1_000", "75B" or "128k"; k, M, B, T are powers of 1000.

    Raises:
        RecipeError: not a count.
    """
    what = 'count such as 1000, "128k" or "75B"'
    value = _parse(text, COUNT_UNITS, what=what, known="k, M, B, T")
    if value != int(value):
        raise RecipeError(f"{text!r} is no whole number: {value:f}", "write a whole count")
    return int(value)


def parse_bytes(text: str | float) -> int:
    """A size such as 1000, "5GB" (powers of 1000) or "78GiB" (powers of 1024), to the next byte.

    Raises:
        RecipeError: not a size.
    """
    what = 'size such as "5GB" or "78GiB"'
    known = "B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024)"
    return round(_parse(text, BYTE_UNITS, what=what, known=known))


def parse_shard_bytes(text: str | float) -> int:
    """The size of a file of weights; as `parse_bytes`, and large enough for a tensor.

    Raises:
        RecipeError: not a size, or absurdly small: a unit was forgotten.
    """
    size = parse_bytes(text)
    if size < LEAST_FILE_BYTES:
        guess = f'did you mean "{text}GB"?' if size else 'give a size such as "5GB"'
        raise RecipeError(f"a file size of {text!r} is {size} bytes and holds no tensor", guess)
    return size


def parse_memory(text: str | float) -> int:
    """Memory, or what lies in it; as `parse_bytes`, and either none or a sensible amount.

    Raises:
        RecipeError: not a size, or absurdly small: a unit was forgotten.
    """
    size = parse_bytes(text)
    if 0 < size < LEAST_MEMORY_BYTES:
        bare = QUANTITY.fullmatch(str(text))
        number = bare[1] if bare else text
        raise RecipeError(
            f"{text!r} of memory is {format_bytes(size)}", f'did you mean "{number}GB"?'
        )
    return size


def parse_fraction(text: str) -> float:
    """A share such as "62%" -> 0.62.

    Raises:
        RecipeError: not a percentage.
    """
    match = PERCENTAGE.fullmatch(text)
    if match is None:
        raise RecipeError(f"{text!r} is no percentage", 'write it like "62%"')
    return float(Decimal(match[1]) / 100)


def _parse(text: str | float, units: dict[str, int], *, what: str, known: str) -> Decimal:
    plain = f"{Decimal(str(text)):f}" if type(text) in {int, float} else str(text)
    match = QUANTITY.fullmatch(plain)
    if isinstance(text, bool) or match is None or match[2].lower() not in units:
        raise RecipeError(f"{text!r} is no {what}", f"known units: {known}")
    return Decimal(match[1].replace("_", "").replace(",", "")) * units[match[2].lower()]


def format_count(count: float) -> str:
    """A count in three significant figures: 75.4B, 12.8M, 128k."""
    return _format(count, ("", "k", "M", "B", "T"), base=1000)


def format_bytes(num_bytes: float) -> str:
    """A size in three significant figures and powers of 1024: 44.3 GiB."""
    return _format(num_bytes, (" B", " KiB", " MiB", " GiB", " TiB"), base=1024)


def format_seconds(seconds: float) -> str:
    """A time: 0.42 s, 12 s, 3 min 05 s, 2 h 10 min."""
    if round(seconds) < MINUTE_S:
        return f"{seconds:.2g} s"
    if round(seconds) < HOUR_S:
        return "{} min {:02d} s".format(*divmod(round(seconds), MINUTE_S))
    return "{} h {:02d} min".format(*divmod(round(seconds / MINUTE_S), HOUR_S // MINUTE_S))


def format_latency(seconds: float) -> str:
    """A short time in three significant figures: 640 ns, 12.3 us, 9.85 ms, 1.2 s."""
    return _format(seconds * 1e9, (" ns", " us", " ms", " s"), base=1000)


def _format(value: float, units: tuple[str, ...], *, base: int) -> str:
    step = 0
    while abs(value) >= base - 0.5 and step < len(units) - 1:
        value /= base
        step += 1
    return f"{_three_figures(value)}{units[step]}"


def _three_figures(value: float) -> str:
    rounded = float(f"{value:.3g}") if abs(value) < 1000 else round(value)  # noqa: PLR2004
    return f"{rounded:g}"
