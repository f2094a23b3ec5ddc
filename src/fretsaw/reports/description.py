"""A model in figures: parameters by kind of block, bytes by format, KV and state per sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fretsaw.core.shape import MIXERS, ModelShape, num_active_params, num_params
from fretsaw.core.units import format_bytes, format_count
from fretsaw.families import family_named
from fretsaw.pricing.memory import model_costs
from fretsaw.reports.shown import Shown


@dataclass(frozen=True)
class KindLine:
    """Totals of all blocks of one kind, or of embedding, head and norm."""

    kind: str
    num_blocks: int
    params: int
    active_params: int


@dataclass(frozen=True, repr=False)
class Description(Shown):
    """A model in figures.

    Attributes:
        source: Folder or config file that was described.
        shape: Its shape.
        lines: Parameters per kind of block, and of what is no block.
        costs: Whole-model costs by name (see `fretsaw.pricing.memory`).
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

    def brief(self) -> str:
        """Name and counts."""
        params, active = format_count(self.params), format_count(self.active_params)
        return (
            f"{self.source}: {params} parameters, {active} active, {self.shape.num_blocks} blocks"
        )

    def print(self, console: Console) -> None:
        """See `print_description`."""
        print_description(self, console)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "source": str(self.source),
            "params": self.params,
            "active_params": self.active_params,
            "mtp_params": self.mtp_params,
            "kinds": {line.kind: vars(line) for line in self.lines},
            "costs": dict(self.costs),
            "is_checked": self.is_checked,
            "shape": self.shape.to_json(),
        }


def describe_shape(shape: ModelShape, *, source: Path, is_checked: bool) -> Description:
    """Counts of a shape by kind of block, from its tensor table."""
    rows = family_named(shape.family).rows(shape)
    totals = {mixer: [0, 0, 0] for mixer in MIXERS}
    for i, block in enumerate(shape.blocks):
        tensors = [row.tensor for row in rows if row.part == "block" and row.block == i]
        total = totals[block.mixer]
        total[0] += 1
        total[1] += num_params(tensors, block.sizes)
        total[2] += num_active_params(tensors, block)
    lines = [KindLine(kind, *total) for kind, total in totals.items() if total[0]]
    for part in ("embedding", "head", "norm"):
        size = sum(row.tensor.numel(row.sizes) for row in rows if row.part == part)
        lines.append(KindLine(part, 0, size, size))
    mtp = sum(row.tensor.numel(row.sizes) for row in rows if row.part == "mtp")
    return Description(source, shape, tuple(lines), model_costs(shape), mtp, is_checked)


def print_description(description: Description, console: Console) -> None:
    """Two tables: parameters by kind, and what a served sequence and the weights take."""
    table = Table(title=f"{description.source}", title_justify="left")
    for heading in ("kind", "blocks", "parameters", "active per token", "share"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for line in description.lines:
        blocks = str(line.num_blocks) if line.num_blocks else ""
        share = f"{line.params / description.params:.1%}"
        table.add_row(line.kind, blocks, f"{line.params:,}", f"{line.active_params:,}", share)
    table.add_section()
    total, active = f"{description.params:,}", f"{description.active_params:,}"
    table.add_row("total", str(description.shape.num_blocks), total, active, "100.0%")
    console.print(table)
    if description.mtp_params:
        console.print(
            f"prediction head (MTP), not in the total: {description.mtp_params:,} parameters; "
            f"with it {description.params + description.mtp_params:,}"
        )
    costs = description.costs
    memory = Table()
    for heading in ("BF16", "FP8", "NVFP4", "KV per token", "state per sequence", "conv state"):
        memory.add_column(heading, justify="right")
    names = ("bytes_bf16", "bytes_fp8", "bytes_nvfp4", "kv_bytes_per_token")
    cells = [format_bytes(costs[name]) for name in (*names, "state_bytes", "conv_state_bytes")]
    memory.add_row(*cells)
    console.print(memory)
    checked = (
        "every stored tensor agrees with the table"
        if description.is_checked
        else ("from the config alone: no tensors were looked at")
    )
    console.print(f"{format_count(description.params)} parameters; {checked}")
