"""One reader for each kind of file: what it mends, what it leaves out, what it refuses."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fretsaw.errors import DataError
from fretsaw.train.data import load_split
from fretsaw.train.readers import BAD_BYTES, BAD_CHARACTERS
from tests.unit.train.text_folders import (
    PACKED,
    WRITERS,
    counts,
    read,
    read_ok,
    refused,
    write,
)

# JSON that other readers take


def test_f10_half_a_pair_is_repaired_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(
        '{"text": "cut \\ud83d end"}\n{"text": "\\ud83d\\ude42"}\n{"text": "\\udc80"}\n'
    )
    write(tmp_path / "validation.jsonl", "v")
    texts, found = read(tmp_path)
    assert texts == ["cut \ufffd end", "🙂", "\ufffd"]
    assert counts(found, "repaired") == {BAD_CHARACTERS: 2}
    assert found.repaired[0].first == "train.jsonl:1"


def test_f10_columns_that_are_not_read_never_matter(tmp_path: Path) -> None:
    odd = ['{"a":' * 900 + "1" + "}" * 900, "null", '"now text"', "1" * 5000, "NaN", '"\\ud83d"']
    lines = [f'{{"meta": {value}, "text": "row {i}"}}\n' for i, value in enumerate(odd)]
    (tmp_path / "train.jsonl").write_text("".join(lines * 50))
    write(tmp_path / "validation.jsonl", "v")
    texts, found = read(tmp_path)
    assert texts == [f"row {i}" for i in range(6)] * 50
    assert found.warnings() == ()


def test_f10_a_column_that_changes_its_kind_in_parquet_shards(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "meta": [None]}), tmp_path / "train-0.parquet")
    pq.write_table(pa.table({"text": ["b"], "meta": [{"x": 1}]}), tmp_path / "train-1.parquet")
    bad = pa.array([b"c\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), tmp_path / "train-2.parquet")
    pq.write_table(
        pa.table({"text": pa.array(["d", None]).dictionary_encode()}), tmp_path / "train-3.parquet"
    )
    texts, found = read_ok(tmp_path)
    assert texts == ["a", "b", "c\ufffd", "d"]
    assert counts(found, "repaired") == {BAD_BYTES: 1}
    assert counts(found, "skipped") == {"no text in the row": 1}


@pytest.mark.parametrize("column", ["a.b", "text ", "文"])
def test_f10_a_column_is_a_name_too(tmp_path: Path, column: str) -> None:
    table = pa.table({"a": [{"b": "not this"}], column: ["this"]})
    pq.write_table(table, tmp_path / "train.parquet")
    assert list(load_split(tmp_path, "train", text_key=column)) == ["this"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "torn', "train.jsonl:3 is no whole JSON value"),
        ('{"text": 3}', "train.jsonl:3: column 'text' holds a number, not text"),
        ('{"text": ["a"]}', "train.jsonl:3: column 'text' holds a list, not text"),
        ('{"text": true}', "holds true or false, not text"),
        ("[1, 2]", "train.jsonl:3 is no JSON object but a list"),
        ("null", "train.jsonl:3 is no JSON object but null"),
        ('{"text": "a"} {"text": "b"}', "train.jsonl:3 is no whole JSON value: Extra data"),
        ("[" * 100_000, "train.jsonl:3 is no whole JSON value: it is nested too deeply"),
    ],
)
def test_f10_what_cannot_be_mended_is_refused_with_file_and_line(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "train.jsonl").write_text(f'{{"text": "a"}}\n\n{line}')
    write(tmp_path / "validation.jsonl", "v")
    assert message in refused(tmp_path).message


def test_f10_rows_without_text_are_counted(tmp_path: Path) -> None:
    rows = ['{"text": "a"}', '{"text": null}', '{"text": ""}', '{"txt": "b"}', '{"text": " "}']
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    texts, found = read_ok(tmp_path)
    assert texts == ["a", " "]
    assert counts(found, "skipped") == {"no text in the row": 2, "no column 'text' in the row": 1}
    assert found.documents == 2


@pytest.mark.parametrize(
    "text",
    [
        '[{"text": "a"}, {"text": "b"}]',
        '[\n {"text": "a"},\n {"text": "b"}\n]\n',
        '{"text": "a"}\n{"text": "b"}',
        '{\n "text": "a"\n}\n{\n "text": "b"\n}\n',
    ],
)
def test_f10_json_in_all_its_forms(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.json").write_text(text)
    assert read_ok(tmp_path)[0] == ["a", "b"]
    (tmp_path / "train.json").write_text(text[:-4])
    assert "train.json" in refused(tmp_path).message


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_a_packed_file_that_was_cut_short_is_refused(tmp_path: Path, suffix: str) -> None:
    data = b"".join(
        json.dumps({"text": str(random.Random(i).random())}).encode() + b"\n" for i in range(3000)
    )
    (tmp_path / f"train.jsonl.{suffix}").write_bytes(PACKED[f".{suffix}"](data))
    assert len(read_ok(tmp_path)[0]) == 3000
    (tmp_path / f"train.jsonl.{suffix}").write_bytes(PACKED[f".{suffix}"](data)[:-60])
    assert "cannot be read" in refused(tmp_path).message


@pytest.mark.parametrize("kind", [".arrow", ".parquet"])
def test_places_outside_of_a_damaged_file_are_found(tmp_path: Path, kind: str) -> None:
    """Offsets of an Arrow file are taken as they are: unchecked, they end the process."""
    rng = random.Random(0)
    data = WRITERS[kind]([f"text {i}" * 5 for i in range(20)], rng)
    refusals = 0
    for _ in range(60):
        bad = bytearray(data)
        for _ in range(4):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        (tmp_path / f"a{kind}").write_bytes(bad)
        try:
            list(load_split(tmp_path / f"a{kind}", "train"))
        except DataError:
            refusals += 1
    assert refusals > 10
