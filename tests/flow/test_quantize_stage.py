"""`quantize` as the last stages of a run: made, measured, shown, skipped, resumed, redone alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.errors import FretsawError, RecipeError
from fretsaw.quant.reader import QuantizedCheckpoint
from fretsaw.recipe import resolve_recipe
from fretsaw.reports.summary import Summary
from fretsaw.runtime.fake import fake_quantized
from fretsaw.runtime.load import load_model
from fretsaw.stages import quantized_healing, quantized_writing
from fretsaw.stages.compress import compress
from fretsaw.stages.estimate import estimate_run
from fretsaw.stages.manifest import read_manifest
from fretsaw.train.metrics import evaluate_kl
from tests.flow.conftest import Said
from tests.flow.pico_run import QUIET, Setting, contents, snapshot
from tests.views import pico_ids

HEALED = {"to": ["nvfp4"], "method": "mse", "heal_tokens": 256, "learning_rate": 1e-3}


class Killed(BaseException):
    """As good as SIGKILL: nothing tidies up behind it."""


def one_round(setting: Setting) -> Setting:
    """One round, whose children fit NVFP4: rows of a multiple of 16 numbers."""
    setting.data["rounds"] = setting.data["rounds"][:1]
    setting.data["rounds"][0]["library"]["moe"]["ffn"] = [16]
    setting.data["rounds"][0]["search"]["random_choices"] = 0
    setting.data["library"]["granularity"]["ffn"] = 16
    return setting


@pytest.fixture(scope="module")
def plain(pristine: Setting, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A finished run without quantised children, to copy."""
    setting = one_round(pristine.copy(tmp_path_factory.mktemp("plain")))
    compress(setting.recipe, out=setting.out, reporter=QUIET)
    return setting


@pytest.fixture
def started(plain: Setting, tmp_path: Path) -> Setting:
    """The same run in a folder of its own, all but its last stages done."""
    shutil.copytree(plain.out, tmp_path / "run")
    setting = Setting(plain.folder)
    setting.data, setting.out = plain.data, tmp_path / "run"
    return setting


def run(setting: Setting, **quantize: Any) -> Summary:
    return compress(setting.changed(quantize=quantize), out=setting.out, reporter=QUIET)


def test_each_format_is_a_measured_checkpoint_of_the_last_child(started: Setting) -> None:
    summary = run(started, to=["fp8", "auto"], bits=9.0, kv_dtype="bf16")
    assert [one.precision for one in summary.quantized] == ["fp8", "auto"]
    folder = started.out.resolve() / "round-1" / "09-quantize-fp8"
    first = summary.quantized[0]
    assert first.folder == folder / "child"
    checkpoint = QuantizedCheckpoint(first.folder)
    checkpoint.check()
    assert not checkpoint.said.has_fp8_cache
    assert checkpoint.shape == Checkpoint(summary.child).shape
    assert {"WHO_CAN_LOAD.md", "tokenizer.json"} <= {f.name for f in first.folder.iterdir()}
    inputs = read_manifest(folder)["inputs"]
    assert {"08-distill", "text.calibration", "text.validation", "recipe.quantize"} <= set(inputs)
    assert first.from_source is not None
    assert first.from_parent is not None
    assert first.from_parent.other_loss == summary.lines[0].loss
    assert first.from_source.other_loss == pytest.approx(summary.lines[-1].loss, abs=1e-4)
    ids = pico_ids(9, sequences=4)
    with fake_quantized(Checkpoint(first.folder)) as model:
        source = load_model(Checkpoint(summary.child))
        assert 0 < evaluate_kl(model, source, ids=ids, batch_size=4).kl < 0.5
    printed = str(summary)
    assert f"{first.from_parent.kl:.4f}" in printed
    assert str(first.folder) in printed
    assert summary.to_json()["quantized"][0]["from_source"]["kl"] == first.from_source.kl
    page = (started.out / "report" / "index.html").read_text()
    assert "In fewer bits" in page
    assert f"{first.from_source.kl:.4f}" in page


def test_nothing_is_quantised_by_default(plain: Setting) -> None:
    assert not list(plain.out.glob("round-*/09-*"))
    assert "In fewer bits" not in (plain.out / "report" / "index.html").read_text()


def test_what_is_done_is_skipped_and_a_change_redoes_only_what_it_concerns(
    started: Setting,
) -> None:
    run(started, to=["fp8"])
    before = snapshot(started.out / "round-1")
    run(started, to=["fp8", "nvfp4"])
    after = snapshot(started.out / "round-1")
    assert {name: after[name] for name in before} == before
    run(started, to=["fp8", "nvfp4"], method="mse", kv_dtype="bf16")
    redone = snapshot(started.out / "round-1")
    same = {name for name in after if redone.get(name) == after[name]}
    assert {n for n in after if "09-quantize" not in n} <= same
    assert not any("manifest" in name and "09-quantize" in name for name in same)
    kept = {p.name for p in (started.out / "replaced").iterdir()}
    assert kept == {"round-1-09-quantize-fp8.1", "round-1-09-quantize-nvfp4.1"}


