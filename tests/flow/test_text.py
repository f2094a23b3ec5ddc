"""Text at the level of the command: what is read, what is said of it, and what is kept."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fretsaw.stages.manifest import read_manifest
from fretsaw.stages.run import Run
from fretsaw.stages.text import TEXTS
from tests.flow.conftest import Finished, Said
from tests.flow.pico_run import QUIET, Setting, write_text

Command = Callable[..., Said]


def ids_of(setting: Setting) -> list[list[list[int]]]:
    """Token ids of all purposes: what decides a run."""
    round_ = Run(setting.out, setting.recipe, QUIET).round(1)
    return [text(round_).ids.tolist() for text in TEXTS]


def dry_run(setting: Setting, command: Command, *more: str) -> Said:
    return command("compress", setting.recipe_file, "--out", setting.out, "--dry-run", *more)


def found(said: Said) -> dict[str, dict[str, Any]]:
    assert said.code == 0, said.err
    return {text["split"]: text for text in json.loads(said.out)["text"]}


def move_text(setting: Setting, name: str) -> Path:
    place = setting.text.rename(setting.folder / name)
    setting.data["data"] = {"path": str(place)}
    return place


@pytest.mark.parametrize(
    ("name", "siblings"),
    [("v[2]", ["v2"]), ("set*", ["set-other", "settle"]), ("a::b", ["a", "b"])],
)
def test_f11_only_the_folder_that_is_named_is_read(
    setting: Setting, command: Command, name: str, siblings: list[str]
) -> None:
    before = ids_of(setting)
    for sibling in siblings:
        write_text(setting.folder / sibling, seed=99)
    place = move_text(setting, name)

    texts = found(dry_run(setting, command, "--json"))

    assert ids_of(setting) == before, "the very same token ids"
    assert {t["documents"] for t in texts.values()} == {60, 30, 20}
    assert {t["path"] for t in texts.values()} == {str(place)}


def test_f11_an_empty_split_is_too_short(setting: Setting, command: Command) -> None:
    (setting.text / "calibration.jsonl").write_text("")
    said = dry_run(setting, command)
    assert said.code == 2
    assert "the text is too short: 0 tokens found, 384 needed" in said.err
    assert "Traceback" not in said.err
    (setting.text / "calibration.jsonl").write_text('{"text": null}\n' * 3)
    assert "skipped: no text in the row (3 times, first calibration.jsonl:1)" in (
        dry_run(setting, command).err
    )


@pytest.mark.parametrize("suffix", [".JSONL", ".ndjson", ".jsonlines", ".json"])
def test_f16_validation_text_never_lands_in_training(
    setting: Setting, command: Command, suffix: str
) -> None:
    before = ids_of(setting)
    for file in list(setting.text.iterdir()):
        file.rename(file.with_suffix(suffix))
    texts = found(dry_run(setting, command, "--json"))
    assert [t["files"] for t in texts.values()] == [[f"{split}{suffix}"] for split in texts]
    assert ids_of(setting) == before


def test_f16_json_lines_named_txt_are_refused(setting: Setting, command: Command) -> None:
    for file in list(setting.text.iterdir()):
        file.rename(file.with_suffix(".txt"))
    said = dry_run(setting, command)
    assert said.code == 2
    assert "calibration.txt is not read: JSON lines, but its name does not say so" in said.err


def test_f10_half_a_pair_and_a_wild_column_do_not_stop_a_run(
    setting: Setting, command: Command
) -> None:
    file = setting.text / "train.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [{"meta": None if i < 50 else "now text", **row} for i, row in enumerate(rows)]
    rows[3]["text"] += " cut \ud83d end"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = dry_run(setting, command)
    assert said.code == 0, said.err
    assert (
        "text of train: repaired: half a surrogate pair, replaced (once: train.jsonl:4)" in said.err
    )
    assert f"text of train: 60 documents of {file} (JSON lines, column 'text')" in said.out
    file.write_text(file.read_text() + '{"text": "torn')
    said = dry_run(setting, command)
    assert said.code == 2
    assert "train.jsonl:61 is no whole JSON value" in said.err


def test_u14_thousands_of_texts_beside_one_json_file(setting: Setting, command: Command) -> None:
    rng = random.Random(0)
    place = setting.folder / "mixed"
    place.mkdir()
    for i in range(400):
        words = " ".join("".join(rng.choices("aehinorst", k=5)) for _ in range(20))
        (place / f"{i}.txt").write_text(words)
    (place / "few.jsonl").write_text('{"text": "a row"}\n')
    setting.data["data"] = {"path": str(place)}
    texts = found(dry_run(setting, command, "--json"))
    assert dict(map(tuple, texts["train"]["kinds"])) == {"plain text": 400, "JSON lines": 1}
    assert sum(t["documents"] for t in texts.values()) > 300


def test_u25_chat_data_heals_a_child(setting: Setting, command: Command) -> None:
    for file in setting.text.iterdir():
        texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
        chats = [
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": t}] for t in texts
        ]
        file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    said = dry_run(setting, command)
    assert said.code == 0, said.err
    assert "column 'messages'" in said.out
    assert "warning: text of train: a conversation written as role: content" in said.err
    config = json.loads((setting.parent / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}"
    (setting.parent / "tokenizer_config.json").write_text(json.dumps(config))
    said = dry_run(setting, command)
    assert said.code == 0, said.err
    assert "conversations" not in said.err


def test_documents_in_both_validation_and_training_are_warned_about(
    setting: Setting, command: Command
) -> None:
    lines = (setting.text / "validation.jsonl").read_text()
    with (setting.text / "train.jsonl").open("a") as stream:
        stream.write(lines * 3)
    said = dry_run(setting, command)
    assert said.code == 0
    assert "documents of validation that are judged on are learned from too" in said.err


def test_what_was_found_is_said_and_kept(finished: Finished) -> None:
    stages = {
        "01-calibrate": {"calibration": "calibration"},
        "04-score": {"calibration": "calibration", "score": "calibration"},
        "08-distill": {"train": "train", "validation": "validation"},
    }
    for stage, purposes in stages.items():
        texts = read_manifest(finished.out / "round-1" / stage)["texts"]
        assert {purpose: text["split"] for purpose, text in texts.items()} == purposes
        assert all(text["is_all"] and text["num_files"] == 1 for text in texts.values())
    assert {t.split: t.documents for t in finished.summary.text} == {
        "calibration": 30,
        "train": 60,
        "validation": 20,
    }
    assert finished.summary.to_json()["text"][0]["path"] == str(finished.setting.text)


def test_a_text_that_is_moved_is_the_same_text(setting: Setting, command: Command) -> None:
    for _ in range(2):
        for word in ("describe", "calibrate"):
            given = (setting.recipe_file, "--out", setting.out) if word != "describe" else ()
            said = command(word, *(given or (setting.parent,)))
            assert said.code == 0, said.err
        if setting.text.is_dir():
            assert "text of calibration: 30 documents" in said.err
            move_text(setting, "elsewhere")
    assert "calibrate: done before, checksums hold" in said.err


def test_f11_quantize_reads_only_what_it_is_given(setting: Setting, command: Command) -> None:
    write_text(setting.folder / "v2", seed=99)
    place = move_text(setting, "v[2]")
    with (place / "calibration.jsonl").open("a") as stream:
        stream.write('{"text": "half \\ud83d"}\n')
    said = command(
        "quantize",
        setting.parent,
        *("--to", "fp8", "--text", place, "--out", setting.out),
        *("--sequences", "4", "--sequence-length", "32"),
    )
    assert said.code == 0, said.err
    assert f"text of calibration: 31 documents of {place}/calibration.jsonl" in said.err
    assert "repaired: half a surrogate pair, replaced (once: calibration.jsonl:31)" in said.err
