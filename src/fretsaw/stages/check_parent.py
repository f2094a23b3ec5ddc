"""What is refused of a parent, and said about it, before the first weight is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fretsaw.checkpoint.agreement import Named, dtype_faults
from fretsaw.checkpoint.child import untied_bytes
from fretsaw.checkpoint.contents import PARENTS_CARD, contents
from fretsaw.checkpoint.listing import list_tensors
from fretsaw.checkpoint.reader import Checkpoint, several
from fretsaw.checkpoint.tokenizer import code_faults, tokenizer_faults
from fretsaw.core.units import format_bytes
from fretsaw.errors import CheckpointError
from fretsaw.train.packing import load_tokenizer


def check_parent(folder: Path) -> tuple[Checkpoint, list[str]]:
    """Check that a checkpoint can be cut, and that its tokenizer is its own.

    Returns:
        The checkpoint, and what its owner should know of the children, a sentence each.

    Raises:
        CheckpointError, UnsupportedModelError: it cannot.
    """
    parent = Checkpoint(folder)
    parent.check()
    if fault := next(tokenizer_faults(folder, parent.config), None):
        raise CheckpointError(f"{folder}: {fault.message}", fault.hint)
    load_tokenizer(folder)
    return parent, [*_said(parent), *_left_behind(folder)]


def _said(parent: Checkpoint) -> Iterator[str]:
    if keys := parent.family.unknown_keys(parent.config):
        yield (
            f"config keys that nobody here knows: {', '.join(keys)}; a child gets them as they are"
        )
    if size := untied_bytes(parent):
        yield (
            "the parent ties its head to the embedding; a child gets a head of its own, "
            f"{format_bytes(size)} more, since transformers and vLLM tie none for this family"
        )
    listing = list_tensors(parent.folder)
    named = Named.of(parent.folder, listing, config=parent.config, family=parent.family)
    for fault in dtype_faults(named, quantised=()):
        yield (
            f"{fault.message}; a child keeps what is stored and its config says so, unless "
            "build.dtype casts it"
        )
    for fault in code_faults(parent.folder):
        yield f"{fault.message}; a child's does not, and it is read without that code here"


def _left_behind(folder: Path) -> Iterator[str]:
    """Files that no child gets, by the reason."""
    found = contents(folder)
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, why in found.left.items():
        reasons[why].append(name)
    if reasons:
        said = "; ".join(f"{several(names)} ({why})" for why, names in reasons.items())
        yield f"files of the parent that no child gets: {said}"
    if any(old != new for old, new in found.travelling.items()):
        yield f"the parent's README.md goes along as {PARENTS_CARD}: it describes the parent"
