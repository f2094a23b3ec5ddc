"""The user's mistakes: error, hint and exit code 2 before any work; nothing is overwritten."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from fretsaw.checkpoint.contents import INDEX_NAME
from fretsaw.checkpoint.header import read_header
from fretsaw.runtime.blocks import BlockView
from tests.flow.conftest import Finished, Said
from tests.flow.pico_run import Setting, contents, snapshot

Command = Callable[..., Said]


def _config(setting: Setting, **changes: Any) -> None:
    """Change keys of the parent's config; None removes one."""
    file = setting.parent / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def _shards(setting: Setting) -> list[Path]:
    return sorted(setting.parent.glob("*.safetensors"))


def _tensors(setting: Setting, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the tensors of the first shard, and the index with them."""
    shard = _shards(setting)[0]
    tensors = load_file(shard)
    before = set(tensors)
    change(tensors)
    save_file(tensors, shard, metadata={"format": "pt"})
    index = json.loads((setting.parent / INDEX_NAME).read_text())
    for gone in before - set(tensors):
        del index["weight_map"][gone]
    index["weight_map"] |= dict.fromkeys(tensors, shard.name)
    (setting.parent / INDEX_NAME).write_text(json.dumps(index))


def _first(name: str, tensors: dict[str, torch.Tensor]) -> str:
    return next(key for key in sorted(tensors) if name in key)


def _no_folder(s: Setting) -> None:
    shutil.rmtree(s.parent)


def _empty_folder(s: Setting) -> None:
    shutil.rmtree(s.parent)
    s.parent.mkdir()


def _config_no_json(s: Setting) -> None:
    (s.parent / "config.json").write_text('{"model_type": ')


def _config_no_object(s: Setting) -> None:
    (s.parent / "config.json").write_text("[1]")


def _unknown_architecture(s: Setting) -> None:
    _config(s, model_type="nemotron_x")


def _unknown_layer(s: Setting) -> None:
    _config(s, layers_block_type=["mamba", "moe", "retention", "moe"])


def _num_layers(s: Setting) -> None:
    _config(s, num_hidden_layers=7)


def _top_k_of_config(s: Setting) -> None:
    _config(s, num_experts_per_tok=5)


def _missing_key(s: Setting) -> None:
    _config(s, conv_kernel=None)


def _missing_tensor(s: Setting) -> None:
    _tensors(s, lambda t: t.pop(_first("up_proj", t)))


def _missing_head(s: Setting) -> None:
    for shard in _shards(s):
        tensors = {k: v for k, v in load_file(shard).items() if not k.startswith("mtp.")}
        save_file(tensors, shard)
    (s.parent / INDEX_NAME).unlink()


def _unpromised_head(s: Setting) -> None:
    _config(s, num_nextn_predict_layers=0)


def _extra_tensor(s: Setting) -> None:
    _tensors(s, lambda t: t.update({"backbone.layers.9.norm.weight": torch.ones(32)}))


def _twice(s: Setting) -> None:
    (s.parent / INDEX_NAME).unlink()
    shutil.copyfile(_shards(s)[0], s.parent / "consolidated.safetensors")


def _wrong_shape(s: Setting) -> None:
    _tensors(s, lambda t: t.update({n: t[n][:-1].clone() for n in [_first("up_proj", t)]}))


def _quantised(s: Setting) -> None:
    _tensors(s, lambda t: t.update({n: t[n].to(torch.int8) for n in [_first("up_proj", t)]}))


def _cut_shard(s: Setting) -> None:
    os.truncate(_shards(s)[1], 20_000)


def _cut_header(s: Setting) -> None:
    os.truncate(_shards(s)[1], 100)


def _odd_header(s: Setting) -> None:
    _shards(s)[1].write_bytes((8).to_bytes(8, "little") + b'{"a": 1}')


def _lost_shard(s: Setting) -> None:
    _shards(s)[1].unlink()


def _broken_index(s: Setting) -> None:
    (s.parent / INDEX_NAME).write_text("{")


def _pickle_only(s: Setting) -> None:
    for shard in _shards(s):
        shard.rename(shard.with_suffix(".bin"))
    (s.parent / INDEX_NAME).unlink()


def _no_tokenizer(s: Setting) -> None:
    (s.parent / "tokenizer.json").unlink()


def _short_text(s: Setting) -> None:
    (s.text / "calibration.jsonl").write_text('{"text": "a few words"}\n')


def _valid_for_validation(s: Setting) -> None:
    (s.text / "validation.jsonl").rename(s.text / "valid.jsonl")


def _no_such_column(s: Setting) -> None:
    for file in s.text.iterdir():
        file.write_text(file.read_text().replace('"text"', '"content"'))


def _hub_name(s: Setting) -> None:
    s.data["data"] = {"path": "wikitext/wikitext-103"}


def _no_text(s: Setting) -> None:
    shutil.rmtree(s.text)


def _recipe(**changes: Any) -> Callable[[Setting], None]:
    return lambda s: s.data.update(changes)


def _library(**grids: Any) -> Callable[[Setting], None]:
    def change(s: Setting) -> None:
        s.data["rounds"][0]["library"] |= grids

    return change


def _budget(**budgets: Any) -> Callable[[Setting], None]:
    def change(s: Setting) -> None:
        s.data["rounds"][0]["search"]["budget"] = budgets

    return change


class Case(NamedTuple):
    """A mistake, and what must be said about it."""

    name: str
    spoil: Callable[[Setting], None]
    error: str
    hint: str


CASES = [
    Case("parent: no folder", _no_folder, "parent does not exist", "folder that holds config.json"),
    Case("parent: empty", _empty_folder, "has no config.json", "folder that holds config.json"),
    Case("config: not JSON", _config_no_json, "config.json is not valid JSON", "copy it again"),
    Case("config: no object", _config_no_object, "holds no JSON object", "copy it again"),
    Case(
        "config: unknown architecture",
        _unknown_architecture,
        "unknown architecture model_type='nemotron_x'; known: nemotron_h",
        "did you mean 'nemotron_h'?",
    ),
    Case("config: unknown layer", _unknown_layer, "layer word 'retention'", "no family"),
    Case("config: number of layers", _num_layers, "num_hidden_layers=7 but lists 4", "repair"),
    Case(
        "config: top-k above experts",
        _top_k_of_config,
        "top-k 5 of 4 experts",
        "num_experts_per_tok must not exceed n_routed_experts",
    ),
    Case("config: missing key", _missing_key, "conv_kernel is None", "repair config.json"),
    Case("tensor: missing", _missing_tensor, "missing tensor (1): ", "copy it again"),
    Case("tensor: promised head", _missing_head, "missing tensor (24): mtp.", "prediction head"),
    Case("tensor: no promise", _unpromised_head, "extra tensor (24): mtp.", "prediction head"),
    Case("tensor: extra", _extra_tensor, "extra tensor (1): layers.9.norm.weight", "remove them"),
    Case("tensor: twice", _twice, "twice: as 'backbone", "remove the file"),
    Case("tensor: wrong shape", _wrong_shape, "config says [", "weights disagree"),
    Case("tensor: quantised", _quantised, "dtype that cannot be cut (1): ", "BF16, F16, F32"),
    Case("shard: cut short", _cut_shard, "has 20000 bytes; its header says", "copy it again"),
    Case("shard: header cut", _cut_header, "of-00002.safetensors is damaged", "copy it again"),
    Case("shard: odd header", _odd_header, "of-00002.safetensors is damaged", "copy it again"),
    Case(
        "shard: lost",
        _lost_shard,
        "missing shard (1): model-00002-of-00002.safetensors",
        "copy the missing files",
    ),
    Case("index: broken", _broken_index, f"{INDEX_NAME} is not valid JSON", "copy it again"),
    Case("weights: pickles only", _pickle_only, "has no *.safetensors", "never pickles"),
    Case(
        "tokenizer: missing",
        _no_tokenizer,
        "no tokenizer: none of tokenizer.json",
        "copy the tokenizer files",
    ),
    Case(
        "recipe: unknown key",
        _recipe(compute={"treads": 1}),
        "unknown recipe key 'compute.treads'",
        "did you mean 'threads'?",
    ),
    Case(
        "recipe: unknown section",
        _recipe(distil={"tokens": 5}),
        "unknown recipe key 'distil'",
        "did you mean 'distill'?",
    ),
    Case("recipe: unknown in a round", _library(moo={}), "library.moo'", "'moe'"),
    Case(
        "recipe: wrong type",
        _recipe(compute={"threads": "many"}),
        "is 'many': expected a whole number",
        "--resolved",
    ),
    Case("recipe: missing key", lambda s: s.data.pop("data"), "'data' is missing", "demo.yaml"),
    Case("recipe: no device", _recipe(compute={"device": "cuda:9"}), "'cuda:9' cannot", "cpu"),
    Case(
        "recipe: shard size",
        _recipe(build={"shard_bytes": "5 ells"}),
        "'5 ells': expected a size",
        "KiB",
    ),
    Case(
        "budget: impossible",
        _budget(moe_params="10%"),
        "round 1: no choice meets the budget `moe_params <= 10%`",
        "raise the budget to moe_params 4,096",
    ),
    Case(
        "budget: impossible together",
        _budget(moe_params="75%", state_bytes=100),
        "no choice meets the budget `state_bytes <= 100`",
        "raise the budget to state_bytes 3,072",
    ),
    Case(
        "budget: unknown cost",
        _budget(moe_prams="75%"),
        "unknown cost 'moe_prams' in search.budget",
        "did you mean 'moe_params'?",
    ),
    Case(
        "budget: no quantity",
        _budget(moe_params="lots"),
        "'lots': expected a quantity",
        "--resolved",
    ),
    Case(
        "library: top-k above experts",
        _library(moe={"top_k": [5]}),
        "top_k 5 is not allowed: above the 4 experts of the parent",
        "nearest allowed: ",
    ),
    Case("library: state", _library(mamba={"state": [20]}), "state 20 is not allowed", "12 or 16"),
    Case(
        "library: state off its grid",
        _library(mamba={"state": [10]}),
        "state 10 is not allowed: no positive multiple of 4",
        "nearest allowed: 8 or 12",
    ),
    Case(
        "library: width off its grid",
        _library(moe={"ffn": [20]}),
        "ffn 20 is not allowed: no positive multiple of 8",
        "nearest allowed: 16 or 24",
    ),
    Case(
        "text: too short",
        _short_text,
        "text (JSON lines): the text is too short: ",
        "give more text, or ask for fewer or shorter sequences",
    ),
    Case(
        "text: valid for validation",
        _valid_for_validation,
        "has no split 'validation'; its splits: calibration, train, valid",
        "data.splits.validation: valid",
    ),
    Case("text: no such column", _no_such_column, "no column 'text'", "data.text_key: content"),
    Case("text: hub name", _hub_name, "fretsaw downloads nothing", "save_to_disk"),
    Case("text: nothing there", _no_text, "text does not exist", "data-set folder"),
]


def _is_refused(said: Said) -> None:
    assert said.code == 2, said.err
    assert said.out == ""
    *_, error, hint = said.err.strip().splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_is_named_before_any_work(setting: Setting, command: Command, case: Case) -> None:
    case.spoil(setting)
    recipe = setting.recipe_file
    before = snapshot(setting.folder)

    said = command("compress", recipe, "--out", setting.out)

    _is_refused(said)
    *_, error, hint = said.err.strip().splitlines()
    assert case.error in error
    assert case.hint in hint
    assert not list(setting.folder.rglob("0?-*")), "no stage has begun"
    now = snapshot(setting.folder)
    assert {name: now[name] for name in before} == before
    dry = command("compress", recipe, "--out", setting.folder / "other", "--dry-run")
    assert (dry.code, dry.err) == (2, said.err), "a dry run finds the same"
    assert not (setting.folder / "other").exists()


def test_describe_refuses_too(setting: Setting, command: Command) -> None:
    _missing_tensor(setting)
    said = command("describe", setting.parent)
    _is_refused(said)
    assert "missing tensor (1)" in said.err
    _is_refused(command("describe", setting.folder / "nothing"))


def test_a_missing_or_broken_recipe(setting: Setting, command: Command) -> None:
    said = command("compress", setting.folder / "no.yaml", "--out", setting.out)
    _is_refused(said)
    assert "no.yaml does not exist" in said.err
    for text in ("a: [", "", "just words"):
        (setting.folder / "no.yaml").write_text(text)
        _is_refused(command("compress", setting.folder / "no.yaml", "--out", setting.out))
    assert not setting.out.exists()


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("seed", "a.b=value was expected"),
        ("=1", "a.b=value was expected"),
        ("seed=[", "line 1 is not valid YAML"),
        ("seed=-1", "'seed' (--set seed=-1) is -1"),
        ("distill.tokenz=5", "unknown recipe key 'distill.tokenz' (--set distill.tokenz=5)"),
        ("rounds.7.distill.tokens=5", "the recipe's last round is 2"),
        ("seed.a=1", "'seed' is {"),
        ("parent.a=1", "'parent.a=1': the recipe has no such place"),
        ("distill.learning_rate=fast", "learning_rate"),
    ],
)
def test_a_bad_override(setting: Setting, command: Command, override: str, error: str) -> None:
    said = command("compress", setting.recipe_file, "--out", setting.out, "--set", override)
    _is_refused(said)
    assert error in said.err
    assert not setting.out.exists()


def test_an_output_folder_with_something_in_it_is_left_alone(
    setting: Setting, command: Command
) -> None:
    setting.out.mkdir()
    (setting.out / "thesis.tex").write_text("mine")
    for option in ((), ("--dry-run",)):
        said = command("compress", setting.recipe_file, "--out", setting.out, *option)
        _is_refused(said)
        assert "is not empty and is no fretsaw run; nothing of yours is overwritten" in said.err
    _is_refused(command("calibrate", setting.recipe_file, "--out", setting.out))
    _is_refused(command("compress", setting.recipe_file, "--out", setting.parent))
    _is_refused(command("compress", setting.recipe_file, "--out", setting.recipe_file))
    assert contents(setting.out).keys() == {"thesis.tex"}


def test_a_run_among_its_own_text_is_refused(setting: Setting, command: Command) -> None:
    before = contents(setting.text)
    for option in ((), ("--dry-run",)):
        out = setting.text / "deep" / "run"
        said = command("compress", setting.recipe_file, "--out", out, *option)
        _is_refused(said)
        assert "its files would be taken for part of it" in said.err
    assert contents(setting.text) == before


def test_a_run_that_another_process_works_in(setting: Setting, command: Command) -> None:
    command("rank", setting.recipe_file, "--out", setting.out)
    marker = (setting.out / "recipe.resolved.json").read_bytes()
    with (setting.out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = command("compress", setting.recipe_file, "--out", setting.out, "--set", "seed=9")

    _is_refused(said)
    assert "another fretsaw process works in" in said.err
    assert (setting.out / "recipe.resolved.json").read_bytes() == marker


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_full_disk_is_found_before_any_work(
    setting: Setting, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(10**9, 10**9 - 5000, 5000))
    said = command("compress", setting.recipe_file, "--out", setting.out)
    _is_refused(said)
    assert "more; its disk has 4.88 KiB free" in said.err
    assert not (setting.out / "round-1").exists()


def test_a_disk_that_fills_up_costs_nothing_but_the_wait(
    setting: Setting, finished: Finished, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = Path(shutil.copytree(finished.out, setting.out))
    shutil.rmtree(out / "round-1" / "07-build")
    recipe = finished.setting.recipe_file
    with monkeypatch.context() as patch:
        patch.setattr("fretsaw.checkpoint.writer.os.fsync", full)
        said = command("compress", recipe, "--out", out, "--quiet")
    _is_refused(said)
    assert "No space left on device" in said.err
    assert "free some space" in said.err

    assert command("build", recipe, "--out", out, "--quiet").code == 0
    built, whole = (o / "round-1" / "07-build" for o in (out, finished.out))
    assert contents(built) == contents(whole)


def test_a_fault_while_a_variant_is_built_stops_the_run_and_names_it(
    setting: Setting, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = BlockView.variant

    def fails(view: BlockView, index: int, **arguments: Any) -> Any:
        if index == 3 and arguments["block"].sizes["ffn"] == 16:
            raise ImportError("no module named 'kernels'")
        return variant(view, index, **arguments)

    monkeypatch.setattr(BlockView, "variant", fails)
    said = command("compress", setting.recipe_file, "--out", setting.out, "--quiet")

    assert said.code == 1
    assert "ImportError: no module named 'kernels' (while block 3 was made ffn=16" in said.err
    assert not (setting.out / "round-1" / "04-score").exists()


def test_no_code_of_the_checkpoint_ever_runs(
    setting: Setting, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = setting.folder / "ran"
    code = f"open({str(marker)!r}, 'w').close()\nclass Thing: pass\n"
    names = ("configuration_x", "modeling_x", "tokenization_x")
    for name in names:
        (setting.parent / f"{name}.py").write_text(code)
    auto = {"AutoConfig": "configuration_x.Thing", "AutoModelForCausalLM": "modeling_x.Thing"}
    _config(setting, auto_map={**auto, "AutoTokenizer": ["tokenization_x.Thing", None]})
    file = setting.parent / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {
        "auto_map": {"AutoTokenizer": [f"{names[2]}.T", None]}
    }
    file.write_text(json.dumps(settings))
    monkeypatch.setenv("TRANSFORMERS_TRUST_REMOTE_CODE", "1")

    for word in ("calibrate", "rank", "library", "score", "cost", "search", "build"):
        said = command(word, setting.recipe_file, "--out", setting.out, "--quiet")
        assert said.code == 0, said.err
    assert command("describe", setting.parent).code == 0
    assert command("compress", setting.recipe_file, "--out", setting.out, "--dry-run").code == 0

    assert not marker.exists()
    child = setting.out / "round-1" / "07-build" / "child"
    python = {p.name for p in child.iterdir() if p.suffix == ".py"}
    assert python == {"configuration_nemotron_h_puzzle.py", "modeling_nemotron_h_puzzle.py"}
    assert "auto_map" not in json.loads((child / "tokenizer_config.json").read_text())


def test_the_command_itself_exits_with_2_and_shows_no_traceback(setting: Setting) -> None:
    _no_folder(setting)
    command = [sys.executable, "-m", "fretsaw", "compress", str(setting.recipe_file), "--out"]
    done = subprocess.run(
        [*command, str(setting.out)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    error, hint = done.stderr.strip().splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")


def test_a_child_can_be_the_parent_of_another_run(
    finished: Finished, setting: Setting, command: Command
) -> None:
    shutil.rmtree(setting.parent)
    shutil.copytree(finished.out / "round-1" / "08-distill" / "child", setting.parent)
    setting.data["rounds"] = [setting.data["rounds"][1]]

    said = command("compress", setting.recipe_file, "--out", setting.out, "--dry-run")

    assert said.code == 0, said.err
    assert read_header(_shards(setting)[0])
