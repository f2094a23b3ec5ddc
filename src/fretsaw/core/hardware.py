"""Hardware, workloads and parallel layouts as plain data, each number with its source."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from fretsaw.core.sheets import read_sheet, sheet_names
from fretsaw.core.units import parse_count
from fretsaw.errors import RecipeError, nearest

THIS_MACHINE = "this-machine"
"""Name of the machine that fretsaw runs on; its numbers are measured (`pricing.measure`)."""

NODE = re.compile(r"\s*(?:([0-9]{1,6})\s*[xX×]\s*)?([A-Za-z][\w.-]*)\s*")
LAYOUT = re.compile(r"(tp|dp|ep)([0-9]{1,6})")


COMPUTED_IN = {
    "nvfp4": ("nvfp4", "bf16", "fp32"),
    "mxfp4": ("mxfp4", "nvfp4", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp32": ("fp32",),
}
"""What a format is computed in, best first: without units of its own it is widened on the way."""


@dataclass(frozen=True)
class Hardware:
    """One accelerator, or one machine that serves from its CPU.

    Attributes:
        name: As users write it: H100, B200, this-machine.
        memory_bytes: What a program can see.
        memory_bytes_per_s: Bandwidth of that memory, by data sheet (or measured).
        flops_per_s: Number format of the operands -> dense rate.
        link_bytes_per_s: To its neighbours, in one direction.
        board_power_w: Limit of the board.
        idle_power_w: Powered and without work.
        table: Folder of measured kernel times (`fretsaw.pricing.lookup`), if there are any.
        families: What else it is, for what is known of its kind: nvidia, hopper, cpu.
        sources: Field -> where its number comes from.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    link_bytes_per_s: float = 0.0
    board_power_w: float = 0.0
    idle_power_w: float = 0.0
    table: str = ""
    families: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no hardware has."""
        for name in ("memory_bytes", "memory_bytes_per_s"):
            value = getattr(self, name)
            if not value > 0:
                raise RecipeError(f"{self.name}: {name} is {value:g}", "give a number above 0")

    def is_one_of(self, names: Collection[str]) -> bool:
        """Whether its name, or a family that it belongs to, is among some."""
        return any(name in names for name in (self.name, *self.families))

    def has_units(self, number_format: str) -> bool:
        """Whether products of a format have units of their own; MXFP4 runs on those of NVFP4."""
        own = {number_format, "nvfp4"} if number_format == "mxfp4" else {number_format}
        return not own.isdisjoint(self.flops_per_s)

    def rate(self, number_format: str) -> float:
        """Dense FLOP/s for operands of a format, widened where there are no units for it.

        Raises:
            RecipeError: no rate for it or anything wider.
        """
        for wider in COMPUTED_IN[number_format]:
            if wider in self.flops_per_s:
                return self.flops_per_s[wider]
        raise RecipeError(
            f"{self.name} has no rate for {number_format}",
            f"it computes in {', '.join(self.flops_per_s)}",
        )


@dataclass(frozen=True)
class Node:
    """Equal accelerators with fast links between them: ``8xB200``."""

    hardware: Hardware
    count: int = 1

    def __str__(self) -> str:
        """As users write it."""
        return self.hardware.name if self.count == 1 else f"{self.count}x{self.hardware.name}"


@dataclass(frozen=True)
class Workload:
    """What each request asks for.

    Attributes:
        input_tokens: Prompt.
        output_tokens: Answer.
        acceptance_length: Tokens that one decode step gives, above 1 with speculative decoding.
    """

    input_tokens: int
    output_tokens: int
    acceptance_length: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a workload without work."""
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise RecipeError(
                f"workload {self.input_tokens}/{self.output_tokens} has no tokens",
                'write input/output tokens, such as "8k/64k"',
            )
        if not 1 <= self.acceptance_length <= self.output_tokens:
            raise RecipeError(
                f"an acceptance length of {self.acceptance_length:g} is not from 1 to the "
                f"{self.output_tokens} tokens of an answer",
                "a decode step gives at least the one token of the model itself; take 1 without "
                "speculative decoding",
            )

    @property
    def mean_context(self) -> float:
        """Tokens before the current one, averaged over the decode steps of a request."""
        return self.input_tokens + self.output_tokens / 2

    @property
    def peak_context(self) -> int:
        """Tokens at the end of a request: what memory must hold."""
        return self.input_tokens + self.output_tokens

    def __str__(self) -> str:
        """As users write it."""
        return f"{_tokens(self.input_tokens)}/{_tokens(self.output_tokens)}"


def _tokens(count: int) -> str:
    return f"{count // 1000}k" if count >= 1000 and count % 1000 == 0 else str(count)  # noqa: PLR2004


