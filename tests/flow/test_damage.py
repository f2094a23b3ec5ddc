"""Damage and changes in finished stages: noticed, said, redone; nothing is ever deleted."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest

from fretsaw.checkpoint.lineage import hash_file
from fretsaw.errors import RunError
from fretsaw.recipe import Recipe, load_recipe
from fretsaw.stages.compress import ROUND, compress, run_one
from fretsaw.stages.manifest import MANIFEST
from fretsaw.stages.progress import Reporter
from fretsaw.stages.run import Run, Stage, run_stage
from fretsaw.stages.standing import standing
from tests.flow.conftest import Finished
from tests.flow.pico_run import STAGES, Setting, contents, snapshot

AGAIN = re.compile(r"warning: round (\d) (\w+): (.*); doing it again")


@pytest.fixture
def run_copy(finished: Finished, tmp_path: Path) -> Path:
    """The finished run, to be damaged."""
    return Path(shutil.copytree(finished.out, tmp_path / "run"))


def _redone(said: str) -> dict[str, str]:
    """Stage of round 1 -> why it was done again, as told on stderr."""
    return {word: why for _, word, why in AGAIN.findall(said)}


def _first_round(out: Path, recipe: Recipe, *, upto: str) -> None:
    """The stages of round 1 up to one, as `compress` runs them."""
    run = Run(out, recipe, Reporter())
    for stage in ROUND:
        run_stage(stage, run.round(1))
        if stage.name == upto:
            return


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


HARMS = [(s, h) for s in STAGES[:-1] for h in ("flipped", "truncated", "gone", "manifest")]
HARMS.append((STAGES[-1], "flipped"))  # it trains again: once is enough


@pytest.mark.parametrize(("stage", "harm"), HARMS)
def test_damage_is_noticed_said_and_redone(
    finished: Finished,
    run_copy: Path,
    capsys: pytest.CaptureFixture[str],
    stage: str,
    harm: str,
) -> None:
    rng = random.Random(f"{stage} {harm}")
    folder = run_copy / "round-1" / stage
    results = [f for f in _files(folder) if f.name != MANIFEST]
    file = folder / MANIFEST if harm == "manifest" else rng.choice(results)
    whole = file.read_bytes()
    place = rng.randrange(len(whole))
    if harm == "gone":
        file.unlink()
    elif harm == "truncated":
        file.write_bytes(whole[:place])
    else:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])

    _first_round(run_copy, finished.setting.recipe, upto=stage)

    why = _redone(capsys.readouterr().err)
    name = str(file.relative_to(folder))
    expected = {
        "flipped": f"{name} does not match its checksum",
        "truncated": f"{name} does not match its checksum",
        "gone": f"{name} is missing",
        "manifest": "its manifest is missing or damaged",
    }[harm]
    assert why == {stage.split("-", 1)[1]: expected}
    assert contents(folder) == contents(finished.out / "round-1" / stage)
    kept = run_copy / "replaced" / f"round-1-{stage}.1"
    assert kept.is_dir(), "the damaged folder is kept"
    assert harm == "gone" or (kept / name).is_file()


def test_a_stage_redone_with_the_same_result_makes_nothing_later_stale(
    finished: Finished, run_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = run_copy / "round-1" / "04-score" / "scores.jsonl"
    scores.write_bytes(scores.read_bytes()[:-30])

    summary = compress(finished.setting.recipe, out=run_copy, reporter=Reporter())

    assert set(_redone(capsys.readouterr().err)) == {"score"}
    assert [line.kl for line in summary.lines] == [line.kl for line in finished.summary.lines]


def test_damage_to_the_parent_makes_everything_stale(
    finished: Finished, run_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = Path(shutil.copytree(finished.setting.parent, tmp_path / "parent"))
    shard = next(iter(sorted(parent.glob("*.safetensors"))))
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    recipe = finished.setting.changed(parent=str(parent))

    _first_round(run_copy, recipe, upto="01-calibrate")

    why = _redone(capsys.readouterr().err)
    assert why["describe"] == "its inputs changed (parent)"
    assert why["calibrate"] == "its inputs changed (00-describe, parent)"


CHANGES = [
    ("calibrate.sequences=6", "01-calibrate", "recipe.calibrate, text.calibration"),
    ("rank.min_tokens=9", "02-rank", "recipe.rank"),
    ("library.repair=none", "03-library", "recipe.library"),
    ("score.metric=loss", "04-score", "recipe.score"),
    ("search.n_best=2", "06-search", "recipe.search"),
    ("build.shard_bytes=1MB", "07-build", "recipe.build"),
]


@pytest.mark.parametrize(("override", "stage", "changed"), CHANGES)
def test_a_changed_key_makes_stale_what_depends_on_it(
    finished: Finished,
    run_copy: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    override: str,
    stage: str,
    changed: str,
) -> None:
    recipe = load_recipe(finished.setting.recipe_file, [override])

    _first_round(run_copy, recipe, upto=stage)

    assert _redone(capsys.readouterr().err) == {
        stage.split("-", 1)[1]: f"its inputs changed ({changed})"
    }
    assert (run_copy / "replaced" / f"round-1-{stage}.1" / MANIFEST).is_file()


def test_edited_text_is_noticed(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    _first_round(setting.out, setting.recipe, upto="01-calibrate")
    file = setting.text / "calibration.jsonl"
    file.write_text(file.read_text().replace(" a", " o"))
    capsys.readouterr()

    _first_round(setting.out, setting.recipe, upto="01-calibrate")

    assert _redone(capsys.readouterr().err) == {
        "calibrate": "its inputs changed (text.calibration)"
    }


def test_replaced_folders_pile_up_and_are_never_deleted(
    finished: Finished, run_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = run_copy / "round-1" / "03-library" / "variants.json"
    original = hash_file(variants)
    for number in range(3):
        variants.write_text(f"[{number}]")
        _first_round(run_copy, finished.setting.recipe, upto="03-library")
        assert hash_file(variants) == original
    replaced = run_copy / "replaced"
    (replaced / "round-1-03-library.1").rename(replaced / "put away")
    variants.write_text("[3]")
    _first_round(run_copy, finished.setting.recipe, upto="03-library")

    kept = {p.parent.name: p.read_text() for p in replaced.rglob("variants.json")}
    assert kept == {
        "put away": "[0]",
        "round-1-03-library.1": "[3]",
        "round-1-03-library.2": "[1]",
        "round-1-03-library.3": "[2]",
    }


def test_an_unfinished_stage_of_other_settings_is_kept_too(
    finished: Finished, run_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_copy / "round-1" / "04-score"
    partial = folder.with_name("04-score.partial")
    folder.rename(partial)
    (partial / "started.json").write_text(json.dumps({"seed": 99}))

    _first_round(run_copy, finished.setting.recipe, upto="04-score")

    assert contents(folder) == contents(finished.out / "round-1" / "04-score")
    assert (run_copy / "replaced" / "round-1-04-score.partial.1" / "scores.jsonl").is_file()
    assert not partial.exists()


def test_a_stage_alone_does_not_read_what_is_damaged(finished: Finished, run_copy: Path) -> None:
    scores = run_copy / "round-1" / "04-score" / "scores.jsonl"
    scores.write_bytes(scores.read_bytes()[:-30])
    before = snapshot(run_copy / "round-1" / "06-search")

    with pytest.raises(RunError, match=r"scores\.jsonl does not match its checksum") as error:
        run_one("search", finished.setting.recipe, out=run_copy, reporter=Reporter(is_quiet=True))

    assert "fretsaw score RECIPE" in error.value.hint
    assert snapshot(run_copy / "round-1" / "06-search") == before


def test_extra_files_of_the_user_are_left_alone(finished: Finished, run_copy: Path) -> None:
    notes = run_copy / "round-1" / "04-score" / "notes.txt"
    notes.write_text("mine")

    _first_round(run_copy, finished.setting.recipe, upto="06-search")

    assert notes.read_text() == "mine"


def test_f14_an_unrelated_file_of_the_parent_makes_nothing_stale_and_a_template_reaches_the_child(
    finished: Finished, run_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = Path(shutil.copytree(finished.setting.parent, tmp_path / "parent"))
    recipe = finished.setting.changed(parent=str(parent))
    (parent / "trainer_state.json").write_text("{}")
    before = snapshot(run_copy)
    compress(recipe, out=run_copy, reporter=Reporter())
    assert _redone(capsys.readouterr().err) == {}
    results = [name for name in before if name.startswith("round-")]
    assert {name: before[name] for name in results} == {
        name: state for name, state in snapshot(run_copy).items() if name in results
    }

    (parent / "chat_template.jinja").write_text("{{ messages }}")
    (parent / "LICENSE").write_text("free")
    build = next(stage for stage in ROUND if stage.word == "build")
    assert standing(build, Run(run_copy, recipe, Reporter()).round(1)).state == "done"
    compress(recipe, out=run_copy, reporter=Reporter())

    said = capsys.readouterr().err
    assert _redone(said) == {}
    assert said.count("files beside the weights copied anew") == 4
    for number in (1, 2):
        for stage in ("07-build", "08-distill"):
            child = run_copy / f"round-{number}" / stage / "child"
            assert (child / "chat_template.jinja").read_text() == "{{ messages }}"
            old = run_copy / "replaced" / f"round-{number}-{stage}.1" / "child"
            assert not (old / "LICENSE").exists()
            for name in ("config.json", "model.safetensors.index.json"):
                assert hash_file(child / name) == hash_file(old / name)

    (parent / "LICENSE").unlink()
    compress(recipe, out=run_copy, reporter=Reporter())
    assert not list(run_copy.glob("round-*/*/child/LICENSE"))
    compress(recipe, out=run_copy, reporter=Reporter())
    assert "copied anew" not in capsys.readouterr().err.rsplit("check", 1)[-1]


def test_stages_are_the_eight_of_the_walk() -> None:
    assert [stage.name for stage in ROUND] == list(STAGES)
    assert all(isinstance(stage, Stage) for stage in ROUND)
