"""The shape of a model: a flat list of residual blocks, with counts that follow from tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

from fretsaw.core.axes import TensorAxes

Mixer = Literal["attention", "mlp", "moe", "mamba", "none"]
MIXERS: tuple[Mixer, ...] = ("mamba", "attention", "moe", "mlp", "none")

MODEL_SCOPE = ("hidden", "state", "mamba_head", "mamba_dim", "group", "latent", "vocab")
"""Dimensions with one value for the whole network (for `state`: in every stock engine)."""


@dataclass(frozen=True)
class Block:
    """One residual unit ``x + mixer(norm(x))``: what it does, its sizes and its settings."""

    mixer: Mixer
    sizes: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)

    def with_values(self, values: Mapping[str, int]) -> Block:
        """The block with some sizes and settings replaced."""
        sizes = {k: values.get(k, v) for k, v in self.sizes.items()}
        settings = {k: values.get(k, v) for k, v in self.settings.items()}
        return replace(self, sizes=sizes, settings=settings)

    @property
    def values(self) -> dict[str, int]:
        """Sizes and settings together."""
        return {**self.sizes, **self.settings}


@dataclass(frozen=True)
class ModelShape:
    """Embedding, blocks, norm and head; optionally the blocks of a multi-token-prediction head."""

    family: str
    sizes: Mapping[str, int]
    blocks: tuple[Block, ...]
    mtp: tuple[Block, ...] = ()
    is_tied: bool = False

    @property
    def num_blocks(self) -> int:
        """Residual blocks of the trunk."""
        return len(self.blocks)

    def indices(self, mixer: Mixer) -> tuple[int, ...]:
        """Indices of the blocks with this mixer."""
        return tuple(i for i, block in enumerate(self.blocks) if block.mixer == mixer)

    @cached_property
    def distinct(self) -> tuple[tuple[Block, int], ...]:
        """Blocks that differ, each with how often it occurs."""
        found: dict[tuple[object, ...], list[Block]] = {}
        for block in self.blocks:
            key = (block.mixer, *sorted(block.values.items()))
            found.setdefault(key, []).append(block)
        return tuple((same[0], len(same)) for same in found.values())

    def with_blocks(self, blocks: Iterable[Block]) -> ModelShape:
        """The shape with other blocks."""
        return replace(self, blocks=tuple(blocks))

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {
            "family": self.family,
            "sizes": dict(self.sizes),
            "is_tied": self.is_tied,
            "blocks": [_block_to_json(b) for b in self.blocks],
            "mtp": [_block_to_json(b) for b in self.mtp],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelShape:
        """Inverse of `to_json`."""
        return cls(
            family=data["family"],
            sizes=data["sizes"],
            is_tied=data["is_tied"],
            blocks=tuple(_block_from_json(b) for b in data["blocks"]),
            mtp=tuple(_block_from_json(b) for b in data["mtp"]),
        )


def _block_to_json(block: Block) -> dict[str, Any]:
    return {"mixer": block.mixer, "sizes": dict(block.sizes), "settings": dict(block.settings)}


def _block_from_json(data: Mapping[str, Any]) -> Block:
    return Block(cast("Mixer", data["mixer"]), data["sizes"], data["settings"])


def num_params(rows: Iterable[TensorAxes], sizes: Mapping[str, int]) -> int:
    """Elements of all tensors of a table."""
    return sum(row.numel(sizes) for row in rows)


def num_active_params(rows: Iterable[TensorAxes], block: Block) -> int:
    """Elements that one token uses: of tensors named by expert, `top_k` experts' worth."""
    active = {**block.sizes}
    if "top_k" in block.settings:
        active["expert"] = min(block.settings["top_k"], block.sizes["expert"])
    return sum(
        row.numel(active) if "expert" in row.name_dims else row.numel(block.sizes) for row in rows
    )
