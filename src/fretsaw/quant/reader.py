"""A quantised checkpoint, read by dequantising, so that it runs and is judged on any machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fretsaw.checkpoint.contents import read_object
from fretsaw.checkpoint.reader import CUT_DTYPES, Checkpoint
from fretsaw.core.engines import Packing
from fretsaw.core.precision import LINEAR, Precision, WeightKind, kind_of, preset
from fretsaw.errors import CheckpointError
from fretsaw.families import Row
from fretsaw.families.mixers import KV_SCALES
from fretsaw.families.quantised import (
    BESIDE,
    CONFIG_KEY,
    FORMAT_OF,
    LEGACY_FILE,
    STOP,
    Quantisation,
    is_match,
    module_of,
    read_quantisation,
)
from fretsaw.quant.formats import Fp8, Nvfp4
from fretsaw.quant.plan import Part, parts_of

CODES = {"nvfp4": "U8", "fp8": "F8_E4M3"}
"""Number format -> stored dtype of its codes."""

FLOATS = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
SEVERAL = 5


def open_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint folder, quantised or not.

    Raises:
        CheckpointError: missing or damaged, or quantised in a way that is not known.
    """
    return dequantized(Checkpoint(folder))


def dequantized(checkpoint: Checkpoint, *, read_as: str = "F32") -> Checkpoint:
    """The same checkpoint, whose weights are read in full precision however they are stored.

    Args:
        checkpoint: Quantised or not.
        read_as: Dtype that quantised tensors are copied in.
    """
    is_plain = CONFIG_KEY not in checkpoint.config and not _legacy(checkpoint.folder).is_file()
    if is_plain or isinstance(checkpoint, QuantizedCheckpoint):
        return checkpoint
    return QuantizedCheckpoint(checkpoint.folder, read_as=read_as)


def precision_of(checkpoint: Checkpoint) -> Precision:
    """Number formats of the linear maps of a checkpoint as they are stored, quantised or not.

    Blocks that differ from most of their kind have entries of their own.
    """
    opened = dequantized(checkpoint)
    matrices = (p for p in opened.stored.values() if len(p.shape) > 1 and p.dtype in FLOATS)
    dtypes = Counter(FLOATS[place.dtype] for place in matrices)
    default = dtypes.most_common(1)[0][0] if dtypes else "bf16"
    if not isinstance(opened, QuantizedCheckpoint):
        return replace(preset("bf16"), name=default, default=default)
    found: dict[WeightKind, dict[int | None, str]] = {}
    for name, row in opened.matrices:
        number_format = opened.formats.get(name) or FLOATS[opened.dtype_of(name)]
        block = row.block if row.part == "block" else None
        found.setdefault(kind_of(row.tensor, part=row.part), {})[block] = number_format
    usual = {k: Counter(own.values()).most_common(1)[0][0] for k, own in found.items()}
    return Precision(
        ", ".join(dict.fromkeys([*usual.values(), default])),
        usual,
        default=default,
        kv="fp8" if opened.said.has_fp8_cache else default,
        blocks={
            (block, kind): number_format
            for kind, own in found.items()
            for block, number_format in own.items()
            if block is not None and number_format != usual[kind]
        },
    )


def packing_of(checkpoint: QuantizedCheckpoint) -> Packing:
    """How a quantised checkpoint's folder keeps its weights."""
    return Packing(checkpoint.said.layout, checkpoint.config.get("transformers_weights") == STOP)


def _legacy(folder: Path) -> Path:
    return folder / LEGACY_FILE


