"""A whole run of two rounds: what it leaves, and that what it leaves is what it says."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fretsaw
from fretsaw.checkpoint.child import cut, plan_child
from fretsaw.checkpoint.contents import LINEAGE_NAME
from fretsaw.checkpoint.lineage import hash_checkpoint, hash_file
from fretsaw.checkpoint.random_weights import write_random_checkpoint
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.verify import verify_files
from fretsaw.errors import RunError
from fretsaw.pricing.memory import model_costs
from fretsaw.runtime.load import load_model
from fretsaw.stages.compress import ROUND, compress, run_one
from fretsaw.stages.manifest import CHILD, damage, digest, read_manifest, stage_digest
from fretsaw.stages.models import open_view, read_orders, repairer, walk_blocks
from fretsaw.stages.progress import Reporter
from fretsaw.stages.run import Run, RunRound
from fretsaw.stages.search import read_choice
from tests.flow.conftest import Finished, Said
from tests.flow.pico_run import QUIET, STAGES, Setting, contents, snapshot
from tests.pico import FLOAT32, pico_config, write_pico_checkpoint
from tests.views import pico_ids

REPAIRED = ("experts.{expert}.down_proj.weight", "fc2_latent_proj.weight", "out_proj.weight")
"""Ends of the names that closed-form repair may solve anew."""

OPEN_WITH_TRANSFORMERS = """
import sys
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, file = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(
    folder, trust_remote_code=True, dtype=torch.float32, local_files_only=True
)
ids = load_file(file)["ids"]
with torch.no_grad():
    save_file({"logits": model(ids).logits}, file + ".out")
