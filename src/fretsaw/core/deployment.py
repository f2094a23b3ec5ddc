"""Number formats as an engine runs them on hardware: in units of their own, widened, or not at all.

A format without units there still saves memory where the engine widens it on the way to a product;
its products then run at the rate of the wider format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fretsaw.core.engines import MIXER_OF, Engine, Product
from fretsaw.core.hardware import COMPUTED_IN, Hardware
from fretsaw.core.precision import QUANTISED, Precision, WeightKind
from fretsaw.core.shape import ModelShape
from fretsaw.errors import RecipeError

FALL_BACK = ("fp8", "bf16")
"""Presets that are named instead of one that does not run, best first."""


@dataclass(frozen=True)
class Deployment:
    """Formats as they are run, and what a reader should know of them.

    Attributes:
        precision: With other formats where the engine keeps others, and with kinds of weights
            whose products are in 16 bits as `weight_only`.
        notes: One a format that is not run in units of its own.
    """

    precision: Precision
    notes: tuple[str, ...] = ()


def deploy(
    precision: Precision, shape: ModelShape, *, engine: Engine, hardware: Hardware
) -> Deployment:
    """What an engine makes of number formats on hardware.

    Args:
        precision: As asked.
        shape: The model: formats of weights that it has not are not looked at.
        engine: Which runs them.
        hardware: On what.

    Raises:
        RecipeError: it does not run one of them there; the nearest that it runs is named.
    """
    notes: list[str] = []
    weights = dict(precision.weights)
    widened = list(precision.weight_only)
    for number_format, found in _by_format(precision, shape).items():
        row = engine.product_of(hardware, number_format, part="weights")
        _refuse(row, number_format, engine=engine, hardware=hardware)
        if row is None and (number_format not in QUANTISED or hardware.has_units(number_format)):
            continue
        if row is not None and row.runs == "stored":
            weights.update(dict.fromkeys(found, row.stored_as))
            widened = [kind for kind in widened if kind not in found]
        elif row is None or row.runs == "widened":
            widened += [kind for kind in found if kind not in widened]
        notes += _note(row, number_format, engine=engine, hardware=hardware)
    changed = replace(precision, weights=weights, weight_only=tuple(widened))
    kv, said = _cache(precision.kv, engine=engine, hardware=hardware)
    return Deployment(replace(changed, kv=kv), (*notes, *said))


def _by_format(precision: Precision, shape: ModelShape) -> Mapping[str, list[WeightKind]]:
    """Format -> kinds of the model's weights that are in it."""
    found: dict[str, list[WeightKind]] = {precision.format_of("head"): ["head"]}
    for kind, mixer in MIXER_OF.items():
        if shape.indices(mixer):
            found.setdefault(precision.format_of(kind), []).append(kind)
    return found


def _cache(number_format: str, *, engine: Engine, hardware: Hardware) -> tuple[str, list[str]]:
    """The format that the KV cache is kept in, and what to say of it.

    Raises:
        RecipeError: the engine has none in the format there.
    """
    row = engine.product_of(hardware, number_format, part="kv")
    if row is None:
        return number_format, []
    if row.runs == "no":
        raise RecipeError(
            f"{engine.name} has no {_named(number_format)} KV cache on {hardware.name}: {row.what}",
            "give --kv-dtype bf16 (in a recipe, another format)",
        )
    kept = row.stored_as if row.runs == "stored" else number_format
    return kept, [f"{engine.name}: {row.what}"]


def _refuse(row: Product | None, number_format: str, *, engine: Engine, hardware: Hardware) -> None:
    if row is None or row.runs != "no":
        return
    runs = list(_running(engine, hardware))
    raise RecipeError(
        f"{engine.name} does not run {_named(number_format)} on {hardware.name}: {row.what}",
        f"take format {runs[0]}, or other hardware" if runs else "take another engine",
    )


def _running(engine: Engine, hardware: Hardware) -> Iterator[str]:
    """Presets that an engine runs on hardware."""
    for name in FALL_BACK:
        row = engine.product_of(hardware, name, part="weights")
        if name in engine.formats and (row is None or row.runs != "no"):
            yield name


def _note(
    row: Product | None, number_format: str, *, engine: Engine, hardware: Hardware
) -> Iterator[str]:
    if row is not None and row.runs == "native":
        return
    lacks = "" if hardware.has_units(number_format) else f"{hardware.name} has no such units; "
    if row is None:
        wider = next(f for f in COMPUTED_IN[number_format] if f in hardware.flops_per_s)
        yield (
            f"{_named(number_format)}: {lacks}whether {engine.name} runs it there, nobody has "
            f"looked; priced with its bytes and {_named(wider)} products"
        )
    elif row.runs == "stored":
        yield f"{engine.name}: {row.what}"
    else:
        yield f"{_named(number_format)}: {lacks}{engine.name}: {row.what}"


def _named(number_format: str) -> str:
    return number_format.upper()
