"""`fretsaw quantize`: calibrated on text, written aside, resumed when killed, never overwriting."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import Planned
from fretsaw.cli import main
from fretsaw.core.precision import kind_of
from fretsaw.errors import (
    CheckpointError,
    DataError,
    FretsawError,
    InfeasibleError,
    RecipeError,
    RunError,
)
from fretsaw.quant import export
from fretsaw.quant.formats import Fp8, quantize_fp8
from fretsaw.quant.reader import QuantizedCheckpoint
from fretsaw.quant.scales import Method
from fretsaw.reports.quantized import Quantized
from fretsaw.runtime.activations import measure_activations
from fretsaw.runtime.fake import fake_quantized
from fretsaw.runtime.load import load_model
from fretsaw.stages import quantized_healing, quantized_writing
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantize import quantize
from fretsaw.stages.quantize_options import QuantizeOptions, precision_of
from fretsaw.stages.quantized_formats import FORMATS_FILE
from fretsaw.stages.quantized_writing import CALIBRATION, EVALUATION
from fretsaw.train.distill import DistillResult, distill
from fretsaw.train.metrics import evaluate_kl
from tests.pico import write_pico_checkpoint

QUIET = Reporter(is_quiet=True)
SHARD = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize")
    write_pico_checkpoint(folder / "child", seed=5, heterogeneous=True)
    write_pico_checkpoint(folder / "even", seed=5)
    words = "the search for one more thing is the art of it and so on "
    lines = [json.dumps({"text": f"{i} {words * (1 + i % 7)}"}) for i in range(50)]
    (folder / "text").mkdir()
    for split in ("train", "calibration", "validation"):
        (folder / "text" / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def options(folder: Path, **changes: object) -> QuantizeOptions:
    values: dict[str, object] = {
        "to": "fp8",
        "text": folder / "text",
        "sequences": 4,
        "sequence_length": 32,
        "shard_bytes": SHARD,
    }
    return QuantizeOptions(**{**values, **changes})  # type: ignore[arg-type]


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_the_child_of_unequal_blocks_opens_quantised(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = quantize(folder / "child", out=out, options=options(folder), reporter=QUIET)

    found = QuantizedCheckpoint(out)
    found.check()
    assert found.shape == Checkpoint(folder / "child").shape
    stored = sum(Planned("", p.dtype, p.shape).num_bytes for p in found.stored.values())
    assert told.weights_bytes == stored < told.source_bytes
    assert told.num_quantized == len(found.formats) > 0
    assert told.num_tokens == 4 * 32
    ids = torch.arange(3, 40)[None]
    assert load_model(found)(ids).logits.isfinite().all()
    names = {p.name for p in out.iterdir()}
    assert {"config.json", "hf_quant_config.json", "tokenizer.json", CALIBRATION} <= names
    assert {p.suffix for p in out.iterdir()} <= {".json", ".safetensors", ".py", ".md"}
    assert list(tmp_path.iterdir()) == [out]


class Killed(BaseException):
    """As good as SIGKILL: nothing tidies up behind it."""


def test_a_killed_run_goes_on_where_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize(folder / "even", out=tmp_path / "whole", options=options(folder), reporter=QUIET)
    calls = {"quantised": 0, "calibrated": 0}
    real, measure = quantize_fp8, measure_activations

    def dying(weight: torch.Tensor, *, scale: torch.Tensor) -> Fp8:
        calls["quantised"] += 1
        if calls["quantised"] == 15:
            raise Killed
        return real(weight, scale=scale)

    def counted(*args: object, **kwargs: object) -> object:
        calls["calibrated"] += 1
        return measure(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(export, "quantize_fp8", dying)
    monkeypatch.setattr(quantized_writing, "measure_activations", counted)
    out = tmp_path / "out"
    with pytest.raises(Killed):
        quantize(folder / "even", out=out, options=options(folder), reporter=QUIET)
    assert not out.exists()
    done = len(list(tmp_path.glob("out.partial/*.safetensors")))
    assert done > 0
    before = calls["quantised"]
    quantize(folder / "even", out=out, options=options(folder), reporter=QUIET)

    assert calls["calibrated"] == 1, "calibration is not done again"
    assert calls["quantised"] - before < 22, "whole shards are not written again"
    assert content(out) == content(tmp_path / "whole")


def test_other_settings_start_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(quantized_writing, "_check", _die)
        with pytest.raises(Killed):
            quantize(folder / "even", out=out, options=options(folder), reporter=QUIET)
    changed = options(folder, to="nvfp4", seed=1)
    quantize(folder / "even", out=out, options=changed, reporter=QUIET)
    quantize(folder / "even", out=tmp_path / "fresh", options=changed, reporter=QUIET)
    assert content(out) == content(tmp_path / "fresh")


def _die(*_: object) -> None:
    raise Killed


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(RunError, match="is there already"):
        quantize(folder / "even", out=taken, options=options(folder), reporter=QUIET)
    other = tmp_path / "free.partial"
    other.mkdir()
    (other / "diary.txt").write_text("mine")
    with pytest.raises(RunError, match="holds something else"):
        quantize(folder / "even", out=tmp_path / "free", options=options(folder), reporter=QUIET)
    assert (other / "diary.txt").read_text() == "mine"


def test_what_is_quantised_is_not_quantised_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantize(folder / "even", out=out, options=options(folder), reporter=QUIET)
    with pytest.raises(CheckpointError, match="is quantised already"):
        quantize(out, out=tmp_path / "again", options=options(folder), reporter=QUIET)


def test_experts_without_tokens_are_listed(folder: Path, tmp_path: Path) -> None:
    """R45: and have finite positive scales all the same."""
    few = options(folder, to="nvfp4", sequences=1, sequence_length=2, layout="compressed-tensors")
    told = quantize(folder / "even", out=tmp_path / "out", options=few, reporter=QUIET)
    assert set(told.borrowed) == {1, 3}
    found = QuantizedCheckpoint(tmp_path / "out")
    for name in found.formats:
        scale = found.input_scale(name)
        assert scale is not None
        assert 0 < float(scale) < float("inf")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"text": None}, DataError, "inputs of unknown size"),
        ({"text": Path("/nowhere.txt")}, DataError, "does not exist"),
        ({"sequence_length": 10**6}, DataError, "too short"),
        ({"to": "nvfp5"}, RecipeError, "unknown precision 'nvfp5'"),
        ({"to": "own.yaml"}, RecipeError, "own.yaml does not exist"),
        ({"to": "bf16"}, RecipeError, "quantises nothing"),
        ({"to": "mxfp4"}, RecipeError, "mxfp4"),
        ({"to": "auto", "bits": 3.0}, InfeasibleError, "takes 3 bits"),
        ({"to": "auto", "bits": 8.0, "sequences": 10**4}, DataError, "judges on others"),
        ({"teacher": Path("/nowhere")}, RecipeError, "no teacher at /nowhere"),
    ],
)
def test_what_cannot_be_done_is_refused(
    folder: Path,
    tmp_path: Path,
    changes: dict[str, object],
    error: type[FretsawError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        quantize(
            folder / "even",
            out=tmp_path / "out",
            options=options(folder, **changes),
            reporter=QUIET,
        )
    assert list(tmp_path.iterdir()) == [], "a mistake leaves nothing behind"


@pytest.mark.parametrize("name", ["int4", "FP8", "nvpf4"])
def test_u20_an_unknown_format_lists_all_that_are_written(
    folder: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(RecipeError, match=f"unknown precision '{name}'") as caught:
        quantize(folder / "even", out=tmp_path / "out", options=options(folder, to=name))
    assert "fp8, nvfp4, nvfp4-w4a16, auto" in str(caught.value.hint)


def test_loss_and_divergence_are_measured_as_a_gpu_would_compute(
    folder: Path, tmp_path: Path
) -> None:
    exact = load_model(Checkpoint(folder / "even"))
    told = quantize(
        folder / "even",
        out=tmp_path / "out",
        options=options(folder, to="nvfp4", heal_sequence_length=16, evaluation_sequences=8),
        reporter=QUIET,
    )
    assert told.from_source is not None
    assert 0 < told.from_source.kl < 0.5
    assert told.from_source.tokens == 8 * 16
    printed = str(told)
    assert f"KL {told.from_source.kl:.4f}" in printed
    assert f"loss {told.from_source.loss:.4f}" in printed
    assert Quantized.from_json(json.loads(json.dumps(told.to_json()))) == told
    kept = json.loads((tmp_path / "out" / EVALUATION).read_text())
    assert kept["from_source"]["kl"] == told.from_source.kl
    ids = torch.arange(3, 40)[None]
    with fake_quantized(Checkpoint(tmp_path / "out")) as model:
        assert evaluate_kl(model, exact, ids=ids, batch_size=1).kl > 0


def test_without_held_out_text_it_is_written_and_not_measured(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").mkdir()
    shutil.copy(folder / "text" / "calibration.jsonl", tmp_path / "text")
    for name, changes in (("a", {"text": tmp_path / "text"}), ("b", {"is_evaluated": False})):
        chosen = options(folder, **changes)
        told = quantize(folder / "even", out=tmp_path / name, options=chosen)
        assert told.from_source is None
        assert not (tmp_path / name / EVALUATION).exists()
    assert "will not be measured" in capsys.readouterr().err


def test_healed_under_rounding_it_is_nearer_to_its_teacher(folder: Path, tmp_path: Path) -> None:
    plain = options(folder, to="nvfp4", heal_sequence_length=32)
    healing = options(
        folder,
        to="nvfp4",
        teacher=folder / "even",
        heal_tokens=16 * 8 * 32,
        heal_sequence_length=32,
        learning_rate=3e-4,
    )
    found = {}
    for name, chosen in (("plain", plain), ("healed", healing)):
        told = quantize(folder / "even", out=tmp_path / name, options=chosen, reporter=QUIET)
        assert told.from_source is not None
        found[name] = told.from_source.kl
    assert found["healed"] < 0.9 * found["plain"]
    assert {p.name for p in (tmp_path / "healed").iterdir()} == {
        p.name for p in (tmp_path / "plain").iterdir()
    }


@pytest.mark.parametrize("method", ["max", "mse", "lsq"])
def test_what_is_written_is_what_was_learned_under(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    """The file gives the very KL that healing kept, whatever its scales come from."""
    found: dict[str, Any] = {}

    def spy(*args: Any, **kwargs: Any) -> DistillResult:
        found["ids"], found["result"] = kwargs["validation_ids"], distill(*args, **kwargs)
        return found["result"]

    monkeypatch.setattr(quantized_healing, "distill", spy)
    own = tmp_path / "own.yaml"
    own.write_text("experts: nvfp4\nattention: nvfp4\nmamba_projection: fp8\n")
    healing = options(
        folder,
        to=str(own),
        method=method,
        teacher=folder / "even",
        heal_tokens=16 * 8 * 32,
        heal_sequence_length=32,
        learning_rate=1e-3,
    )
    told = quantize(folder / "even", out=tmp_path / "out", options=healing, reporter=QUIET)
    assert found["result"].best_step > 0
    teacher = load_model(Checkpoint(folder / "even"))
    with fake_quantized(Checkpoint(tmp_path / "out")) as model:
        written = evaluate_kl(model, teacher, ids=found["ids"], batch_size=8)
    assert written.kl == found["result"].after.kl
    assert told.from_source is not None
    assert told.from_source.kl == written.kl


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None}, "a teacher needs text"),
        ({"method": "lsq", "teacher": None}, "there is no teacher"),
        ({"heal_tokens": 1000, "teacher": None}, "heal_tokens is 1000, and there is no teacher"),
        ({"learning_rate": 1e-3, "teacher": None}, "learning_rate is 0.001, and there is no"),
    ],
)
def test_a_teacher_needs_text_and_learning_needs_a_teacher(
    folder: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        options(folder, **{"teacher": folder / "even", **changes})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "magic"),
        ("layout", "gguf"),
        ("dtype", "float64"),
        ("kv", "int3"),
        ("percentile", 0.0),
    ],
)
def test_words_that_mean_nothing_are_refused(folder: Path, name: str, value: object) -> None:
    with pytest.raises(RecipeError, match=name):
        options(folder, **{name: value})


def test_formats_by_sensitivity(folder: Path, tmp_path: Path) -> None:
    """The bits that were asked for, and nearer to the model than one format for all of a kind."""
    auto = options(folder, to="auto", bits=8.1, kv="bf16", judge_sequences=8)
    result = quantize(folder / "even", out=tmp_path / "auto", options=auto, reporter=QUIET)
    found = QuantizedCheckpoint(tmp_path / "auto")
    told = json.loads((tmp_path / "auto" / FORMATS_FILE).read_text())
    assert told["bits"] <= 8.1
    chosen = {(o["block"], o["kind"]): o["number_format"] for o in told["chosen"]}
    assert {(o.block, o.kind): o.number_format for o in result.chosen} == chosen
    rows = [line.split() for line in str(result).splitlines()]
    assert any(row[:2] == ["experts", chosen[1, "experts"]] for row in rows)
    assert len(set(chosen.values())) > 1
    for name, row in found.matrices:
        if row.part == "block":
            assert row.block is not None
            expected = chosen[row.block, kind_of(row.tensor, part=row.part)]
            assert found.formats.get(name, "bf16") == expected
    wide = json.loads((tmp_path / "auto" / FORMATS_FILE).read_text())["options"]
    by_place = {(o["block"], o["kind"], o["number_format"]): o["kl"] for o in wide}
    places = {(block, kind) for block, kind, _ in by_place}
    assert all(by_place[*p, "fp8"] < by_place[*p, "nvfp4"] for p in places)
    assert all(by_place[*p, "bf16"] == 0 for p in places)


def test_fewer_bits_than_there_are_formats_for(folder: Path, tmp_path: Path) -> None:
    auto = options(folder, to="auto", bits=3.0)
    with pytest.raises(InfeasibleError, match=r"takes 3 bits per weight: the smallest takes 4\.\d"):
        quantize(folder / "even", out=tmp_path / "auto", options=auto, reporter=QUIET)


@pytest.mark.parametrize(
    "changes", [{"to": "auto"}, {"bits": 5.0}, {"to": "auto", "bits": 5.0, "text": None}]
)
def test_auto_needs_bits_and_text(folder: Path, changes: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match=r"bits|text"):
        options(folder, **changes)


def test_ones_own_precision(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("experts: nvfp4\nweight_only: [experts]\nattention: fp8\n")
    found = precision_of(QuantizeOptions(to=str(file), kv="bf16"))
    assert (found.name, found.kv, found.quantised) == ("mine", "bf16", ("experts", "attention"))
    file.write_text("- experts\n")
    with pytest.raises(RecipeError, match="holds no precision"):
        precision_of(QuantizeOptions(to=str(file)))


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fretsaw", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return int(exit_.value.code or 0), capsys.readouterr().out

    return run


def test_the_command(folder: Path, tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    shutil.copytree(folder / "even", tmp_path / "child")
    arguments: list[object] = ["--to", "nvfp4", "--text", folder / "text", "--sequences", 1]
    arguments += ["--sequence-length", 2, "--method", "mse", "--power-of-two-kv", "--quiet"]
    code, out = command("quantize", tmp_path / "child", "--out", tmp_path / "a", *arguments)
    assert code == 0
    assert "22 weights quantised (nvfp4)" in out
    assert "experts had too few of the 2 tokens" in out
    code, out = command(
        "quantize", tmp_path / "child", "--out", tmp_path / "b", *arguments, "--json"
    )
    told = json.loads(out)
    assert (code, told["num_quantized"], told["precision"]) == (0, 22, "nvfp4")
    found = QuantizedCheckpoint(tmp_path / "a")
    keys = [name for name in found.stored if name.endswith(("k_scale", "v_scale"))]
    scales = [float(found.cache_scale(name)) for name in keys]
    assert [s for s in scales if s.hex().startswith(("0x1.0000000000000p", "0x1p"))] == scales
    assert len(scales) == 2
