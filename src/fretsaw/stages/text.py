"""Token ids of each purpose: what is fitted on, what is judged on, what is learned from."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.errors import DataError
from fretsaw.recipe import Recipe
from fretsaw.stages.run import RunRound
from fretsaw.train.data import Split, load_split
from fretsaw.train.packing import load_tokenizer, pack


def calibration_ids(round_: RunRound) -> Tensor:
    """What statistics and repairs are fitted on, (sequences, tokens)."""
    return _fit_and_judge(round_)[: round_.settings.calibrate.sequences]


def score_ids(round_: RunRound) -> Tensor:
    """What variants are judged on: calibration text that nothing was fitted on."""
    return _fit_and_judge(round_)[round_.settings.calibrate.sequences :]


def train_ids(round_: RunRound) -> Tensor:
    """What the child learns from; shorter text than asked for is gone through several times."""
    settings = round_.settings.distill
    wanted = -(-settings.tokens // settings.sequence_length)
    return _ids(
        round_,
        "train",
        sequences=wanted,
        length=settings.sequence_length,
        at_least=min(wanted, settings.batch_size),
    )


def validation_ids(round_: RunRound) -> Tensor:
    """What healing is watched and judged on: the same text in every round."""
    first = round_.run.recipe.rounds[0].distill
    settings = round_.settings.distill
    return _ids(
        round_,
        "validation",
        sequences=settings.validation_sequences,
        length=first.sequence_length,
        seed=round_.run.recipe.seed,
    )


def _fit_and_judge(round_: RunRound) -> Tensor:
    """Calibration text for both purposes: one stream, cut in two."""
    fit, judge = round_.settings.calibrate, round_.settings.score
    return _ids(
        round_,
        "calibration",
        sequences=fit.sequences + judge.sequences,
        length=fit.sequence_length,
    )


def _ids(
    round_: RunRound,
    split: Split,
    *,
    sequences: int,
    length: int,
    at_least: int | None = None,
    seed: int | None = None,
) -> Tensor:
    return read_ids(
        round_.run.recipe,
        split,
        tokenizer_folder=round_.run.parent,
        sequences=sequences,
        length=length,
        at_least=at_least,
        seed=round_.seed if seed is None else seed,
    )


def read_ids(
    recipe: Recipe,
    split: Split,
    *,
    tokenizer_folder: Path,
    sequences: int,
    length: int,
    seed: int,
    at_least: int | None = None,
) -> Tensor:
    """Packed token ids (sequences, length) of a split of the recipe's text.

    Raises:
        DataError: the text is missing, too short, or not as described.
    """
    data = recipe.data
    names: dict[Split, str] = {s: getattr(data.splits, s) for s in get_args(Split)}
    source = load_split(Path(data.path), split, names=names, text_key=data.text_key)
    try:
        return pack(
            source,
            load_tokenizer(tokenizer_folder),
            num_sequences=sequences,
            sequence_length=length,
            seed=seed,
            vocab_size=Checkpoint(tokenizer_folder).shape.sizes["vocab"],
            min_sequences=at_least,
        )
    except DataError as error:
        raise DataError(f"{source.describe()}: {error.message}", error.hint) from error