class QuantizedCheckpoint(Checkpoint):
    """A checkpoint in FP8 or NVFP4, read by canonical name as if it were in float32.

    Args:
        folder: The checkpoint.
        read_as: Dtype that `dtype_of` gives for a quantised tensor: whoever copies it casts to it.

    Raises:
        CheckpointError: as `Checkpoint`; or its config names a quantisation that is not known.
    """

    def __init__(self, folder: Path, *, read_as: str = "F32") -> None:
        super().__init__(folder)
        self.read_as = read_as
        config = self.config.get(CONFIG_KEY)
        if config is None:
            config = read_object(_legacy(folder))
        try:
            self.said: Quantisation = read_quantisation(config)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{folder}: {CONFIG_KEY} cannot be read: {error!r}",
                "the layouts of ModelOpt and of compressed-tensors are known",
            ) from error
        named = {*self.said.algorithms.values(), *filter(None, (self.said.single,))}
        if unknown := named - FORMAT_OF.keys():
            raise CheckpointError(
                f"{folder} is quantised by {', '.join(sorted(unknown))}",
                f"these are known: {', '.join(FORMAT_OF)}",
            )

    @cached_property
    def matrices(self) -> tuple[tuple[str, Row], ...]:
        """Name and row of every weight that a linear map of the trunk multiplies by."""
        rows = (r for r in self.rows if kind_of(r.tensor, part=r.part) in LINEAR)
        return tuple((name, row) for row in rows for name, _ in row.names())

    @cached_property
    def formats(self) -> Mapping[str, str]:
        """Name of each quantised weight -> its number format, as the files have it."""
        found = {}
        for name, _ in self.matrices:
            for number_format, dtype in CODES.items():
                codes = BESIDE[self.said.layout, number_format].key(name, "weight")
                place = self.stored.get(codes)
                if place is not None and place.dtype == dtype:
                    found[name] = number_format
        return found

    def _part(self, name: str, part: Part) -> str:
        """Canonical name of a part of a quantised weight."""
        return BESIDE[self.said.layout, self.formats[name]].key(name, part)

    def module(self, name: str) -> str:
        """Module of a weight, as the files call it."""
        if name not in self.formats:
            return module_of(self.stored[name].key)
        return self.stored[self._part(name, "weight")].key.rpartition(".")[0]

    def algorithm(self, name: str) -> str | None:
        """What the config says about a weight."""
        return self.said.algorithm_of(self.module(name))

    def read(self, name: str) -> Tensor:
        """One tensor by canonical name; a quantised one as float32."""
        number_format = self.formats.get(name)
        if number_format is None:
            return super().read(name)
        codes, scale = self._raw(name, "weight"), self._scale(name, "scale")
        if number_format == "fp8":
            return Fp8(codes, scale).decode()
        return Nvfp4(codes, self._raw(name, "block_scale"), scale).decode()

    def input_scale(self, name: str) -> Tensor | None:
        """Static scale of what a quantised weight multiplies, (); None where it has none."""
        if self._part(name, "input_scale") not in self.stored:
            return None
        return self._scale(name, "input_scale")

    def cache_scale(self, name: str) -> Tensor:
        """Scale of an FP8 cache by canonical name; 1 where none is stored, as engines take it."""
        return super().read(name).reshape(()) if name in self.stored else torch.tensor(1.0)

    def _raw(self, name: str, part: Part) -> Tensor:
        return super().read(self._part(name, part))

    def _scale(self, name: str, part: Part) -> Tensor:
        scale = self._raw(name, part).float().reshape(())
        if not (math.isfinite(scale) and scale > 0):
            raise CheckpointError(
                f"{self.folder}: {part} of {name} is {float(scale)}, which is no positive number",
                "the checkpoint is damaged, or was calibrated on too little text",
            )
        is_inverse = BESIDE[self.said.layout, self.formats[name]].is_inverse
        return 1.0 / scale if is_inverse else scale

    def dtype_of(self, name: str) -> str:
        """Stored dtype of a tensor; `read_as` of a quantised one."""
        return self.read_as if name in self.formats else super().dtype_of(name)

    def check(self) -> None:
        """Compare files and config both ways: every part of every weight, none without a word.

        Raises:
            CheckpointError: the first few differences, by name.
        """
        faults = [*self.tensor_faults(), *self.format_faults()]
        if faults:
            shown = "; ".join(faults[:SEVERAL]) + ("; …" if len(faults) > SEVERAL else "")
            raise CheckpointError(
                f"{self.folder}: weights and config disagree ({len(faults)}): {shown}",
                "quantise the checkpoint again, or copy it again",
            )

    def tensor_faults(self) -> Iterator[str]:
        """Parts of weights that are missing, of another form, or that belong to nothing."""
        extra = set(self.stored)
        for row in self.rows:
            yield from self._row_faults(row, extra)
            if row.local in KV_SCALES:
                extra.discard(row.tensor.name.removesuffix(row.local) + KV_SCALES[row.local])
        yield from (f"{name} belongs to nothing" for name in sorted(extra))

    def _row_faults(self, row: Row, extra: set[str]) -> Iterator[str]:
        """Parts of a row's weights that are missing or of another form; takes them out of extra."""
        shape = row.tensor.shape(row.sizes)
        for name, _ in row.names():
            number_format = self.formats.get(name)
            if number_format is None:
                place = self.stored.get(name)
                extra.discard(name)
                if place is None:
                    yield f"{name} is missing"
                elif place.shape != shape or place.dtype not in CUT_DTYPES:
                    yield f"{name} is {place.dtype} {list(place.shape)}, not {list(shape)}"
                continue
            yield from self._part_faults(name, shape, extra=extra)

    def _part_faults(self, name: str, shape: tuple[int, ...], *, extra: set[str]) -> Iterator[str]:
        algorithm = self.algorithm(name)
        expected = parts_of(
            name,
            shape,
            number_format=self.formats[name],
            layout=self.said.layout,
            has_inputs=algorithm != "W4A16_NVFP4",
        )
        for part, planned in expected.items():
            place = self.stored.get(planned.key)
            extra.discard(planned.key)
            if place is None:
                yield f"{name} has no {part}, which {algorithm} needs"
            elif (place.dtype, math.prod(place.shape)) != (
                planned.dtype,
                math.prod(planned.shape),
            ):
                yield f"{planned.key} is {place.dtype} {list(place.shape)}, not {planned.dtype}"

    def format_faults(self) -> Iterator[str]:
        """Where config and files give a weight different formats; modules of no weight."""
        modules = set()
        for name, _ in self.matrices:
            if name not in self.formats and name not in self.stored:
                continue
            module = self.module(name)
            modules.add(module)
            said = FORMAT_OF.get(self.said.algorithm_of(module) or "")
            if said != self.formats.get(name):
                yield (
                    f"config says {said or 'not quantised'} of {module}, "
                    f"its weight is in {self.formats.get(name) or self.stored[name].dtype}"
                )
        yield from (
            f"config quantises {module}, which is no linear map"
            for module in self.said.algorithms
            if module not in modules
        )

    def check_ignored(self) -> None:
        """Whether the list of modules left alone is exactly that: none missed, none idle.

        Raises:
            CheckpointError: the first few that are not.
        """
        if faults := list(self.ignore_faults()):
            raise CheckpointError(
                f"{self.folder}: list of ignored modules: " + "; ".join(faults[:SEVERAL]),
                "this is a fault of fretsaw: please report it with the precision",
            )

    def ignore_faults(self) -> Iterator[str]:
        """Where the list of modules left alone and the files differ, both ways."""
        kept: dict[str, str] = {}
        for row in self.rows:
            for name, _ in row.names():
                if len(row.tensor.axes) > 1 and name not in self.formats and name in self.stored:
                    kept[self.module(name)] = name
        done = {self.module(name) for name in self.formats}
        yield from (f"{m} is in 16 bits but not ignored" for m in kept if not self.said.ignores(m))
        yield from (f"{m} is quantised but ignored" for m in done if self.said.ignores(m))
        yield from (
            f"{pattern!r} matches no module"
            for pattern in self.said.ignore
            if pattern not in kept and not any(is_match(pattern, module) for module in kept)
        )

    def scale_faults(self) -> Iterator[str]:
        """Scales of whole tensors and inputs that are not finite and positive; all are read."""
        for name in self.formats:
            parts: tuple[Part, ...] = ("scale", "input_scale")
            for part in parts:
                if self._part(name, part) not in self.stored:
                    continue
                value = float(self._raw(name, part).float().reshape(()))
                if not (math.isfinite(value) and value > 0):
                    yield f"{self._part(name, part)} is {value}"
