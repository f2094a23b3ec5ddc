"""The order of the units of every block, most important first."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from fretsaw.checkpoint.writer import write_json
from fretsaw.importance.order import orders_to_tensors
from fretsaw.runtime.statistics import Statistics, rank_units
from fretsaw.stages.calibrate import STATISTICS
from fretsaw.stages.models import ORDERS, open_model
from fretsaw.stages.run import RunRound, Stage


def _body(round_: RunRound, folder: Path) -> None:
    statistics = Statistics.from_tensors(load_file(round_.result("01-calibrate") / STATISTICS))
    view = open_model(round_.model, round_.run.recipe.compute)
    ranking = rank_units(view, statistics, min_tokens=round_.settings.rank.min_tokens)
    save_file(orders_to_tensors(ranking.orders), folder / ORDERS)
    write_json(folder / "uncalibrated.json", ranking.uncalibrated)
    count = sum(len(experts) for experts in ranking.uncalibrated.values())
    if count:
        round_.run.reporter.warn(
            f"{count} experts saw fewer than {round_.settings.rank.min_tokens} calibration tokens "
            f"and are ranked by their weights alone; see {RANK.name}/uncalibrated.json"
        )


RANK = Stage("02-rank", needs=("00-describe", "01-calibrate"), settings=("rank",), body=_body)
