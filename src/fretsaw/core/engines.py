"""Serving engines as data: their limits on sizes, settings and formats, each with its source.

What they say to a model is in `fretsaw.core.compatibility`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from fretsaw.core.hardware import Hardware
from fretsaw.core.precision import Precision, WeightKind
from fretsaw.core.shape import Mixer, ModelShape
from fretsaw.core.sheets import read_sheet, sheet_names
from fretsaw.errors import RecipeError, nearest

Severity = Literal["refuse", "untested", "slow", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From worst: does not load or crashes; nobody knows; loads, but not at its best; good to know."""

MIXER_OF: Mapping[WeightKind, Mixer] = {
    "attention": "attention",
    "mamba_projection": "mamba",
    "router": "moe",
    "latent": "moe",
    "experts": "moe",
    "shared_experts": "moe",
    "mlp": "mlp",
}
"""Kind of weight -> mixer that it belongs to."""

ALIASES = dict.fromkeys(("llamacpp", "llama-cpp", "llama_cpp", "gguf"), "llama.cpp")
"""Other words for an engine -> its name; GGUF files are its alone."""


@dataclass(frozen=True)
class Packing:
    """How a folder keeps quantised weights.

    Attributes:
        layout: Whose names and config keys.
        brings_loader: Whether it brings fretsaw's code for transformers, which dequantises.
    """

    layout: str = "modelopt"
    brings_loader: bool = True


OURS = Packing()
"""As fretsaw writes them."""


