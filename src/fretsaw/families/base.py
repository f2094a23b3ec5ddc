"""What a family of architectures provides: three functions and the names it uses on disk."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fretsaw.core.axes import Sizes, TensorAxes
from fretsaw.core.shape import ModelShape

Part = Literal["embedding", "block", "norm", "head", "mtp"]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of a model's tensor list; with `{expert}` in the name it stands for many tensors.

    Attributes:
        tensor: Canonical name pattern (no checkpoint prefix) and axes.
        sizes: Sizes of the dimensions on this row.
        part: Where in the model it lives.
        block: Index of its residual block, of the trunk or of the prediction head.
        local: Its name pattern inside that block.
    """

    tensor: TensorAxes
    sizes: Sizes
    part: Part
    block: int | None = None
    local: str = ""

    def names(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Each tensor's name with the value of the dimensions spelled in it."""
        dims = self.tensor.name_dims
        for index in itertools.product(*(range(self.sizes[d]) for d in dims)):
            bound = dict(zip(dims, index, strict=True))
            yield self.tensor.name.format(**bound), bound


@dataclass(frozen=True)
class Naming:
    """Which keys of the trunk a reader of checkpoints finds.

    Attributes:
        engine: The reader.
        expects: What it looks for, in words that end an error message.
        equal: Pattern of the keys that it finds where blocks of a kind are equal.
        unequal: The same where they are not; `equal` if not given.
    """

    engine: str
    expects: str
    equal: str
    unequal: str = ""

    def finds(self, key: str, *, is_equal: bool) -> bool:
        """Whether the reader takes a stored key."""
        pattern = self.equal if is_equal else self.unequal or self.equal
        return re.fullmatch(pattern, key) is not None


@dataclass(frozen=True)
class ContextLimit:
    """Tokens of context: what the config states, and what is served at most."""

    stated: int
    served: int

    @property
    def hint(self) -> str:
        """What to ask for instead, and where the limit comes from."""
        stated = f"its config's max_position_embeddings is {self.stated:,}"
        if self.stated < self.served:
            stated += ", and engines serve the model, which has no position embedding, up to that"
        return f"ask for at most {self.served:,}: {stated}"


@dataclass(frozen=True)
class Family:
    """An architecture family: config -> shape, shape -> tensors, shape -> config.

    Attributes:
        name: Registry name.
        model_types: Values of `model_type` in config.json that it reads.
        read_config: Shape of the model that a config describes.
        rows: Every tensor of a shape, in file order.
        write_config: Config of a child, from its shape and the parent's config.
        canonical: Canonical name of a stored key (prefix and spelling variants undone).
        fused_axes: For a canonical fused name, the pattern that it holds and the axis' dimension.
        stored: Stored key of a canonical name, with the prefix that fits a written config.
        context_limits: Tokens of context that a config states, and that engines serve at most.
        part_of: Part of the model that a canonical name, known to the table or not, belongs to.
        unknown_keys: Keys of a config that the family does not know; a child gets them unread.
        config_keys: Where a config gives the dimensions of a row, those that have one place.
        namings: What each engine makes of stored keys.
    """

    name: str
    model_types: tuple[str, ...]
    read_config: Callable[[Config], ModelShape]
    rows: Callable[[ModelShape], tuple[Row, ...]]
    write_config: Callable[[ModelShape, Config], dict[str, Any]]
    canonical: Callable[[str], str]
    fused_axes: Callable[[str], tuple[str, str] | None]
    stored: Callable[[str, Config], str]
    context_limits: Callable[[Config], tuple[int, int]]
    part_of: Callable[[str], Part]
    unknown_keys: Callable[[Config], tuple[str, ...]]
    config_keys: Callable[[Config, Row], Mapping[str, str]]
    namings: tuple[Naming, ...]


def block_rows(
    table: Iterable[TensorAxes], sizes: Sizes, *, part: Part, block: int, prefix: str
) -> Iterator[Row]:
    """Rows of one block: its table with the block's place before each name."""
    for row in table:
        tensor = TensorAxes(prefix + row.name, row.axes, row.dtype)
        yield Row(tensor, sizes, part, block, row.name)
