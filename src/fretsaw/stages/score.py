"""One row per variant: what replacing this one block does to the output of the current model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fretsaw.core.tables import ScoreRow, append_row, read_rows
from fretsaw.core.variant import Variant
from fretsaw.runtime.blocks import BlockView
from fretsaw.runtime.repair import Repairer
from fretsaw.runtime.replace import Replacement, replace_one
from fretsaw.stages.library import read_library
from fretsaw.stages.models import open_view, repairer, walk_blocks
from fretsaw.stages.run import RunRound, Stage
from fretsaw.stages.text import calibration_ids, score_ids

SCORES = "scores.jsonl"


def _body(round_: RunRound, folder: Path) -> None:
    file = folder / SCORES
    done = {(row.block, row.key) for row in read_rows(file)} if file.exists() else set()
    variants = read_library(round_.result("03-library"))
    todo = {b: [v for v in vs if (b, v.key) not in done] for b, vs in variants.items()}
    total = sum(map(len, variants.values()))
    if len(done) == total:
        return
    view = open_view(round_)
    repairs = _Repairs(view, round_)
    compute, settings = round_.run.recipe.compute, round_.settings.score
    with round_.run.reporter.progress("variants", total) as advance:
        started = time.monotonic()
        for replacement in replace_one(
            view,
            todo,
            ids=score_ids(round_),
            batch_sequences=compute.batch_sequences,
            variants_per_pass=settings.variants_per_pass,
            repair=repairs.weights,
            enter_block=repairs.enter,
        ):
            now = time.monotonic()
            append_row(file, _row(replacement, now - started))
            started = now
            done.add((replacement.variant.block, replacement.variant.key))
            advance(len(done), f"block {replacement.variant.block}")


class _Repairs:
    """Repairs of the block that is being scored, following the walk through the network."""

    def __init__(self, view: BlockView, round_: RunRound) -> None:
        self._view, self._round = view, round_
        self._walk = walk_blocks(view, round_)
        self._repairer: Repairer | None = None

    def enter(self, block: int) -> None:
        if self._round.settings.library.repair == "none":
            return
        self._repairer = None
        index, hidden = next(self._walk)
        assert index == block
        self._repairer = repairer(self._view, self._round, block=block, hidden=hidden)

    def weights(self, block: int, variant: Variant) -> Mapping[str, Tensor]:
        if self._repairer is None:
            return {}
        return self._repairer.replaced(variant.apply(self._view.shape.blocks[block]))


def _row(replacement: Replacement, seconds: float) -> ScoreRow:
    return ScoreRow(
        block=replacement.variant.block,
        key=replacement.variant.key,
        variant=replacement.variant,
        kl=replacement.kl,
        loss=replacement.loss,
        hidden=replacement.hidden,
        samples=replacement.samples,
        seconds=round(seconds, 4),
    )


SCORE = Stage(
    "04-score",
    needs=("00-describe", "02-rank", "03-library"),
    settings=("score", "library", "calibrate"),
    body=_body,
    texts=(calibration_ids, score_ids),
)