@dataclass(frozen=True)
class Layout:
    """How one replica of a model lies on its GPUs; a node holds several replicas.

    Attributes:
        tp: GPUs over which each attention, Mamba and dense weight is split.
        dp: Groups of `tp` GPUs, each with sequences of its own, that share the experts.
        ep: GPUs over which whole experts are spread: 1 (experts are split by `tp`), or `tp * dp`.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        """Refuse what no engine does."""
        if min(self.tp, self.dp, self.ep) < 1:
            raise RecipeError(f"layout {self} has a part below 1", 'write it like "tp2 ep2"')
        if self.ep not in (1, self.tp * self.dp):
            raise RecipeError(
                f"layout {self}: experts are spread over {self.ep} GPUs, but a replica has "
                f"{self.tp * self.dp}",
                f"take ep1 or ep{self.tp * self.dp}",
            )

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.dp

    def __str__(self) -> str:
        """As users write it: ``tp2 dp4 ep8``; parts that are 1 are left out."""
        parts = [f"tp{self.tp}"]
        parts += [f"dp{self.dp}"] if self.dp > 1 else []
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        return " ".join(parts)


ONE_GPU = Layout()


def parse_layout(text: str) -> Layout:
    """A layout such as "tp2", "tp2 ep2" or "dp8 ep8".

    Raises:
        RecipeError: not a layout, or one that no engine does.
    """
    words = text.lower().replace(",", " ").split()
    found = [LAYOUT.fullmatch(word) for word in words]
    names = [match[1] for match in found if match]
    if not words or not all(found) or len(set(names)) < len(names):
        raise RecipeError(f"{text!r} is no layout", 'write it like "tp2", "tp2 ep2" or "dp8 ep8"')
    return Layout(**{match[1]: int(match[2]) for match in found if match})


def parse_workload(text: str) -> Workload:
    """A workload such as "8k/64k": input and output tokens of each request; k is 1000.

    Raises:
        RecipeError: not a workload.
    """
    parts = str(text).split("/")
    if len(parts) != 2:  # noqa: PLR2004
        raise RecipeError(
            f"{text!r} is no workload", 'write input/output tokens of a request, such as "8k/64k"'
        )
    return Workload(parse_count(parts[0]), parse_count(parts[1]))


def parse_node(text: str) -> Node:
    """A node such as "8xB200" or "H100".

    Raises:
        RecipeError: unknown hardware (the nearest names are given), or a count below 1.
    """
    match = NODE.fullmatch(str(text))
    if match is None or (match[1] and int(match[1]) < 1):
        raise RecipeError(f"{text!r} is no hardware", 'write it like "8xB200" or "H100"')
    return Node(hardware_named(match[2]), int(match[1] or 1))


def hardware_named(name: str) -> Hardware:
    """Hardware from the tables in `fretsaw/data/hardware`.

    Raises:
        RecipeError: unknown name, or the machine that fretsaw runs on.
    """
    known = {key.lower(): key for key in hardware_names()}
    key = known.get(name.lower())
    if key is not None:
        return _load(key)
    names = ", ".join(hardware_names())
    guess = nearest(name.upper(), hardware_names())
    if name.lower() == THIS_MACHINE:
        raise RecipeError(
            f"{THIS_MACHINE} has no data sheet: what it does is measured, with a running model",
            f"ask for it in a recipe's budget (serve), or name one of {names}",
        )
    raise RecipeError(
        f"unknown hardware {name!r}",
        (f"did you mean {guess!r}? " if guess else "")
        + f"known: {names}, and in a recipe {THIS_MACHINE}",
    )


def hardware_names() -> tuple[str, ...]:
    """Names of all hardware with a data sheet here."""
    return sheet_names("hardware")


@cache
def _load(name: str) -> Hardware:
    return read_hardware(read_sheet("hardware", name), name=name)


def read_hardware(data: Mapping[str, Any], *, name: str) -> Hardware:
    """Hardware from its TOML form, in which each field is ``{value = ..., source = "..."}``.

    Raises:
        RecipeError: unknown or missing field, a field without its source, or an unusable value.
    """
    known = {"memory_bytes", "memory_bytes_per_s", "flops_per_s", "link_bytes_per_s"}
    known |= {"board_power_w", "idle_power_w", "table", "families"}
    for key in data:
        if key not in known:
            guess = nearest(key, known)
            raise RecipeError(
                f"{name}: unknown field {key!r}",
                f"did you mean {guess!r}?" if guess else f"known: {', '.join(sorted(known))}",
            )
        if not isinstance(data[key], dict) or not {"value", "source"} <= set(data[key]):
            raise RecipeError(f"{name}: {key} has no value or no source", "give both")
    for key in ("memory_bytes", "memory_bytes_per_s", "flops_per_s"):
        if key not in data:
            raise RecipeError(f"{name}: {key} is missing", "give its value and its source")
    values = {key: entry["value"] for key, entry in data.items()}
    values["families"] = tuple(values.get("families", ()))
    return Hardware(name, **values, sources={key: entry["source"] for key, entry in data.items()})


def with_memory(node: Node, *, memory_bytes: int) -> Node:
    """The node with another memory size per accelerator.

    Raises:
        RecipeError: not above 0.
    """
    sources = {**node.hardware.sources, "memory_bytes": "given instead of the data sheet's"}
    return replace(
        node, hardware=replace(node.hardware, memory_bytes=memory_bytes, sources=sources)
    )
