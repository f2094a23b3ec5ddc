"""Text of each purpose: what is fitted on, what is judged on, what is learned from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.recipe import Recipe
from fretsaw.stages.progress import Reporter
from fretsaw.stages.run import Run, RunRound, known_text
from fretsaw.train.data import load_split
from fretsaw.train.found import FoundText, by_split
from fretsaw.train.packing import ReadText, Wanted, load_tokenizer, read_text
from fretsaw.train.splits import Split


def calibration_text(round_: RunRound) -> ReadText:
    """What statistics and repairs are fitted on."""
    read = _fit_and_judge(round_)
    return replace(read, ids=read.ids[: round_.settings.calibrate.sequences])


def score_text(round_: RunRound) -> ReadText:
    """What variants are judged on: calibration text that nothing was fitted on."""
    read = _fit_and_judge(round_)
    return replace(read, ids=read.ids[round_.settings.calibrate.sequences :])


def train_text(round_: RunRound) -> ReadText:
    """What the child learns from; shorter text than asked for is gone through several times."""
    settings = round_.settings.distill
    wanted = -(-settings.tokens // settings.sequence_length)
    return _read(
        round_,
        "train",
        sequences=wanted,
        length=settings.sequence_length,
        at_least=min(wanted, settings.batch_size),
    )


def validation_text(round_: RunRound) -> ReadText:
    """What healing is watched and judged on: the same text in every round."""
    first = round_.run.recipe.rounds[0].distill
    settings = round_.settings.distill
    return _read(
        round_,
        "validation",
        sequences=settings.validation_sequences,
        length=first.sequence_length,
        seed=round_.run.recipe.seed,
    )


def quantize_text(round_: RunRound) -> ReadText:
    """What the last child learns from while it is rounded."""
    settings = round_.settings.distill
    wanted = -(-round_.run.recipe.quantize.heal_tokens // settings.sequence_length)
    return _read(
        round_,
        "train",
        sequences=wanted,
        length=settings.sequence_length,
        at_least=min(wanted, settings.batch_size),
    )


TEXTS = (calibration_text, score_text, train_text, validation_text)
"""All that a round reads."""


def calibration_ids(round_: RunRound) -> Tensor:
    """Token ids of `calibration_text`, (sequences, tokens)."""
    return calibration_text(round_).ids


def score_ids(round_: RunRound) -> Tensor:
    """Token ids of `score_text`, (sequences, tokens)."""
    return score_text(round_).ids


def train_ids(round_: RunRound) -> Tensor:
    """Token ids of `train_text`, (sequences, tokens)."""
    return train_text(round_).ids


def validation_ids(round_: RunRound) -> Tensor:
    """Token ids of `validation_text`, (sequences, tokens)."""
    return validation_text(round_).ids


def _fit_and_judge(round_: RunRound) -> ReadText:
    """Calibration text for both purposes: one stream, cut in two."""
    fit, judge = round_.settings.calibrate, round_.settings.score
    return _read(
        round_,
        "calibration",
        sequences=fit.sequences + judge.sequences,
        length=fit.sequence_length,
    )


def _read(
    round_: RunRound,
    split: Split,
    *,
    sequences: int,
    length: int,
    at_least: int | None = None,
    seed: int | None = None,
) -> ReadText:
    recipe, parent = round_.run.recipe, round_.run.parent
    wanted = Wanted(
        sequences,
        length,
        seed=round_.seed if seed is None else seed,
        vocab_size=Checkpoint(parent).shape.sizes["vocab"],
        min_sequences=at_least,
    )
    return read_split(recipe, split, tokenizer_folder=parent, wanted=wanted)


def read_split(recipe: Recipe, split: Split, *, tokenizer_folder: Path, wanted: Wanted) -> ReadText:
    """A split of the recipe's text as token ids.

    Raises:
        DataError: the text is missing, too short, or not as described.
    """
    data = recipe.data
    names: dict[Split, str] = {s: getattr(data.splits, s) for s in get_args(Split)}
    tokenizer = load_tokenizer(tokenizer_folder)
    source = load_split(
        Path(data.path),
        split,
        names=names,
        text_key=data.text_key,
        chat_key=data.chat_key,
        tokenizer=tokenizer,
    )
    return read_text(source, tokenizer, wanted=wanted)


def check_texts(run: Run, rounds: Iterable[RunRound]) -> None:
    """Read all text of these rounds, say what was found, and warn of what should be known.

    Raises:
        DataError: the text is missing, too short, or not as described.
    """
    for round_ in rounds:
        for text in TEXTS:
            known_text(text, round_)
    tell_texts(found_texts(run), reporter=run.reporter)
    if warning := _overlap(run):
        run.reporter.warn(warning)


def found_texts(run: Run) -> tuple[FoundText, ...]:
    """What has been found of each split so far, in the longest reading of it."""
    return by_split(known.found for known in run.texts.values())


def tell_texts(texts: Iterable[FoundText], *, reporter: Reporter) -> None:
    """Say what was found, a line a split; warn of what was repaired, skipped or ignored."""
    texts = tuple(texts)
    for text in texts:
        reporter.say(f"text of {text}")
    splits: dict[str, list[str]] = {}
    for text in texts:
        for warning in text.warnings():
            splits.setdefault(warning, []).append(text.split)
    for warning, whose in splits.items():
        reporter.warn(f"text of {', '.join(dict.fromkeys(whose))}: {warning}")


def _overlap(run: Run) -> str:
    """That held-out documents are learned from too, in a sentence; empty if none is."""
    documents: dict[str, set[int]] = {"train": set(), "validation": set()}
    for known in run.texts.values():
        documents.setdefault(known.found.split, set()).update(known.documents)
    held_out = documents["validation"]
    if not (both := held_out & documents["train"]):
        return ""
    return (
        f"{len(both):,} of the {len(held_out):,} documents of validation that are judged on are "
        "learned from too, word for word: the child will look better than it is"
    )