AutoTokenizer.from_pretrained(folder, local_files_only=True)
assert not any(name.split(".")[0] == "fretsaw" for name in sys.modules)
"""


def _round(finished: Finished, number: int) -> RunRound:
    return Run(finished.out, finished.setting.recipe, QUIET).round(number)


def _logits(folder: Path, ids: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = load_model(Checkpoint(folder))(ids).logits
    return logits


@pytest.mark.parametrize("number", [1, 2])
def test_every_stage_leaves_its_results_and_a_manifest(finished: Finished, number: int) -> None:
    folder = finished.out / f"round-{number}"

    assert sorted(p.name for p in folder.iterdir()) == list(STAGES)
    for stage in STAGES:
        manifest = read_manifest(folder / stage)
        assert manifest["stage"] == stage
        assert manifest["inputs"]["seed"] == number
        assert manifest["versions"]["torch"] == torch.__version__
        assert damage(folder / stage) is None
        on_disk = {*contents(folder / stage)}
        assert on_disk == set(manifest["results"]), "every file stands in the manifest"


def test_manifests_chain_from_the_parent_to_the_last_child(finished: Finished) -> None:
    parent = digest(hash_checkpoint(finished.setting.parent))
    inputs = read_manifest(finished.out / "round-1" / "08-distill")["inputs"]

    assert inputs["parent"] == parent
    assert inputs["07-build"] == stage_digest(finished.out / "round-1" / "07-build")
    again = read_manifest(finished.out / "round-2" / "01-calibrate")["inputs"]
    assert again["model"] == stage_digest(finished.out / "round-1" / "08-distill")
    assert {k for k in again if k.startswith("text.")} == {"text.calibration"}


def test_the_children_keep_to_their_budgets(finished: Finished) -> None:
    parent = model_costs(Checkpoint(finished.setting.parent).shape)
    first, second = (
        model_costs(Checkpoint(finished.out / f"round-{n}" / "08-distill" / CHILD).shape)
        for n in (1, 2)
    )

    assert first["moe_params"] <= 0.75 * parent["moe_params"]
    assert first["state_bytes"] == 0.75 * parent["state_bytes"]
    assert second["active_experts"] == 0.75 * parent["active_experts"]
    assert finished.summary.lines[-1].costs == second
    assert finished.summary.child == finished.out / "round-2" / "08-distill" / CHILD


def test_the_child_holds_weights_json_our_two_files_a_page_and_no_more(finished: Finished) -> None:
    for number in (1, 2):
        for stage in ("07-build", "08-distill"):
            folder = finished.out / f"round-{number}" / stage / CHILD
            names = {p.name for p in folder.iterdir()}
            weights = {name for name in names if name.endswith(".safetensors")}
            assert len(weights) > 1, "the recipe asks for shards"
            assert names - weights == {
                "config.json",
                "configuration_nemotron_h_puzzle.py",
                LINEAGE_NAME,
                "WHO_CAN_LOAD.md",
                "generation_config.json",
                "model.safetensors.index.json",
                "modeling_nemotron_h_puzzle.py",
                "tokenizer.json",
                "tokenizer_config.json",
            }


def test_lineage_says_where_the_child_comes_from(finished: Finished) -> None:
    folder = finished.out / "round-2" / "07-build" / CHILD
    lineage = json.loads((folder / LINEAGE_NAME).read_text())

    assert lineage["parent"] == str(finished.setting.parent.resolve())
    assert lineage["parent_sha256"] == digest(hash_checkpoint(finished.setting.parent))
    assert (finished.out / lineage["cut_from"] / "config.json").is_file()
    assert lineage["recipe"] == json.loads(finished.setting.recipe.to_json())
    assert lineage["choice"] == read_choice(folder.parents[1] / "06-search").to_json()


@pytest.mark.parametrize("number", [1, 2])
def test_every_tensor_of_the_child_comes_from_its_parent(finished: Finished, number: int) -> None:
    round_ = _round(finished, number)
    parent, child = Checkpoint(round_.model), Checkpoint(round_.result("07-build") / CHILD)
    choice = read_choice(round_.result("06-search"))
    orders = read_orders(round_.result("02-rank"))
    origins = {o.target.key: o for o in plan_child(parent, choice)}

    assert set(origins) == {stored.key for stored in child.stored.values()}
    for stored in child.stored.values():
        origin = origins[stored.key]
        block = origin.row.block if origin.row.part == "block" else None
        plain = cut(parent, origin, orders=orders.get(block, {}) if block is not None else {})
        written = child.read(child.family.canonical(stored.key))
        may_differ = origin.row.tensor.name.endswith(REPAIRED) and origin.row.part == "block"
        assert written.dtype == plain.dtype, stored.key
        assert written.shape == plain.shape, stored.key
        assert may_differ or torch.equal(written, plain), stored.key


@pytest.mark.parametrize("stage", ["07-build", "08-distill"])
def test_prediction_head_and_float32_tensors_pass_through_bit_for_bit(
    finished: Finished, stage: str
) -> None:
    parent = Checkpoint(finished.setting.parent)
    child = Checkpoint(finished.out / "round-2" / stage / CHILD)
    cut_from = Checkpoint(finished.out / "round-1" / "08-distill" / CHILD)

    untouched = {n for n in parent.stored if n.startswith("mtp.") or n.endswith("correction_bias")}
    assert len(untouched) > 20
    for name in untouched:
        assert torch.equal(child.read(name), parent.read(name)), name
    trained = {n for n in parent.stored if n.endswith(FLOAT32)} - untouched
    assert {n.rsplit(".", 1)[-1] for n in trained} == {"A_log", "D", "dt_bias"}
    for name in trained:
        assert child.dtype_of(name) == "F32", name
        assert stage != "07-build" or torch.equal(child.read(name), cut_from.read(name)), name


def test_the_built_child_is_the_model_with_its_blocks_swapped(finished: Finished) -> None:
    for number in (1, 2):
        round_ = _round(finished, number)
        view = open_view(round_)
        choice = read_choice(round_.result("06-search"))
        repairs = {
            block: repairer(view, round_, block=block, hidden=hidden).replaced(
                choice.variants[block].apply(view.shape.blocks[block])
            )
            for block, hidden in walk_blocks(view, round_)
        }
        for variant in choice.variants:
            block = variant.apply(view.shape.blocks[variant.block])
            stored = {n: t.bfloat16().float() for n, t in repairs[variant.block].items()}
            module = view.variant(variant.block, block=block, replaced=stored)
            view.swap(variant.block, module, block=block)
        ids = pico_ids(number)
        with torch.no_grad():
            swapped = view.logits(view.final(view.run(view.embed(ids), start=0)))

        built = _logits(round_.result("07-build") / CHILD, ids)

        assert (built - swapped).abs().max() < 1e-5


def test_the_child_opens_where_only_transformers_is_known(
    finished: Finished, tmp_path: Path
) -> None:
    child = finished.summary.child
    before = snapshot(child)
    ids = pico_ids(7)
    file = tmp_path / "ids"
    save_file({"ids": ids}, file)

    command = [sys.executable, "-I", "-c", OPEN_WITH_TRANSFORMERS, str(child), str(file)]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=300)

    logits = load_file(tmp_path / "ids.out")["logits"]
    assert (logits - _logits(child, ids)).abs().max() < 1e-5
    assert snapshot(child) == before


def test_healing_is_never_worse_than_the_cut(finished: Finished) -> None:
    lines = {line.name: line for line in finished.summary.lines}

    assert list(lines) == [
        "parent",
        "round 1 cut",
        "round 1 healed",
        "round 2 cut",
        "round 2 healed",
    ]
    for number in (1, 2):
        assert lines[f"round {number} healed"].kl <= lines[f"round {number} cut"].kl
        assert lines[f"round {number} cut"].kl > 0
    assert (finished.out / "report" / "index.html").is_file()


def test_a_second_run_does_nothing(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    before = {n: snapshot(finished.out / f"round-{n}") for n in (1, 2)}

    again = compress(finished.setting.recipe, out=finished.out, reporter=Reporter())

    said = capsys.readouterr().err
    assert said.count("done before, checksums hold") == 2 * len(ROUND)
    assert "again" not in said
    assert {n: snapshot(finished.out / f"round-{n}") for n in (1, 2)} == before
    assert again.lines == finished.summary.lines
    assert not (finished.out / "replaced").exists()


def test_json_goes_to_stdout_and_words_to_stderr(
    finished: Finished, command: Callable[..., Said]
) -> None:
    recipe = finished.setting.recipe_file

    said = command("compress", recipe, "--out", finished.out, "--json")

    assert said.code == 0
    told = json.loads(said.out)
    assert told == finished.summary.to_json(), "a run with nothing to do measures nothing anew"
    assert "done before" in said.err
    described = command("describe", finished.summary.child, "--json")
    assert json.loads(described.out)["is_checked"] is True
    assert json.loads(described.out)["costs"] == finished.summary.lines[-1].costs


def test_each_stage_runs_alone(
    finished: Finished, setting: Setting, command: Callable[..., Said]
) -> None:
    recipe = setting.recipe_file
    for stage in STAGES[1:]:
        word = stage.split("-", 1)[1]
        said = command(word, recipe, "--out", setting.out, "--quiet")
        assert said.code == 0, said.err
        assert said.out.strip() == str(setting.out / "round-1" / stage)

    alone, whole = (contents(out / "round-1") for out in (setting.out, finished.out))
    differ = {name for name in whole if alone.get(name) != whole[name]}
    assert differ == {n for n in whole if n.endswith((LINEAGE_NAME, "description.json"))}, (
        "only what names the parent's folder differs"
    )


def test_a_stage_says_what_it_needs_first(setting: Setting) -> None:
    with pytest.raises(RunError, match="01-calibrate is not there") as error:
        run_one("rank", setting.recipe, out=setting.out, reporter=QUIET)

    assert "fretsaw calibrate RECIPE --out" in error.value.hint
    with pytest.raises(RunError, match="round 3 was asked for; the recipe has 2"):
        run_one("rank", setting.recipe, out=setting.out, round_number=3, reporter=QUIET)


def test_fewer_rounds_are_the_first_ones(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = finished.setting.changed(rounds=finished.setting.data["rounds"][:1])

    summary = compress(recipe, out=finished.out, reporter=Reporter())

    assert capsys.readouterr().err.count("done before") == len(ROUND)
    assert summary.lines == finished.summary.lines[:3]
    compress(finished.setting.recipe, out=finished.out, reporter=QUIET)


def test_one_text_file_is_text_enough(setting: Setting) -> None:
    rng = random.Random(5)
    lines = ("".join(rng.choices("abcdefgh ", k=100)) for _ in range(10_000))
    (setting.folder / "book.txt").write_text("\n".join(lines))
    recipe = setting.changed(data={"path": str(setting.folder / "book.txt")})

    calibrated = fretsaw.calibrate(recipe, out=setting.out, reporter=QUIET)

    assert (calibrated / "statistics.safetensors").is_file()
    assert fretsaw.estimate(recipe, out=setting.out).lines


def test_python_calls_are_the_commands(finished: Finished) -> None:
    described = fretsaw.describe(finished.summary.child)
    assert described.params == finished.summary.lines[-1].costs["params"]
    recipe = fretsaw.load_recipe(finished.setting.recipe_file)
    assert fretsaw.compress(recipe, out=finished.out, reporter=QUIET).lines == (
        finished.summary.lines
    )
    for stage in STAGES[1:]:
        word = stage.split("-", 1)[1]
        folder = getattr(fretsaw, word)(recipe, out=finished.out, round_number=2, reporter=QUIET)
        assert folder == finished.out / "round-2" / stage
    with pytest.raises(AttributeError, match="has no attribute 'comprss'"):
        fretsaw.comprss  # noqa: B018


def test_a_moved_run_is_still_done(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Path(shutil.copytree(finished.out, tmp_path / "elsewhere"))

    compress(finished.setting.recipe, out=moved, reporter=Reporter())

    assert capsys.readouterr().err.count("done before") == 2 * len(ROUND)
    assert hash_file(moved / "round-2" / "06-search" / "choice.json") == hash_file(
        finished.out / "round-2" / "06-search" / "choice.json"
    )


def test_a_checkpoint_of_random_weights_can_be_compressed(setting: Setting) -> None:
    config = setting.folder / "config.json"
    config.write_text(json.dumps(pico_config(vocab_size=300)))
    shutil.rmtree(setting.parent)
    setting.parent.mkdir()
    write_random_checkpoint(config, folder=setting.parent)
    assert verify_files(setting.parent).faults == ()

    summary = compress(
        setting.changed(rounds=setting.data["rounds"][:1]), out=setting.out, reporter=QUIET
    )

    assert summary.lines[-1].costs["params"] < summary.lines[0].costs["params"]
    assert verify_files(summary.child).faults == ()


def test_f5_f15_a_tied_float32_parent_with_files_of_its_own_is_cut_and_nothing_is_silent(
    setting: Setting, command: Callable[..., Said]
) -> None:
    shutil.rmtree(setting.parent)
    write_pico_checkpoint(setting.parent, seed=1, tie_word_embeddings=True)
    weights = setting.parent / "model.safetensors"
    tensors = {n: t.float() for n, t in load_file(weights).items() if n != "lm_head.weight"}
    save_file(tensors, weights, metadata={"format": "pt"})
    (setting.parent / "LICENSE").write_text("free")
    (setting.parent / "gone.json").symlink_to("nowhere")
    setting.data |= {"rounds": setting.data["rounds"][:1]}

    said = command("compress", setting.recipe_file, "--out", setting.out)

    assert said.code == 0, said.err
    for told in ("16 KiB more", "the config says BF16", "gone.json (a link to nowhere"):
        assert told in said.err
    child = setting.out / "round-1" / "08-distill" / CHILD
    assert json.loads((child / "config.json").read_text())["dtype"] == "float32"
    assert verify_files(child).faults == ()
    assert (child / "LICENSE").read_text() == "free"
    assert "16 KiB of weights of its own" in (child / "WHO_CAN_LOAD.md").read_text()
