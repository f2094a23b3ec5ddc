"""The run folder: a stage is skipped when it is done, resumed when it was killed, never trusted.

A stage works in ``NN-name.partial`` and appears as ``NN-name`` by one rename, with a manifest of
what went in and the checksums of what came out, the manifest's own included. Anything replaced is
moved aside, not deleted.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.lineage import hash_checkpoint, hash_travelling
from fretsaw.checkpoint.writer import write_json
from fretsaw.errors import RunError
from fretsaw.recipe import Recipe, Round
from fretsaw.runtime.resident import watch_peak
from fretsaw.stages.manifest import (
    MANIFEST,
    STARTED,
    Account,
    damage,
    digest,
    read_manifest,
    stage_digest,
    warnings_of,
    write_manifest,
)
from fretsaw.stages.progress import Reporter
from fretsaw.stages.recopy import FILES, have_only_files_changed, recopied
from fretsaw.train.found import FoundText
from fretsaw.train.packing import ReadText

MARKER = "recipe.resolved.json"
SEEDS = 2**32
"""numpy, which transformers seeds too, takes no larger ones."""

CHECK = "check.json"
"""What the check before the first stage took and warned about."""


@dataclass(frozen=True)
class KnownText:
    """What is kept of a text that was read.

    Attributes:
        digest: Fingerprint of its token ids: they decide, not where they come from.
        found: Files, documents, and what was repaired, skipped or ignored.
        documents: Fingerprints of the documents that were taken.
    """

    digest: str
    found: FoundText
    documents: frozenset[int]


@dataclass(frozen=True)
class Run:
    """A run folder and the recipe that fills it.

    Attributes:
        folder: Of all rounds.
        recipe: What to do.
        reporter: Where progress goes.
        texts: What is known of each text that was read, by round and purpose.
        found_parent: Where the parent lies, if not where the recipe says.
    """

    folder: Path
    recipe: Recipe
    reporter: Reporter
    texts: dict[tuple[int, str], KnownText] = field(default_factory=dict)
    found_parent: Path | None = None

    @cached_property
    def parent(self) -> Path:
        """The original parent, teacher of every round."""
        return self.found_parent or Path(self.recipe.parent).resolve()

    @cached_property
    def parent_digest(self) -> str:
        """Fingerprint of the parent's content."""
        return digest(hash_checkpoint(self.parent))

    def rounds(self) -> Iterator[RunRound]:
        """The rounds in order."""
        for i in range(len(self.recipe.rounds)):
            yield RunRound(self, i + 1)

    def round(self, number: int) -> RunRound:
        """One round by its number, from 1.

        Raises:
            RunError: the recipe has no such round.
        """
        if not 1 <= number <= len(self.recipe.rounds):
            raise RunError(
                f"round {number} was asked for; the recipe has {len(self.recipe.rounds)}",
                "give --round between 1 and that",
            )
        return RunRound(self, number)


@dataclass(frozen=True)
class RunRound:
    """One round of a run: its settings, its folders, and the model that it works around."""

    run: Run
    number: int

    @property
    def settings(self) -> Round:
        """Settings of all stages in this round."""
        return self.run.recipe.rounds[self.number - 1]

    @property
    def folder(self) -> Path:
        """Folder of the round."""
        return self.run.folder / f"round-{self.number}"

    @property
    def model(self) -> Path:
        """Checkpoint that this round cuts: the parent, or the child that the last round healed."""
        if self.number == 1:
            return self.run.parent
        return RunRound(self.run, self.number - 1).folder / "08-distill" / "child"

    @property
    def seed(self) -> int:
        """Seed of this round."""
        return (self.run.recipe.seed * 1000 + self.number) % SEEDS

    @property
    def model_name(self) -> str:
        """`model` as later readers find it: below the run folder, wherever that is moved."""
        inside = self.model.is_relative_to(self.run.folder)
        return str(self.model.relative_to(self.run.folder) if inside else self.model)

    def finished(self) -> list[Path]:
        """Folders of the finished stages, in the order of the walk."""
        folders = sorted(file.parent for file in self.folder.glob(f"*/{MANIFEST}"))
        return [folder for folder in folders if folder.suffix != ".partial"]

    def result(self, stage: str) -> Path:
        """Folder of a finished stage of this round.

        Raises:
            RunError: it is not there yet.
        """
        folder = self.folder / stage
        if not (folder / MANIFEST).is_file():
            raise RunError(f"{folder} is not there; this stage needs it", self._command(stage))
        return folder

    def checked(self, stage: str) -> Path:
        """As `result`, its checksums verified.

        Raises:
            RunError: it is not there, or damaged.
        """
        folder = self.result(stage)
        if problem := damage(folder):
            raise RunError(f"{folder}: {problem}", self._command(stage))
        return folder

    def _command(self, stage: str) -> str:
        return (
            f"run `fretsaw {word_of(stage)} RECIPE --out {self.run.folder} --round {self.number}` "
            "first, or `fretsaw compress`"
        )


@dataclass(frozen=True)
class Stage:
    """A stage: its folder's name, what it needs, and the function that fills the folder.

    Attributes:
        name: Folder name, such as ``04-score``.
        needs: Folder names of the stages of the same round that it reads.
        settings: Names of the recipe sections that change its result, such as ``score`` or
            ``search.budget``.
        body: Fills a folder; finds what an earlier, killed attempt has left there.
        texts: What gives the text that it reads.
        copies: Checkpoint whose files beside the weights it copies into its child.
        inputs: What changes its result besides, plain data by name.
    """

    name: str
    needs: tuple[str, ...]
    settings: tuple[str, ...]
    body: Callable[[RunRound, Path], None]
    texts: tuple[Callable[[RunRound], ReadText], ...] = ()
    copies: Callable[[RunRound], Path] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The stage's one word."""
        return word_of(self.name)


