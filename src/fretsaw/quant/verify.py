"""What can be verified of a quantised checkpoint: parts, formats, the exclude list, the scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fretsaw.checkpoint.header import Fault
from fretsaw.checkpoint.reader import several
from fretsaw.checkpoint.verify import Check
from fretsaw.errors import CheckpointError
from fretsaw.quant.reader import QuantizedCheckpoint

WRONG_LIST = "engines trust the list: write it anew, or quantise the checkpoint again"


def quantised_checks(folder: Path) -> tuple[Check, ...]:
    """Compare what a quantised checkpoint says about itself with what its files hold.

    Args:
        folder: Whose index and headers are sound.
    """
    try:
        checkpoint = QuantizedCheckpoint(folder)
        formats = Counter(checkpoint.formats.values())
    except CheckpointError as error:
        return (Check("number formats", faults=(Fault(error.message, error.hint),)),)
    seen = ", ".join(f"{name} × {count}" for name, count in formats.most_common())
    listed = f"{len(checkpoint.said.ignore)} entries, both ways"
    return (
        Check("tensors", seen, _faults(checkpoint.tensor_faults(), "quantise it again")),
        Check("number formats", seen, _faults(checkpoint.format_faults(), WRONG_LIST)),
        Check("exclude list", listed, _excluded(list(checkpoint.ignore_faults()))),
        Check("scales", seen, _faults(checkpoint.scale_faults(), "calibrate on more text")),
    )


def _faults(messages: Iterable[str], hint: str) -> tuple[Fault, ...]:
    return tuple(Fault(message, hint) for message in messages)


def _excluded(messages: Sequence[str]) -> tuple[Fault, ...]:
    if not messages:
        return ()
    return (Fault(f"exclude list, {len(messages)} entries: {several(messages)}", WRONG_LIST),)
