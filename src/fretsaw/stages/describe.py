"""What a checkpoint is: its shape, every tensor checked against its table, counts and bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fretsaw.checkpoint.lineage import hash_checkpoint
from fretsaw.checkpoint.reader import Checkpoint, read_config
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.shape import MIXERS, ModelShape, num_active_params, num_params
from fretsaw.cost.memory import model_costs
from fretsaw.families import family_of
from fretsaw.stages.run import RunRound, Stage


@dataclass(frozen=True)
class KindLine:
    """Totals of all blocks of one kind, or of embedding, head and norms."""

    kind: str
    num_blocks: int
    params: int
    active_params: int


@dataclass(frozen=True)
class Description:
    """A model in figures.

    Attributes:
        source: Folder or config file that was described.
        shape: Its shape.
        lines: Parameters per kind of block, and of what is no block.
        costs: Whole-model costs by name (see `fretsaw.cost.memory`).
        mtp_params: Parameters of the multi-token-prediction head, not in the totals.
        is_checked: Whether the stored tensors were compared with the table.
    """

    source: Path
    shape: ModelShape
    lines: tuple[KindLine, ...]
    costs: Mapping[str, float]
    mtp_params: int
    is_checked: bool

    @property
    def params(self) -> int:
        """Parameters of trunk, embedding and head."""
        return sum(line.params for line in self.lines)

    @property
    def active_params(self) -> int:
        """Parameters that one token uses."""
        return sum(line.active_params for line in self.lines)


def describe(source: Path | str) -> Description:
    """Describe a checkpoint folder, or a config.json alone.

    Raises:
        CheckpointError: missing or damaged, or tensors disagree with the config.
        UnsupportedModelError: unknown architecture.
    """
    path = Path(source)
    if path.is_dir():
        checkpoint = Checkpoint(path)
        checkpoint.check()
        shape = checkpoint.shape
    else:
        config = read_config(path)
        shape = family_of(config).read_config(config)
    return describe_shape(shape, source=path, is_checked=path.is_dir())


def describe_shape(shape: ModelShape, *, source: Path, is_checked: bool) -> Description:
    """Counts of a shape by kind of block."""
    rows = family_of({"model_type": shape.family}).rows(shape)
    lines = []
    for mixer in MIXERS:
        indices = shape.indices(mixer)
        total = active = 0
        for i in indices:
            tensors = [row.tensor for row in rows if row.part == "block" and row.block == i]
            total += num_params(tensors, shape.blocks[i].sizes)
            active += num_active_params(tensors, shape.blocks[i])
        if indices:
            lines.append(KindLine(mixer, len(indices), total, active))
    for part in ("embedding", "head", "norm"):
        total = sum(row.tensor.numel(row.sizes) for row in rows if row.part == part)
        lines.append(KindLine(part, 0, total, total))
    mtp = sum(row.tensor.numel(row.sizes) for row in rows if row.part == "mtp")
    return Description(source, shape, tuple(lines), model_costs(shape), mtp, is_checked)


def _body(round_: RunRound, folder: Path) -> None:
    description = describe(round_.model)
    write_json(folder / "shape.json", description.shape.to_json())
    write_json(folder / "costs.json", dict(description.costs))
    write_json(folder / "files.json", hash_checkpoint(round_.model))


DESCRIBE = Stage("00-describe", needs=(), settings=(), body=_body)


def read_shape(folder: Path) -> ModelShape:
    """Shape that a finished `describe` wrote."""
    return ModelShape.from_json(json.loads((folder / "shape.json").read_text(encoding="utf-8")))
