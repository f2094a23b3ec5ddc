"""Killed with SIGKILL at random moments inside each stage and started again: the same result.

A moment is a number of Python calls since the stage began: random, but the same in every test
run, however busy the machine is. A last test kills by the clock instead, in the middle of calls.
Processes are forked from a clean server that has imported everything and has run nothing.
"""

from __future__ import annotations

import copy
import functools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from tqdm import tqdm  # type: ignore[import-untyped]

from fretsaw.recipe import resolve_recipe
from fretsaw.stages import distill as distill_stage
from fretsaw.stages.compress import compress, run_one
from fretsaw.stages.manifest import MANIFEST, STARTED
from fretsaw.stages.run import run_stage
from fretsaw.stages.score import SCORES
from fretsaw.train.journal import Journal, Tally
from fretsaw.train.plan import DistillSettings
from tests.flow.conftest import Finished
from tests.flow.pico_run import QUIET, STAGES, Setting, contents

pytestmark = pytest.mark.dist

tqdm.get_lock()  # made once, in the server: killed processes would leave theirs behind

TIMEOUT_S = 300.0
MOMENTS = ((0.02, 0.98), (0.75, 0.98))
"""Each stage is killed in each of these parts of its uninterrupted length, unless it is done."""


class Watched(NamedTuple):
    """Ends a process in the middle of a stage, or only counts."""

    stage: str | None = None
    calls: int = 0


class Clock:
    """Counts the Python calls in each stage; kills the process at the chosen one.

    A stage that ends before is killed right after it has got its name.
    """

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.counts: Counter[str] = Counter()
        self._stage: str | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code is run_stage.__code__ and event in ("call", "return"):
            if event == "return" and self._stage == self.watched.stage:
                os.kill(os.getpid(), signal.SIGKILL)
            self._stage = frame.f_locals["stage"].name if event == "call" else None
        if self._stage is None or event != "call":
            return
        self.counts[self._stage] += 1
        if self._stage == self.watched.stage and self.counts[self._stage] >= self.watched.calls:
            os.kill(os.getpid(), signal.SIGKILL)


def _compress(data: dict[str, Any], out: Path, watched: Watched, log: Path) -> None:
    """In a process of its own: checkpoint after every step, and say where training began."""
    settings = functools.partial(DistillSettings, checkpoint_s=0.0)
    setattr(distill_stage, DistillSettings.__name__, settings)
    resume = Journal.resume

    def logged(journal: Journal) -> tuple[Path | None, Tally]:
        found, tally = resume(journal)
        with log.open("a") as stream:
            stream.write(f"{found.name if found else 'the cut'}\n")
        return found, tally

    setattr(Journal, resume.__name__, logged)
    clock = Clock(watched)
    sys.setprofile(clock)
    compress(resolve_recipe(data), out=out, reporter=QUIET)
    sys.setprofile(None)
    log.with_name("counts.json").write_text(json.dumps(clock.counts))


class Runs:
    """Starts runs of one recipe in processes of their own."""

    def __init__(self, data: dict[str, Any], folder: Path) -> None:
        self.data = data
        self.folder = folder
        self.log = folder / "resumed.txt"
        self.whole = folder / "whole"
        self.whole_s = 0.0
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])

    @property
    def counts(self) -> dict[str, int]:
        """Calls in each stage of the last run that came to its end."""
        counts: dict[str, int] = json.loads((self.folder / "counts.json").read_text())
        return counts

    def start(self, out: Path, watched: Watched | None = None) -> ForkServerProcess:
        """A process that runs the recipe into `out`."""
        arguments = (self.data, out, watched or Watched(), self.log)
        process = self._context.Process(target=_compress, args=arguments)
        process.start()
        return process

    def finish(self, out: Path, watched: Watched | None = None) -> int | None:
        """Exit code of a process that was left alone; minus the signal that ended it."""
        process = self.start(out, watched)
        process.join(TIMEOUT_S)
        assert process.exitcode is not None, "it hangs"
        return process.exitcode


def one_round(setting: Setting) -> dict[str, Any]:
    """The first round with all that can be cut, and a probed learning rate."""
    data = copy.deepcopy(setting.data)
    first = data["rounds"][0]
    first["library"]["moe"]["top_k"] = [1]
    first["search"]["budget"]["active_experts"] = "75%"
    first["distill"] = {"learning_rate": "auto"}
    return data | {"rounds": [first]}


class Killed(NamedTuple):
    """An uninterrupted run, and one that was killed in each stage."""

    whole: Path
    killed: Path
    kills: Counter[str]
    resumed: list[str]


@pytest.fixture(scope="module")
def runs(pristine: Setting, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    runs = Runs(one_round(pristine), tmp_path_factory.mktemp("killed"))
    started = time.monotonic()
    assert runs.finish(runs.whole) == 0
    runs.whole_s = time.monotonic() - started
    runs.log.unlink()
    return runs


@pytest.fixture(scope="module")
def killed(runs: Runs) -> Killed:
    rng = random.Random(3)
    out = runs.folder / "killed"
    counts = runs.counts
    kills: Counter[str] = Counter()
    for stage in STAGES:
        for low, high in MOMENTS:
            moment = Watched(stage, int(counts[stage] * rng.uniform(low, high)))
            assert runs.finish(out, moment) == -signal.SIGKILL
            kills[stage] += 1
            if (out / "round-1" / stage).exists():
                break
    assert runs.finish(out) == 0
    return Killed(runs.whole, out, kills, runs.log.read_text().split("\n"))


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_was_killed_and_ends_in_the_same_bits(killed: Killed, stage: str) -> None:
    assert killed.kills[stage] >= 1
    whole = contents(killed.whole / "round-1" / stage)
    assert whole
    assert contents(killed.killed / "round-1" / stage) == whole


def test_training_went_on_from_its_last_checkpoint(killed: Killed) -> None:
    assert any(name.startswith("checkpoint-") for name in killed.resumed)


def test_nothing_is_left_over(killed: Killed) -> None:
    left = sorted(p.name for p in (killed.killed / "round-1").iterdir())
    assert left == list(STAGES)
    assert not (killed.killed / "replaced").exists(), "going on is no replacement"


def test_killed_by_the_clock_again_and_again(runs: Runs) -> None:
    rng = random.Random(4)
    out = runs.folder / "clock"
    for _ in range(3):
        process = runs.start(out)
        process.join(rng.uniform(0.05, 0.9) * runs.whole_s)
        if process.exitcode is None:
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            assert process.exitcode == -signal.SIGKILL
    assert runs.finish(out) == 0

    assert contents(out / "round-1") == contents(runs.whole / "round-1")


@pytest.mark.parametrize("rows", [1, 3, 6])
def test_scoring_goes_on_in_the_middle_of_a_pass(
    finished: Finished, tmp_path: Path, rows: int
) -> None:
    out = Path(shutil.copytree(finished.out, tmp_path / "run"))
    whole = finished.out / "round-1" / "04-score" / SCORES
    partial = out / "round-1" / "04-score.partial"
    (out / "round-1" / "04-score").rename(partial)
    manifest = json.loads((partial / MANIFEST).read_text())
    (partial / MANIFEST).unlink()
    (partial / STARTED).write_text(json.dumps(manifest["inputs"]))
    lines = whole.read_bytes().splitlines(keepends=True)
    (partial / SCORES).write_bytes(b"".join(lines[:rows]) + lines[rows][:40])

    run_one("score", finished.setting.recipe, out=out, reporter=QUIET)

    assert (out / "round-1" / "04-score" / SCORES).read_bytes() == whole.read_bytes()