def word_of(folder_name: str) -> str:
    """The word of a stage by the name of its folder: ``score`` of ``04-score``."""
    return folder_name.split("-", 1)[-1]


def run_stage(stage: Stage, round_: RunRound) -> Path:
    """The stage's finished folder: as it is if nothing changed, else made now.

    Raises:
        RunError: a stage that it needs is missing.
        FretsawError: whatever the stage itself raises.
    """
    reporter = round_.run.reporter
    final = round_.folder / stage.name
    inputs = inputs_of(stage, round_)
    if stage.copies and final.exists() and have_only_files_changed(final, inputs):
        copy = recopied(final, stage.copies(round_), inputs=inputs)
        _move_aside(final, round_.run.folder)
        copy.rename(final)
        reporter.say(f"round {round_.number} {stage.word}: files beside the weights copied anew")
    if final.exists():
        problem = problem_with(final, inputs)
        if problem is None:
            reporter.say(f"round {round_.number} {stage.word}: done before, checksums hold")
            for warning in warnings_of(final):
                reporter.warn(warning)
            return final
        reporter.warn(f"round {round_.number} {stage.word}: {problem}; doing it again")
        _move_aside(final, round_.run.folder)
    partial = _open_partial(final, inputs, round_=round_)
    reporter.stage(round_.number, stage.word)
    with accounted(reporter) as account:
        stage.body(round_, partial)
    texts = {_purpose(text): known_text(text, round_).found.to_json() for text in stage.texts}
    write_manifest(partial, final.name, inputs=inputs, account=account(), texts=texts)
    partial.rename(final)  # a kill at any point costs nothing
    (final / STARTED).unlink()
    return final


@contextmanager
def accounted(reporter: Reporter) -> Iterator[Callable[[], Account]]:
    """Watch what is done inside: gives its account so far."""
    peak, started = watch_peak(), time.monotonic()
    with reporter.collect() as warnings:
        yield lambda: Account(time.monotonic() - started, peak(), tuple(warnings))


def inputs_of(stage: Stage, round_: RunRound) -> dict[str, Any]:
    """All that decides the result, as plain data: compared as a whole, named one by one."""
    recipe = round_.run.recipe
    settings = round_.settings
    inputs: dict[str, Any] = {"seed": round_.seed, "parent": round_.run.parent_digest}
    for name in stage.needs:
        inputs[name] = stage_digest(round_.result(name))
    if round_.number > 1:
        before = RunRound(round_.run, round_.number - 1)
        inputs["model"] = stage_digest(before.result("08-distill"))
    for name in stage.settings:
        section = recipe.compute if name == "compute" else attrgetter(name)(settings)
        inputs[f"recipe.{name}"] = section.model_dump(mode="json")
    if stage.texts:
        inputs["recipe.compute"] = recipe.compute.model_dump(mode="json", exclude={"threads"})
    for text in stage.texts:
        inputs[f"text.{_purpose(text)}"] = known_text(text, round_).digest
    inputs |= stage.inputs
    if stage.copies:
        inputs[FILES] = digest(hash_travelling(stage.copies(round_)))
    inputs["fretsaw"] = version("fretsaw")
    return inputs


def known_text(text: Callable[[RunRound], ReadText], round_: RunRound) -> KnownText:
    """What is known of the text that `text` gives in a round; read once a run."""
    key = (round_.number, _purpose(text))
    known = round_.run.texts
    if key not in known:
        read = text(round_)
        ids = hashlib.sha256(read.ids.numpy().tobytes()).hexdigest()
        known[key] = KnownText(ids, read.found, read.documents)
    return known[key]


def _purpose(text: Callable[[RunRound], ReadText]) -> str:
    return text.__name__.removesuffix("_text")


def problem_with(folder: Path, inputs: Mapping[str, Any]) -> str | None:
    """Why a finished folder cannot be used, in words; None if it can."""
    try:
        recorded = read_manifest(folder)["inputs"]
    except RunError:
        return "its manifest is missing or damaged"
    recorded.pop("recipe.data", None)  # older manifests have it; the token ids are what decides
    if changed := [k for k in {**recorded, **inputs} if recorded.get(k) != inputs.get(k)]:
        return f"its inputs changed ({', '.join(sorted(changed))})"
    return damage(folder)


def _move_aside(folder: Path, run: Path) -> None:
    kept = run / "replaced"
    kept.mkdir(exist_ok=True)
    names = (f"{folder.parent.name}-{folder.name}.{number}" for number in itertools.count(1))
    folder.rename(next(kept / name for name in names if not (kept / name).exists()))


def _open_partial(final: Path, inputs: Mapping[str, Any], *, round_: RunRound) -> Path:
    partial = final.with_name(final.name + ".partial")
    started = partial / STARTED
    reporter = round_.run.reporter
    if read_json(started) == inputs:
        reporter.say(f"{final.name}: going on where an earlier run stopped")
        return partial
    # A run killed between making the folder and writing what it started from has left nothing.
    if partial.exists() and any(not p.name.startswith(STARTED) for p in partial.iterdir()):
        reporter.warn(f"{final.name}: what an earlier run left had other inputs; moved aside")
        _move_aside(partial, round_.run.folder)
    partial.mkdir(parents=True, exist_ok=True)
    write_json(started, inputs)
    return partial


def read_json(file: Path) -> object:
    """Content of a JSON file; None if it is not there or damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
