"""Variants of a block, the order of its units, and the choice of one variant per block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fretsaw.core.shape import Block, ModelShape

NONE_KEY = "none"


@dataclass(frozen=True)
class Variant:
    """A possible form of one block: a few integers, never weights.

    `values` holds the sizes and settings that may differ from the parent's block, as
    ``{"ffn": 64, "top_k": 4}``; a block that is gone has ``is_none``.
    """

    block: int
    values: Mapping[str, int] = field(default_factory=dict)
    is_none: bool = False

    @property
    def key(self) -> str:
        """Name within the block, such as ``ffn=64,top_k=4``; tables are joined on it."""
        if self.is_none:
            return NONE_KEY
        return ",".join(f"{k}={v}" for k, v in sorted(self.values.items())) or "same"

    def apply(self, block: Block) -> Block:
        """The block's shape in this form."""
        if self.is_none:
            return Block("none")
        return block.with_values(self.values)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {"block": self.block, "values": dict(self.values), "is_none": self.is_none}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Variant:
        """Inverse of `to_json`."""
        return cls(int(data["block"]), dict(data["values"]), bool(data["is_none"]))


@dataclass(frozen=True)
class Choice:
    """One variant per block, with what the search knows about it.

    Attributes:
        variants: One per block of the parent, in block order.
        score: Summed score, the objective.
        costs: Total cost by name, recomputed from integers.
        status: ``optimal``, ``feasible`` (a time-out with an incumbent) or ``given``.
        gap: Relative optimality gap, 0 = proven.
    """

    variants: tuple[Variant, ...]
    score: float
    costs: Mapping[str, float]
    status: str = "given"
    gap: float = 0.0

    def told(self) -> str:
        """What the search knows about it, in words: ``feasible choice, gap 3.2%``."""
        if self.status == "given":
            return "choice without a search"
        return f"{self.status} choice" + (f", gap {self.gap:.1%}" if self.gap else "")

    def child_shape(self, parent: ModelShape) -> ModelShape:
        """Shape of the child: blocks that are gone are left out, and its head is its own.

        transformers does not tie the head of `nemotron_h` whatever the config says: a child that
        relied on it would open there with a random one.
        """
        blocks = [v.apply(parent.blocks[v.block]) for v in self.variants]
        kept = [b for b in blocks if b.mixer != "none"]
        states = {b.sizes["state"] for b in kept if b.mixer == "mamba"}
        sizes = {d: n for d, n in parent.sizes.items() if d != "state"}
        sizes |= {"state": max(states)} if states else {}
        return ModelShape(parent.family, sizes, tuple(kept), parent.mtp)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {
            "variants": [v.to_json() for v in self.variants],
            "score": self.score,
            "costs": dict(self.costs),
            "status": self.status,
            "gap": self.gap,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """Inverse of `to_json`."""
        return cls(
            variants=tuple(Variant.from_json(v) for v in data["variants"]),
            score=float(data["score"]),
            costs=data["costs"],
            status=data["status"],
            gap=float(data["gap"]),
        )
