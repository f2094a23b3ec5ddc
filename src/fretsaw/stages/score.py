"""One row per variant: what replacing this one block does to the output of the current model."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fretsaw.core.tables import ScoreKey, ScoreRow, append_row, read_rows
from fretsaw.core.variant import Variant
from fretsaw.runtime.blocks import BlockView
from fretsaw.runtime.repair import Repairer
from fretsaw.runtime.replace import Replacement, changes_first, replace_one
from fretsaw.stages.library import read_library
from fretsaw.stages.models import open_view, repairer, walk_blocks
from fretsaw.stages.run import RunRound, Stage
from fretsaw.stages.text import calibration_text, score_ids, score_text

SCORES = "scores.jsonl"


def _body(round_: RunRound, folder: Path) -> None:
    file = folder / SCORES
    done = {(row.block, row.key) for row in read_rows(file)} if file.exists() else set()
    variants = read_library(round_.result("03-library"))
    size = round_.settings.score.variants_per_pass
    total = sum(map(len, variants.values()))
    if len(done) == total:
        return
    view = open_view(round_)
    todo = {
        index: list(_unfinished(changes_first(view.shape.blocks[index], vs), done, size=size))
        for index, vs in variants.items()
    }
    repairs = _Repairs(view, round_)
    with round_.run.reporter.progress("variants", total) as advance:
        for replacement in replace_one(
            view,
            todo,
            ids=score_ids(round_),
            batch_sequences=round_.run.recipe.compute.batch_sequences,
            variants_per_pass=size,
            repair=repairs.weights,
            enter_block=repairs.enter,
        ):
            row = _row(replacement)
            if (row.block, row.key) not in done:
                append_row(file, row)
                done.add((row.block, row.key))
            advance(len(done), f"block {row.block}")


def _unfinished(
    variants: Sequence[Variant], done: Container[ScoreKey], *, size: int
) -> Iterator[Variant]:
    """Whole passes of which a row is missing: a variant scored beside others gives other bits.

    The passes are those of `replace_one`, which runs changing variants only, in their order.
    """
    for start in range(0, len(variants), size):
        one_pass = variants[start : start + size]
        if any((v.block, v.key) not in done for v in one_pass):
            yield from one_pass


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


def _row(replacement: Replacement) -> ScoreRow:
    return ScoreRow(
        block=replacement.variant.block,
        key=replacement.variant.key,
        variant=replacement.variant,
        kl=replacement.kl,
        loss=replacement.loss,
        hidden=replacement.hidden,
        samples=replacement.samples,
    )


SCORE = Stage(
    "04-score",
    needs=("00-describe", "02-rank", "03-library"),
    settings=("score", "library", "calibrate"),
    body=_body,
    texts=(calibration_text, score_text),
)
