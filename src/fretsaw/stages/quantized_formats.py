"""Formats by sensitivity: each block and kind rounded alone, and the whole model measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.precision import LINEAR, Precision, WeightKind, kind_of
from fretsaw.errors import InfeasibleError
from fretsaw.families import Row
from fretsaw.quant.calibrate import Activations
from fretsaw.quant.formats import BLOCK
from fretsaw.quant.plan import row_bytes
from fretsaw.quant.scales import Method
from fretsaw.runtime.fake import PlannedRounding, rounded
from fretsaw.runtime.load import load_model
from fretsaw.solver.formats import FormatOption, choose_formats
from fretsaw.stages.progress import Reporter
from fretsaw.train.metrics import HeldOut

FORMATS_FILE = "fretsaw_formats.json"
BATCH = 8
ROUNDED = ("fp8", "nvfp4")

Places = dict[tuple[int, WeightKind], list[Row]]


def choose_precision(
    source: Checkpoint,
    ids: Tensor,
    *,
    activations: Activations,
    bits: float,
    kv: str,
    method: Method,
    folder: Path,
    reporter: Reporter,
) -> Precision:
    """The precision of least summed divergence at an average number of bits.

    Every block and kind of linear map is rounded alone, to each format that fits it, weights and
    inputs, and the divergence of the whole model measured; what is measured is kept in
    `FORMATS_FILE`, with what was chosen.

    Args:
        source: What will be quantised; its model is held in float32.
        ids: Text to judge on, (sequences, tokens).
        activations: What calibration saw.
        bits: Per weight of the blocks' linear maps, scales included; 16 is no compression.
        kv: Format of the KV cache.
        method: Where scales come from; `lsq` is judged where it starts.
        folder: Private; a finished table in it is used again.
        reporter: Where progress goes.

    Raises:
        InfeasibleError: fewer bits than the smallest formats take.
    """
    places = _places(source)
    file = folder / FORMATS_FILE
    if file.is_file():
        table = json.loads(file.read_text(encoding="utf-8"))["options"]
        options = [FormatOption(**row) for row in table]
    else:
        options = _measured(
            source, ids, places=places, activations=activations, method=method, reporter=reporter
        )
    numel = _numel(places)
    chosen = choose_formats(options, limit_bytes=int(numel * bits / 8))
    write_json(
        file,
        {
            "bits": 8 * sum(option.num_bytes for option in chosen) / numel,
            "summed_kl": sum(option.kl for option in chosen),
            "chosen": [option.to_json() for option in chosen],
            "options": [option.to_json() for option in options],
        },
    )
    blocks = {(option.block, option.kind): option.number_format for option in chosen}
    return Precision("auto", kv=kv, blocks=blocks)


def read_chosen(folder: Path) -> list[FormatOption]:
    """What `choose_precision` has chosen in a folder; nothing where it was not asked."""
    file = folder / FORMATS_FILE
    if not file.is_file():
        return []
    return [FormatOption(**row) for row in json.loads(file.read_text(encoding="utf-8"))["chosen"]]


def check_bits(source: Checkpoint, *, bits: float) -> None:
    """Whether any choice of formats takes so few bits per weight.

    Raises:
        InfeasibleError: the smallest take more.
    """
    places = _places(source)
    numel = _numel(places)
    least = sum(min(_sizes(rows).values()) for rows in places.values())
    if least > int(numel * bits / 8):
        raise InfeasibleError(
            f"no choice of formats takes {bits:g} bits per weight: the smallest takes "
            f"{8 * least / numel:.2f}",
            "allow that many bits or more",
        )


def _numel(places: Places) -> int:
    return sum(row.tensor.numel(row.sizes) for rows in places.values() for row in rows)


def _sizes(rows: list[Row]) -> dict[str, int]:
    """Format that fits -> bytes."""
    return {f: sum(row_bytes(row, f) for row in rows) for f in _formats(rows)}


def _places(source: Checkpoint) -> Places:
    """Rows of each block and kind that a format is chosen for."""
    places: Places = {}
    for row in source.rows:
        kind = kind_of(row.tensor, part=row.part)
        if row.part == "block" and row.block is not None and kind in LINEAR:
            places.setdefault((row.block, kind), []).append(row)
    return places


def _measured(
    source: Checkpoint,
    ids: Tensor,
    *,
    places: Places,
    activations: Activations,
    method: Method,
    reporter: Reporter,
) -> list[FormatOption]:
    model = load_model(source)
    held_out = HeldOut(model, ids, batch_size=BATCH)
    held_out.measure(model)
    options: list[FormatOption] = []
    with reporter.progress("blocks and kinds rounded alone", len(places)) as advance:
        for done, ((block, kind), rows) in enumerate(places.items(), start=1):
            for number_format, num_bytes in _sizes(rows).items():
                kl = 0.0
                if number_format in ROUNDED:
                    alone = Precision("alone", kv="bf16", blocks={(block, kind): number_format})
                    planned = PlannedRounding(
                        model, source.shape, precision=alone, activations=activations, method=method
                    )
                    with rounded(model, source.shape, roundings=planned.roundings):
                        kl = held_out.measure(model).kl
                options.append(FormatOption(block, kind, number_format, kl, num_bytes))
            advance(done)
    return options


def _formats(rows: list[Row]) -> Iterator[str]:
    yield "bf16"
    yield "fp8"
    if all(row.tensor.shape(row.sizes)[-1] % BLOCK == 0 for row in rows):
        yield "nvfp4"
