"""Who can load a checkpoint: the page beside it, from the data on engines' limits."""

from __future__ import annotations

from collections.abc import Sequence

from fretsaw.core.compatibility import Finding, Loader
from fretsaw.core.precision import Precision

HEAD = """# Who can load this

For weights in {precision}; made by fretsaw from its tables of engine limits. *tried*: small models
of this kind were loaded in the version given; *read*: its code says so. Anything else is not known,
which is not the same as fine.

| engine | version looked at | loads | known because | needs | said against it |
|---|---|---|---|---|---|
"""


def loaders_page(loaders: Sequence[Loader], *, precision: Precision) -> str:
    """The page as Markdown.

    Args:
        loaders: One row per engine.
        precision: Number formats that the rows hold for.
    """
    sources = sorted({f.source for row in loaders for f in row.findings if f.source})
    rows = "".join(_row(row, sources) for row in loaders)
    notes = "".join(f"{i}. {source}\n" for i, source in enumerate(sources, start=1))
    return (
        HEAD.format(precision=precision.name) + rows + (f"\nSources:\n\n{notes}" if notes else "")
    )


def _row(row: Loader, sources: Sequence[str]) -> str:
    against = "; ".join(_said(finding, sources) for finding in row.findings)
    cells = (row.engine, row.checked, row.verdict, row.evidence, row.needs, against)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _said(finding: Finding, sources: Sequence[str]) -> str:
    text = str(finding).removeprefix(f"{finding.engine}: ")
    return f"{text} [{sources.index(finding.source) + 1}]" if finding.source else text
