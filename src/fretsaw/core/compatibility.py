"""Which engine takes a model, or the children that a search could make, and what it says to them.

A limit that nobody has tried says so; what no table speaks of is not known, which is not the same
as fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fretsaw.core.engines import (
    MIXER_OF,
    OURS,
    SEVERITIES,
    Engine,
    Limit,
    Packing,
    Severity,
    engine_named,
    engine_names,
    has_equal_blocks,
)
from fretsaw.core.hardware import Hardware
from fretsaw.core.precision import QUANTISED, Precision
from fretsaw.core.shape import MODEL_SCOPE, ModelShape
from fretsaw.core.variant import Variant

VERDICTS: Mapping[Severity, str] = {
    "refuse": "no",
    "untested": "untested",
    "slow": "yes, slowly",
    "note": "yes",
}

MANY = 4
"""More blocks, or values, than this are counted, not listed."""

Options = Mapping[int, Mapping[str, frozenset[int]]]
"""Block -> dimension -> values that it has, or may get."""


@dataclass(frozen=True)
class Finding:
    """What an engine says to a shape, or to a search space.

    Attributes:
        engine: Its name.
        severity: How bad.
        what: Why.
        source: Where this is known from.
        blocks: Indices of the blocks; empty for the whole model.
        dimension: Size or setting that is wrong, if it is one.
        values: Values seen.
        nearest: Nearest allowed values.
    """

    engine: str
    severity: Severity
    what: str
    source: str
    blocks: tuple[int, ...] = ()
    dimension: str = ""
    values: tuple[int, ...] = ()
    nearest: tuple[int, ...] = ()

    def __str__(self) -> str:
        """One line: engine, what was seen where, why, and what would do."""
        seen = f"{self.dimension} {_listed(self.values, 'values')}{_place(self.blocks)}: "
        near = f"; nearest: {' or '.join(map(str, self.nearest))}" if self.nearest else ""
        return f"{self.engine}: {seen if self.dimension else ''}{self.what}{near}"


@dataclass(frozen=True)
class Loader:
    """One row of "who can load this".

    Attributes:
        engine: Its name.
        checked: Version that was looked at.
        verdict: ``yes``, ``yes, slowly``, ``untested`` or ``no``.
        evidence: ``tried``: small models of this kind were loaded; ``read``: its code says so.
        needs: What the user has to give, and the first version.
        findings: All that is known against it, worst first.
    """

    engine: str
    checked: str
    verdict: str
    evidence: str
    needs: str
    findings: tuple[Finding, ...]


def findings(
    shape: ModelShape,
    *,
    engine: Engine,
    precision: Precision,
    packing: Packing = OURS,
    hardware: Hardware | None = None,
) -> tuple[Finding, ...]:
    """What an engine says to a model.

    Args:
        shape: The model; its prediction head is not looked at.
        engine: Where it shall run.
        precision: Its number formats.
        packing: Of its folder, where weights are quantised.
        hardware: On what; None leaves in what is about some hardware only.

    Returns:
        Worst first; empty if nothing is known against it.
    """
    options = {
        i: {dim: frozenset((value,)) for dim, value in block.values.items()}
        for i, block in enumerate(shape.blocks)
    }
    limits = [limit for limit in engine.limits if limit.is_about(hardware)]
    found = [
        *_architecture_findings(shape, engine),
        *_format_findings(shape, engine, precision=precision),
        *_layout_findings(shape, engine, precision=precision, packing=packing),
        *(() if hardware else _product_findings(shape, engine, precision=precision)),
        *_limit_findings(
            shape,
            limits,
            options=options,
            precision=precision,
            packing=packing,
            engine=engine,
        ),
    ]
    return _sorted(found)


def space_findings(
    variants: Iterable[Variant], *, shape: ModelShape, engine: Engine, precision: Precision
) -> tuple[Finding, ...]:
    """What an engine says to the children that a search could make.

    Every value on offer is looked at, and whether blocks may come to differ where the engine wants
    them alike. Dimensions of the whole model (`MODEL_SCOPE`) the search keeps alike by itself.

    Args:
        variants: All variants of all blocks.
        shape: The model that they are variants of.
        engine: Where the children shall run.
        precision: Their number formats.

    Returns:
        As `findings`.
    """
    options: dict[int, dict[str, frozenset[int]]] = {}
    for variant in variants:
        values = {} if variant.is_none else variant.apply(shape.blocks[variant.block]).values
        mine = options.setdefault(variant.block, {})
        for dim, value in values.items():
            mine[dim] = mine.get(dim, frozenset()) | {value}
    limits = [x for x in engine.limits if not (x.is_uniform and x.dimension in MODEL_SCOPE)]
    found = [
        *_format_findings(shape, engine, precision=precision),
        *_limit_findings(
            shape, limits, options=options, precision=precision, packing=OURS, engine=engine
        ),
    ]
    return _sorted(found)


def who_can_load(
    shape: ModelShape, precision: Precision, *, packing: Packing = OURS
) -> tuple[Loader, ...]:
    """Every engine that has a table, and whether it takes a model.

    Args:
        shape: The model.
        precision: Its number formats.
        packing: Of its folder, where weights are quantised.

    Returns:
        Engines that take it first, then by name.
    """
    rows = [
        _loader(shape, engine_named(key), precision=precision, packing=packing)
        for key in engine_names()
    ]
    order = [*VERDICTS.values()][::-1]
    return tuple(sorted(rows, key=lambda row: (order.index(row.verdict), row.engine.lower())))


def _loader(shape: ModelShape, engine: Engine, *, precision: Precision, packing: Packing) -> Loader:
    found = findings(shape, engine=engine, precision=precision, packing=packing)
    verdict = VERDICTS[found[0].severity if found else "note"]
    way = engine.architecture_of(shape)
    since = f"{engine.name} {way.since} or later" if way and way.since else ""
    held = (x for x in engine.limits if x.needs and x.holds_for(precision, packing))
    asked = [since, way.needs if way else "", *(limit.needs for limit in held)]
    needs = ", ".join(dict.fromkeys(text for text in asked if text))
    evidence = way.loads if way and way.loads != "no" else ""
    if evidence and not formats_of(shape, precision) <= {*engine.tried_formats}:
        evidence = "read"
    return Loader(engine.name, engine.checked, verdict, evidence, needs, found)


def formats_of(shape: ModelShape, precision: Precision) -> set[str]:
    """Number formats of the linear maps that a model has."""
    return {
        precision.format_of(kind, i)
        for kind, mixer in MIXER_OF.items()
        for i in shape.indices(mixer)
    }


def _architecture_findings(shape: ModelShape, engine: Engine) -> Iterator[Finding]:
    way = engine.architecture_of(shape)
    blocks = "equal" if has_equal_blocks(shape) else "unequal"
    what = f"{shape.family} with {blocks} blocks"
    if way is None:
        yield Finding(engine.name, "untested", f"{what}: nobody has looked", source="")
    elif way.loads == "no":
        yield Finding(engine.name, "refuse", f"{what} is not taken", way.source)


def _format_findings(
    shape: ModelShape, engine: Engine, *, precision: Precision
) -> Iterator[Finding]:
    """Formats that nobody has tried; those known to be refused have a limit of their own."""
    known = {f for limit in engine.limits if not limit.dimension for f in limit.formats}
    untried: dict[str, list[str]] = {}
    for kind, mixer in MIXER_OF.items():
        fmt = precision.format_of(kind)
        if shape.indices(mixer) and fmt not in known.union(engine.formats):
            untried.setdefault(fmt, []).append(kind.replace("_", " "))
    for fmt, kinds in untried.items():
        what = f"{fmt} in {', '.join(kinds)}: nobody has tried"
        yield Finding(engine.name, "untested", what, source="")


def _layout_findings(
    shape: ModelShape, engine: Engine, *, precision: Precision, packing: Packing
) -> Iterator[Finding]:
    """A layout of quantised weights that nobody has looked for."""
    if formats_of(shape, precision) & {*QUANTISED} and packing.layout not in engine.layouts:
        what = f"the layout of {packing.layout}: nobody has looked"
        yield Finding(engine.name, "untested", what, source="")


def _product_findings(
    shape: ModelShape, engine: Engine, *, precision: Precision
) -> Iterator[Finding]:
    """What becomes of the formats on hardware of some kinds; on one of them, see `deploy`."""
    said = {f for x in engine.limits if not (x.dimension or x.weights) for f in x.formats}
    used = (formats_of(shape, precision) & {*QUANTISED}) - said
    for row in engine.products:
        if row.part == "weights" and used.intersection(row.formats):
            where = "" if "any" in row.hardware else f"on {', '.join(row.hardware)}: "
            yield Finding(engine.name, "note", where + row.what, row.source)


def _limit_findings(
    shape: ModelShape,
    limits: Sequence[Limit],
    *,
    options: Options,
    precision: Precision,
    packing: Packing,
    engine: Engine,
) -> Iterator[Finding]:
    for limit in limits:
        blocks = tuple(i for i, b in enumerate(shape.blocks) if limit.has_block(b.mixer))
        if not blocks or not limit.holds_for(precision, packing):
            continue
        wrong = _wrong_values(limit, {i: options.get(i, {}) for i in blocks})
        if limit.dimension and not wrong:
            continue
        values = tuple(sorted(frozenset[int]().union(*wrong.values())))
        near = {n for value in values for n in limit.nearest_to(value)} - set(values)
        yield Finding(
            engine.name,
            limit.severity,
            limit.what,
            limit.source,
            tuple(wrong) if limit.dimension else blocks,
            limit.dimension,
            values,
            () if limit.is_uniform else tuple(sorted(near)),
        )


def _wrong_values(limit: Limit, options: Options) -> dict[int, frozenset[int]]:
    """Block -> its values that a limit does not allow."""
    seen = {i: dims[limit.dimension] for i, dims in options.items() if limit.dimension in dims}
    if limit.is_uniform:
        return seen if len(frozenset[int]().union(*seen.values())) > 1 else {}
    wrong = {i: frozenset(v for v in own if not limit.allows(v)) for i, own in seen.items()}
    return {i: values for i, values in wrong.items() if values}


def _sorted(found: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def _listed(values: Sequence[int], noun: str) -> str:
    if len(values) <= MANY:
        return ", ".join(map(str, values))
    return f"{values[0]} … {values[-1]} ({len(values)} {noun})"


def _place(blocks: Sequence[int]) -> str:
    if len(blocks) > MANY:
        return f" in {len(blocks)} blocks"
    return f" in block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, blocks))}"