@dataclass(frozen=True)
class Limit:
    """One thing that an engine does not do, or does badly.

    It holds for blocks with `mixer`, and where a kind of `weights` (of any kind, if empty) is in
    one of `formats`. With no `dimension` it holds whatever the sizes are; otherwise one rule of
    `is_uniform` (all blocks alike), `multiple_of`, `one_of` and `at_most` says what is allowed.

    Attributes:
        severity: What happens beyond it.
        what: Why, in words that end an error message.
        source: Where this is known from.
        brings_loader: It holds only for folders that bring our loader, or that do not.
        needs: What the user has to give where it holds.
        hardware: Names or families of the hardware that it is about; empty = of any.
    """

    severity: Severity
    what: str
    source: str
    dimension: str = ""
    mixer: Mixer | None = None
    weights: WeightKind | None = None
    formats: tuple[str, ...] = ()
    is_uniform: bool = False
    multiple_of: int = 1
    one_of: tuple[int, ...] = ()
    at_most: int | None = None
    brings_loader: bool | None = None
    needs: str = ""
    hardware: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a row that could never be read."""
        rules = (self.is_uniform, self.multiple_of > 1, self.one_of, self.at_most is not None)
        if self.severity not in SEVERITIES or sum(map(bool, rules)) != bool(self.dimension):
            raise ValueError(f"unusable limit: {self}")

    def holds_for(self, precision: Precision, packing: Packing = OURS) -> bool:
        """Whether a deployment in these formats, so packed, meets it at all."""
        if self.brings_loader not in (None, packing.brings_loader):
            return False
        if not self.formats:
            return True
        kinds = (self.weights,) if self.weights else tuple(MIXER_OF)
        return any(precision.format_of(kind) in self.formats for kind in kinds)

    def is_about(self, hardware: Hardware | None) -> bool:
        """Whether it is about some hardware; of none in particular, every limit is."""
        return hardware is None or not self.hardware or hardware.is_one_of(self.hardware)

    def has_block(self, mixer: Mixer) -> bool:
        """Whether it speaks of blocks with this mixer."""
        own = self.mixer or (MIXER_OF[self.weights] if self.weights else None)
        return mixer != "none" and own in (None, mixer)

    def allows(self, value: int) -> bool:
        """Whether a single block may have this value."""
        if self.one_of:
            return value in self.one_of
        return value % self.multiple_of == 0 and value <= (self.at_most or value)

    def nearest_to(self, value: int) -> tuple[int, ...]:
        """The allowed values just below and just above."""
        if self.one_of:
            known = sorted(self.one_of)
            place = bisect.bisect(known, value)
            return tuple(known[max(0, place - 1) : place + 1])
        if self.at_most is not None:
            return (self.at_most,)
        below = value // self.multiple_of * self.multiple_of
        return tuple(v for v in (below, below + self.multiple_of) if v)


@dataclass(frozen=True)
class Architecture:
    """How an engine takes models of a family whose blocks are equal, or are not.

    Attributes:
        family: Name of the family.
        blocks: ``equal`` or ``unequal`` within a kind.
        loads: ``tried``: small models did; ``read``: its code says so; ``no``: it does not.
        source: Where this is known from.
        since: First version, if it is known.
        needs: What the user has to give.
    """

    family: str
    blocks: Literal["equal", "unequal"]
    loads: Literal["tried", "read", "no"]
    source: str
    since: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Product:
    """What an engine does with a number format on hardware.

    Attributes:
        formats: Number formats that it is about.
        runs: ``native``: in units of the format; ``widened``: stored so, multiplied in 16 bits;
            ``stored``: kept in another format from the start; ``no``: refused.
        what: In words that follow "ENGINE: ".
        source: Where this is known from.
        part: What is in the format.
        hardware: Names or families; empty = whatever has no units of the format.
        stored_as: The other format, if it is ``stored``.
    """

    formats: tuple[str, ...]
    runs: Literal["native", "widened", "stored", "no"]
    what: str
    source: str
    part: Literal["weights", "kv"] = "weights"
    hardware: tuple[str, ...] = ()
    stored_as: str = ""

    def is_about(self, hardware: Hardware, number_format: str, *, part: str) -> bool:
        """Whether it says what happens to a format there."""
        if part != self.part or number_format not in self.formats:
            return False
        if self.hardware:
            return "any" in self.hardware or hardware.is_one_of(self.hardware)
        return not hardware.has_units(number_format)


@dataclass(frozen=True)
class CacheRule:
    """How an engine keeps what requests need: in which pools, and in pages of how many tokens.

    Attributes:
        pools: ``shared``: KV cache and Mamba state lie in pages of one size; ``separate``: each
            has a pool of its own.
        tokens: Of a page of attention; in a shared pool a page has a multiple of it.
        source: Where this is known from; empty where nobody has looked.
        states: Mamba states that each request holds.
        states_with_prefix_cache: The same where prefixes are cached.
    """

    pools: Literal["shared", "separate"]
    tokens: int
    source: str = ""
    states: int = 1
    states_with_prefix_cache: int = 1


BY_THE_BYTE = CacheRule("separate", 1)
"""No pages: where an engine has none, or where its pages are not known."""


@dataclass(frozen=True)
class Engine:
    """A serving engine.

    Attributes:
        key: As users write it: vllm, llama.cpp.
        name: As it writes itself.
        checked: Version that the table was made from.
        formats: Number formats of weights that it is known to read.
        tried_formats: Those of them that small models were loaded in.
        layouts: Layouts of quantised checkpoints that it is known to read.
        granularity: Dimension -> sizes that suit it in every format are multiples of this.
        architectures: Families that it is known to take, or not.
        limits: What it does not do, or does badly.
        cache: How it keeps what requests need.
        products: What it does with formats on hardware, the first that applies counts.
    """

    key: str
    name: str
    checked: str
    formats: tuple[str, ...]
    tried_formats: tuple[str, ...]
    layouts: tuple[str, ...]
    granularity: Mapping[str, int]
    architectures: tuple[Architecture, ...]
    limits: tuple[Limit, ...]
    cache: CacheRule = BY_THE_BYTE
    products: tuple[Product, ...] = ()

    def product_of(self, hardware: Hardware, number_format: str, *, part: str) -> Product | None:
        """What it does with a format there; None where nothing is known."""
        about = (p for p in self.products if p.is_about(hardware, number_format, part=part))
        return next(about, None)

    def architecture_of(self, shape: ModelShape) -> Architecture | None:
        """How it takes this model; None where nobody has looked."""
        kind = (shape.family, "equal" if has_equal_blocks(shape) else "unequal")
        return next((a for a in self.architectures if (a.family, a.blocks) == kind), None)


def has_equal_blocks(shape: ModelShape) -> bool:
    """Whether blocks of a kind are alike; Mamba's sizes are the model's in every config."""
    kinds: dict[Mixer, set[tuple[tuple[str, int], ...]]] = {}
    for block in (*shape.blocks, *shape.mtp):
        if block.mixer != "mamba":
            kinds.setdefault(block.mixer, set()).add(tuple(sorted(block.values.items())))
    return all(len(forms) == 1 for forms in kinds.values())


def common_granularity(dimension: str, engines: Iterable[Engine]) -> int:
    """The step of sizes that suits all of some engines: the least common multiple of theirs."""
    return math.lcm(*(engine.granularity.get(dimension, 1) for engine in engines))


def engine_named(name: str) -> Engine:
    """An engine from the tables in `fretsaw/data/engines`.

    Raises:
        RecipeError: unknown name; the nearest one is given.
    """
    return _load(engine_key(name, engine_names()))


def engine_key(name: str, known: Collection[str]) -> str:
    """The one name of an engine, from any case and any of its other names.

    Raises:
        RecipeError: unknown name; the nearest one is given.
    """
    key = ALIASES.get(name.lower(), name.lower())
    if key not in known:
        guess = nearest(key, known)
        raise RecipeError(
            f"unknown engine {name!r}",
            (f"did you mean {guess!r}? " if guess else "") + f"known: {', '.join(known)}",
        )
    return key


def engine_names() -> tuple[str, ...]:
    """Names of all engines that have a table."""
    return sheet_names("engines")


@cache
def _load(key: str) -> Engine:
    return read_engine(read_sheet("engines", key), key=key)


def read_engine(data: Mapping[str, Any], *, key: str) -> Engine:
    """An engine from its TOML form.

    Raises:
        KeyError, TypeError, ValueError: a field is missing, unknown or of no use.
    """

    def rows_of(name: str) -> list[dict[str, Any]]:
        found = data.get(name, [])
        return [
            {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in found
        ]

    return Engine(
        key=key,
        name=data["name"],
        checked=data["checked"],
        formats=tuple(data["formats"]),
        tried_formats=tuple(data.get("tried_formats", ())),
        layouts=tuple(data.get("layouts", ())),
        granularity={d: n for d, n in data.get("granularity", {}).items() if d != "source"},
        architectures=tuple(Architecture(**row) for row in data["architecture"]),
        limits=tuple(Limit(**row) for row in rows_of("limit")),
        cache=CacheRule(**data["cache"]) if "cache" in data else BY_THE_BYTE,
        products=tuple(Product(**row) for row in rows_of("product")),
    )
