"""What a checkpoint is: its shape, every tensor checked against its table, counts and bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.lineage import hash_checkpoint
from fretsaw.checkpoint.reader import read_config
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.shape import ModelShape
from fretsaw.families import family_of
from fretsaw.quant.reader import open_checkpoint
from fretsaw.reports.description import Description, describe_shape
from fretsaw.stages.run import RunRound, Stage


def describe(source: Path | str | Mapping[str, Any]) -> Description:
    """Describe a checkpoint folder (tensors checked by their headers), or a config alone.

    A quantised folder is checked too: every scale is there, and config and files say the same.

    Raises:
        CheckpointError: missing or damaged, or tensors disagree with the config.
        UnsupportedModelError: unknown architecture.
    """
    if isinstance(source, Mapping):
        shape = family_of(source).read_config(source)
        return describe_shape(shape, source=Path("config"), is_checked=False)
    path = Path(source)
    if path.is_dir():
        checkpoint = open_checkpoint(path)
        checkpoint.check()
        return describe_shape(checkpoint.shape, source=path, is_checked=True)
    config = read_config(path)
    shape = family_of(config).read_config(config)
    return describe_shape(shape, source=path, is_checked=False)


def _body(round_: RunRound, folder: Path) -> None:
    description = describe(round_.model)
    write_json(folder / "shape.json", description.shape.to_json())
    write_json(folder / "description.json", description.to_json() | {"source": round_.model_name})
    write_json(folder / "files.json", hash_checkpoint(round_.model))


DESCRIBE = Stage("00-describe", needs=(), settings=(), body=_body)


def read_shape(folder: Path) -> ModelShape:
    """Shape that a finished `describe` wrote."""
    return ModelShape.from_json(json.loads((folder / "shape.json").read_text(encoding="utf-8")))