def test_killed_while_measuring_it_is_not_healed_again(
    started: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    distill = quantized_healing.distill
    counted = lambda *args, **kwargs: (calls.append(1), distill(*args, **kwargs))[1]  # noqa: E731
    monkeypatch.setattr(quantized_healing, "distill", counted)
    with monkeypatch.context() as patch:
        patch.setattr(quantized_writing, "HeldOut", _die)
        with pytest.raises(Killed):
            run(started, **HEALED)
    assert (started.out / "round-1" / "09-quantize-nvfp4.partial" / "child").is_dir()
    run(started, **HEALED)
    assert len(calls) == 1
    resumed = contents(started.out / "round-1" / "09-quantize-nvfp4")
    assert not any("healed" in name or "training" in name for name in resumed)
    shutil.rmtree(started.out / "round-1" / "09-quantize-nvfp4")
    run(started, **HEALED)
    assert contents(started.out / "round-1" / "09-quantize-nvfp4") == resumed


def _die(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize(
    ("quantize", "message"),
    [
        ({"to": ["int4"]}, "unknown precision 'int4'"),
        ({"to": ["bf16"]}, "'bf16' quantises nothing"),
        ({"to": "fp8"}, "expected a list"),
        ({"to": ["fp8", "fp8"]}, "fp8 is there twice"),
        ({"to": ["a/x.yaml", "b/x.yml"]}, "x is there twice"),
        ({"to": ["auto"]}, "auto and bits go together"),
        ({"to": ["fp8"], "bits": 5}, "auto and bits go together"),
        ({"to": ["nvfp4"], "method": "lsq"}, "learned while healing"),
        ({"to": ["fp8"], "heal_tokens": -1}, "at least 0"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(
    plain: Setting, quantize: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        resolve_recipe(plain.data | {"quantize": quantize})


def test_a_form_that_a_format_does_not_fit_is_refused_before_the_run(
    pristine: Setting, tmp_path: Path
) -> None:
    setting = pristine.copy(tmp_path)
    setting.data["quantize"] = {"to": ["nvfp4"]}
    with pytest.raises(FretsawError, match=r"quantize.to nvfp4: block 1 .*24") as caught:
        compress(setting.recipe, out=setting.out, reporter=QUIET)
    assert "multiple of 16" in str(caught.value.hint)
    assert not list(setting.out.glob("round-*"))


@pytest.mark.parametrize("name", ["gone.yaml", "text.yaml", "idle.yaml"])
def test_a_file_that_is_no_precision_for_this_model_is_refused_before_the_run(
    plain: Setting, tmp_path: Path, name: str
) -> None:
    (tmp_path / "text.yaml").write_text("just words")
    (tmp_path / "idle.yaml").write_text("mlp: fp8")
    recipe = plain.changed(quantize={"to": [str(tmp_path / name)]})
    with pytest.raises(RecipeError, match=r"does not exist|holds no precision|the model has none"):
        compress(recipe, out=tmp_path / "run", reporter=QUIET)
    assert not list((tmp_path / "run").glob("round-*"))


def test_the_dry_run_has_it(plain: Setting, tmp_path: Path, command: Callable[..., Said]) -> None:
    recipe = plain.changed(quantize={"to": ["fp8", "nvfp4"], "heal_tokens": 512})
    estimate = estimate_run(recipe, out=tmp_path / "run")
    without = estimate_run(plain.recipe, out=tmp_path / "run")
    stages = {line.stage: line for line in estimate.lines}
    assert "healed on 512" in stages["quantize-nvfp4"].what
    assert stages["quantize-nvfp4"].seconds > 0
    assert stages["quantize-nvfp4"].state == "to do"
    more = estimate.peak_disk_bytes - without.peak_disk_bytes
    assert more > 0
    said = command(
        "compress",
        plain.recipe_file,
        "--out",
        tmp_path / "run",
        "--dry-run",
        "--set",
        "quantize.to=[fp8]",
    )
    assert said.code == 0
    assert "quantize-fp8" in said.out
    assert not (tmp_path / "run" / "round-1").exists()


def test_the_result_is_plain_data(started: Setting) -> None:
    run(started, to=["fp8"])
    file = started.out / "round-1" / "09-quantize-fp8" / "result.json"
    data = json.loads(file.read_text())
    assert data["folder"] == "child"
    assert data["from_parent"]["tokens"] == data["from_source"]["tokens"] == 4 * 32
