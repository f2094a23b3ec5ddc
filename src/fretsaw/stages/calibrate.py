"""Statistics of every unit of every block, in one pass over calibration text."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from fretsaw.runtime.statistics import collect_statistics
from fretsaw.stages.models import open_model
from fretsaw.stages.run import RunRound, Stage
from fretsaw.stages.text import calibration_ids, calibration_text

STATISTICS = "statistics.safetensors"


def _body(round_: RunRound, folder: Path) -> None:
    compute = round_.run.recipe.compute
    batches = calibration_ids(round_).split(compute.batch_sequences)
    view = open_model(round_.model, compute)
    with round_.run.reporter.progress("calibration batches", len(batches)) as advance:
        statistics = collect_statistics(view, batches, on_progress=advance)
    save_file(statistics.to_tensors(), folder / STATISTICS)


CALIBRATE = Stage(
    "01-calibrate",
    needs=("00-describe",),
    settings=("calibrate",),
    body=_body,
    texts=(calibration_text,),
)
