"""The page beside every checkpoint that fretsaw writes: who can load it."""

from __future__ import annotations

from pathlib import Path

from fretsaw.checkpoint.assets import has_tokenizer
from fretsaw.checkpoint.contents import LINEAGE_NAME, read_object
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.compatibility import Loader, who_can_load
from fretsaw.core.engines import OURS
from fretsaw.quant.reader import QuantizedCheckpoint, open_checkpoint, packing_of, precision_of
from fretsaw.reports.loaders import loaders_page

PAGE = "WHO_CAN_LOAD.md"


def loaders_of(checkpoint: Checkpoint) -> tuple[Loader, ...]:
    """Every engine that has a table, and whether it takes a checkpoint as its files are.

    Args:
        checkpoint: As `open_checkpoint` gives it.
    """
    packing = packing_of(checkpoint) if isinstance(checkpoint, QuantizedCheckpoint) else OURS
    return who_can_load(checkpoint.shape, precision_of(checkpoint), packing=packing)


def write_who_can_load(folder: Path, *, untied_bytes: int = 0) -> None:
    """Write the page beside a finished checkpoint, quantised or not.

    Args:
        folder: The checkpoint.
        untied_bytes: Of the head, if what it was made from tied it to the embedding; the lineage
            beside it says so of a child.
    """
    checkpoint = open_checkpoint(folder)
    page = loaders_page(
        loaders_of(checkpoint),
        precision=precision_of(checkpoint),
        needs_code=bool(checkpoint.config.get("auto_map")),
        has_tokenizer=has_tokenizer(folder),
        untied_bytes=untied_bytes or _untied_bytes(folder),
    )
    (folder / PAGE).write_text(page, encoding="utf-8")


def _untied_bytes(folder: Path) -> int:
    lineage = folder / LINEAGE_NAME
    return int(read_object(lineage).get("head_untied_bytes", 0)) if lineage.is_file() else 0
