"""Exactly the files that were found are read, each as what it is; the others are counted."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fretsaw.errors import DataError
from fretsaw.train.data import TextSource, load_split
from fretsaw.train.found import FoundText
from fretsaw.train.readers import BAD_BYTES
from tests.unit.train.text_folders import (
    ALL,
    SPLITS,
    counts,
    damage,
    draw,
    everything,
    read,
    read_ok,
    refused,
    splits,
    write,
)

# Paths are no patterns


@pytest.mark.parametrize(
    ("name", "sibling"), [("v[2]", "v2"), ("set*", "set-other"), ("a?", "ab"), ("{a,b}", "a")]
)
def test_f11_a_sibling_that_a_pattern_would_find_is_not_read(
    tmp_path: Path, name: str, sibling: str
) -> None:
    splits(tmp_path / name, word="ours: ")
    splits(tmp_path / sibling, word="theirs: ")
    assert read(tmp_path / name)[0] == ["ours: train one", "ours: train two"]
    assert read(tmp_path / name / "train.jsonl", "train")[0] != []


@pytest.mark.parametrize("name", ["a::b", "s3:", "memory:", "x[!a]", "**", "%2F", "a\nb"])
def test_f11_any_name_of_a_folder_is_a_name(tmp_path: Path, name: str) -> None:
    splits(tmp_path / name)
    for suffix in (".jsonl", ".parquet"):
        if suffix == ".parquet":
            (tmp_path / name / "train.jsonl").unlink()
            table = pa.table({"text": ["train one", "train two"]})
            pq.write_table(table, pa.OSFile(str(tmp_path / name / "train.parquet"), "wb"))
        assert read(tmp_path / name)[0] == ["train one", "train two"]


def test_f11_a_saved_data_set_in_a_folder_named_like_a_pattern(tmp_path: Path) -> None:
    parts = {s: datasets.Dataset.from_dict({"text": [s]}) for s in SPLITS}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "plain")
    (tmp_path / "plain").rename(tmp_path / "a::b[1]")
    assert read(tmp_path / "a::b[1]")[0] == ["train"]
    (tmp_path / "a::b[1]" / "train" / "state.json").write_text("{")
    assert "state.json is damaged" in refused(tmp_path / "a::b[1]").message
    (tmp_path / "a::b[1]" / "dataset_dict.json").write_text("[]")
    assert "dataset_dict.json is damaged" in refused(tmp_path / "a::b[1]").message


@pytest.mark.parametrize("suffix", [".jsonl", ".txt", ".json", ".jsonl.gz"])
def test_f11_an_empty_split_has_no_documents(tmp_path: Path, suffix: str) -> None:
    splits(tmp_path)
    (tmp_path / "calibration.jsonl").unlink()
    empty = tmp_path / f"calibration{suffix}"
    empty.write_bytes(gzip.compress(b"", mtime=0) if suffix.endswith("gz") else b"")
    assert read(tmp_path, "calibration")[0] == []
    assert read(tmp_path, "train")[0] == ["train one", "train two"]
    (tmp_path / "lonely.txt").touch()
    assert read(tmp_path / "lonely.txt")[0] == []


# What is text, and whose


@pytest.mark.parametrize(
    "suffix", [".JSONL", ".Jsonl", ".jsonlines", ".ndjson", ".NDJSON", ".json", ".JSON"]
)
def test_f16_suffixes_in_any_case_and_spelling(tmp_path: Path, suffix: str) -> None:
    splits(tmp_path, suffix)
    for split in ALL:
        texts, found = read(tmp_path, split)
        assert texts == [f"{split} one", f"{split} two"]
        assert found.share is None


@pytest.mark.parametrize(
    "names",
    [
        ("wiki.train.raw", "wiki.calibration.raw", "wiki.validation.raw"),
        ("train", "calibration", "validation"),
        ("Train.TXT", "Calibration.TXT", "Validation.TXT"),
        ("train.md", "calibration.md", "validation.md"),
        ("x/data/train_0.txt", "x/data/calibration_0.txt", "x/data/validation_0.txt"),
    ],
)
def test_f16_plain_text_named_for_splits_is_never_mixed(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name, split in zip(names, SPLITS, strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"only {split}\n" * 3)
    for split in ALL:
        texts, found = read(tmp_path, split)
        assert texts == [f"only {split}\n" * 3]
        assert (found.share, found.num_files) == (None, 1)


@pytest.mark.parametrize(
    "names",
    [
        ("train.jsonl", "test.jsonl"),
        ("valid.jsonl", "books.jsonl"),
        ("train_sft.parquet", "test_sft.parquet"),
        ("en/train.jsonl", "en/validation.jsonl"),
        ("train/a.txt", "test/a.txt", "notes.md"),
        ("TEST.JSONL", "a.jsonl"),
        ("train1.jsonl", "train2.jsonl", "test1.jsonl"),
    ],
)
def test_f16_a_split_that_is_missing_is_never_made_of_another(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        if file.suffix == ".parquet":
            pq.write_table(pa.table({"text": [name]}), file)
        elif file.suffix.lower() == ".jsonl":
            write(file, name)
        else:
            file.write_text(name)
    error = refused(tmp_path, "calibration")
    assert "has no split 'calibration'; its splits: " in error.message
    assert error.hint.startswith("data.splits.calibration: ")


def test_f16_programs_and_pages_named_train_or_test_are_programs_and_pages(tmp_path: Path) -> None:
    names = ("train.py", "test.py", "docs/test.md", "requirements/dev.txt", "validation.sh")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    assert everything(tmp_path)[0] == Counter(f"# {name}\n" for name in names)


def test_f16_a_file_of_one_split_in_the_folder_of_another(tmp_path: Path) -> None:
    write(tmp_path / "train" / "validation.jsonl", "which?")
    write(tmp_path / "train" / "a.jsonl", "train")
    assert "named for the split 'validation' and lies in that of 'train'" in (
        refused(tmp_path).message
    )


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n"
ROWS = b'{"text": "a"}\n{"text": "b"}\n'


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("train.txt", ROWS, "JSON lines, but its name does not say so"),
        ("train.txt", ROWS[:14], "JSON lines, but its name does not say so"),
        ("train.data", ROWS, "JSON lines, but its name does not say so"),
        ("train.txt", b'{"text": "' + b"x" * 100_000 + b'"}\n', "JSON lines, but"),
        ("train.jsonl", b"PAR1\0\0", "a Parquet file, but its name says otherwise"),
        ("train.jsonl", b"just words\n", "begins with neither { nor ["),
        ("train.parquet", ROWS, "named Parquet, but it is none"),
        ("train.arrow", ROWS, "named Arrow, but it is none"),
        ("train.jsonl", LFS, "a pointer of Git LFS"),
        ("train.parquet", LFS, "a pointer of Git LFS"),
        ("train.txt", LFS, "a pointer of Git LFS"),
        ("train.jsonl", gzip.compress(ROWS, mtime=0), "compressed, but its name does not say so"),
        ("train.txt", b"a\0b\0", "binary, or UTF-16 without a byte order mark"),
        ("train.csv", b"text\na\n", "a table or an archive"),
        ("train.zip", b"PK\3\4", "a table or an archive"),
        ("train.parquet.gz", gzip.compress(b"PAR1", mtime=0), "compressed Parquet"),
    ],
)
def test_f16_a_file_that_is_not_what_its_name_says(
    tmp_path: Path, name: str, data: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(data)
    write(tmp_path / "validation.jsonl", "v")
    for path in (tmp_path, tmp_path / name):
        error = refused(path)
        assert f"{tmp_path / name} is not read: " in error.message
        assert why in error.message
        assert error.hint


def test_f16_bytes_that_are_no_text_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("é".encode("latin-1") * 3 + b" and more\n" * 3)
    texts, found = everything(tmp_path / "a.txt")
    assert texts == Counter(["\ufffd" * 3 + " and more\n" * 3])
    write(tmp_path / "b.jsonl", "one", "two")
    data = (tmp_path / "b.jsonl").read_bytes().replace(b"two", b"tw\xff\xfe")
    (tmp_path / "b.jsonl").write_bytes(data)
    source = load_split(tmp_path / "b.jsonl", "train")
    list(source)
    assert counts(found, "repaired") == {BAD_BYTES: 3}
    found = source.found(tokens=0)
    assert found.repaired[0].first == "b.jsonl:2"
    assert (
        "repaired: a byte that is not UTF-8, replaced (2 times, first b.jsonl:2)"
        in found.warnings()[0]
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-be"])
def test_f16_a_byte_order_mark_says_how_to_read(tmp_path: Path, encoding: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    for name, text in (("train.txt", "Grüße\nzwei\n"), ("validation.jsonl", '{"text": "ü"}\n' * 2)):
        (tmp_path / name).write_bytes((mark + text).encode(encoding))
    assert read(tmp_path, "train")[0] == ["Grüße\nzwei\n"]
    assert read(tmp_path, "validation")[0] == ["ü", "ü"]


# Mixed folders


def test_u14_all_kinds_of_a_mixed_folder_are_read(tmp_path: Path) -> None:
    for i in range(300):
        (tmp_path / f"{i}.txt").write_text(f"text {i}")
    write(tmp_path / "few.jsonl", "row 1", "row 2")
    pq.write_table(pa.table({"text": ["cell"]}), tmp_path / "one.parquet")
    (tmp_path / "README.md").write_text("about the data")
    texts, found = everything(tmp_path)
    assert texts == Counter([*(f"text {i}" for i in range(300)), "row 1", "row 2", "cell"])
    assert dict(found.kinds) == {"plain text": 300, "JSON lines": 1, "Parquet": 1}
    assert found.num_files == 302


def test_u14_a_folder_of_programs_with_json_files(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)\n")
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "tsconfig.json").write_text("{ // words\n}")
    (tmp_path / "weights.bin").write_bytes(b"\0\1")
    texts, found = everything(tmp_path)
    assert texts == Counter(["print(1)\n"])
    assert counts(found, "skipped") == {"JSON that holds no rows of text": 2}
    assert sum(one.count for one in found.ignored) == 1
    assert found.ignored[0].first == "weights.bin"


@pytest.mark.parametrize(
    "other", ["train.parquet", "train.txt", "train.jsonl.gz", "train.JSON.GZ", "train.ndjson"]
)
def test_u14_one_split_in_two_forms_is_refused(tmp_path: Path, other: str) -> None:
    splits(tmp_path)
    if other.endswith("parquet"):
        pq.write_table(pa.table({"text": ["train one"]}), tmp_path / other)
    elif other.lower().endswith("gz"):
        (tmp_path / other).write_bytes(gzip.compress(b'{"text": "train one"}\n', mtime=0))
    else:
        (tmp_path / other).write_text("train one")
    assert "are the same split in two forms" in refused(tmp_path).message
    assert read(tmp_path, "validation")[0] == ["validation one", "validation two"]


def test_u14_files_of_no_split_are_named(tmp_path: Path) -> None:
    splits(tmp_path)
    write(tmp_path / "extra.jsonl", "lost")
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "extra.jsonl", "lost too")
    found = read(tmp_path)[1]
    assert counts(found, "ignored") == {"named for no split": 2}
    assert "ignored: named for no split (2 times, first extra.jsonl)" in found.warnings()[0]


def test_u14_mixed_kinds_in_the_folder_of_a_split(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.jsonl", "row")
    (tmp_path / "train" / "b.txt").write_text("plain")
    (tmp_path / "train" / "c.png").write_bytes(b"\x89PNG\0")
    texts, found = read_ok(tmp_path)
    assert texts == ["row", "plain"]
    assert found.ignored[0].first == "train/c.png"


# What else lies in folders


def test_links_pipes_and_folders_named_like_files(tmp_path: Path) -> None:
    data = splits(tmp_path / "data")
    (data / "again").symlink_to(data)
    (data / "up").symlink_to(tmp_path)
    (data / "root").symlink_to("/")
    (data / "self").symlink_to("self")
    (data / "dead").symlink_to("nowhere")
    os.mkfifo(data / "pipe")
    texts, found = read(data)
    assert texts == ["train one", "train two"]
    assert counts(found, "ignored") == {
        "a link to a folder that is read already, or lies above": 3,
        "a link that leads nowhere": 2,
        "a pipe or a device": 1,
    }


def test_a_folder_named_as_a_file_is_a_split_of_parts(tmp_path: Path) -> None:
    """As Spark writes: train.jsonl/part-00000.json, and _SUCCESS beside."""
    for split in SPLITS:
        for part in range(2):
            write(tmp_path / f"{split}.jsonl" / f"part-{part:05d}.json", f"{split} {part}")
        (tmp_path / f"{split}.jsonl" / "_SUCCESS").touch()
    assert read(tmp_path, "validation")[0] == ["validation 0", "validation 1"]


def test_a_split_whose_file_is_gone_or_no_file(tmp_path: Path) -> None:
    splits(tmp_path)
    (tmp_path / "train.jsonl").unlink()
    (tmp_path / "train.jsonl").symlink_to("nowhere")
    assert "train.jsonl: a link that leads nowhere" in refused(tmp_path).message
    (tmp_path / "train.jsonl").unlink()
    os.mkfifo(tmp_path / "train.jsonl")
    assert "train.jsonl: a pipe or a device" in refused(tmp_path).message
    assert "neither a file nor a folder" in refused(tmp_path / "train.jsonl").message


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits(tmp_path)

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fretsaw.train.files._opened", forbidden)
    assert "train.jsonl cannot be read: Permission denied" in refused(tmp_path).message


def test_names_that_are_no_characters_and_folders_that_are_deep(tmp_path: Path) -> None:
    splits(tmp_path)
    deep = tmp_path
    for _ in range(40):
        deep /= "d" * 40
    deep.mkdir(parents=True)
    write(deep / os.fsdecode(b"\xff.jsonl"), "lost")
    found = read(tmp_path)[1]
    assert found.ignored[0].first.endswith("/\ufffd.jsonl")
    assert json.dumps(found.to_json()).encode()


def test_a_file_of_two_names_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x.jsonl", "once")
    (tmp_path / "a" / "latest.jsonl").symlink_to("x.jsonl")
    (tmp_path / "a" / "y.jsonl").hardlink_to(tmp_path / "a" / "x.jsonl")
    texts, found = everything(tmp_path / "a")
    assert texts == Counter(["once"])
    assert counts(found, "ignored") == {"a link to a file that is read already": 2}
    splits(tmp_path / "b")
    (tmp_path / "b" / "calibration.jsonl").unlink()
    (tmp_path / "b" / "calibration.jsonl").symlink_to("train.jsonl")
    assert read(tmp_path / "b", "calibration")[0] == read(tmp_path / "b", "train")[0]


@pytest.mark.parametrize("name", ["validation/dev.jsonl", "validation/en_valid-0.jsonl"])
def test_another_word_for_the_split_of_its_folder(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, "ours")
    write(tmp_path / "train" / "a.jsonl", "train")
    assert read(tmp_path, "validation")[0] == ["ours"]


def test_a_link_to_a_folder_of_a_split_is_followed(tmp_path: Path) -> None:
    splits(tmp_path / "elsewhere")
    (tmp_path / "data").mkdir()
    for split in SPLITS:
        write(tmp_path / "far" / split / "a.jsonl", f"{split} far")
        (tmp_path / "data" / split).symlink_to(tmp_path / "far" / split)
    assert read(tmp_path / "data", "calibration")[0] == ["calibration far"]


def test_the_order_on_disk_does_not_matter(tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(20)]
    for folder, order in (("a", names), ("b", names[::-1])):
        (tmp_path / folder).mkdir()
        for name in order:
            (tmp_path / folder / name).write_text(name)
    assert read(tmp_path / "a")[0] == read(tmp_path / "b")[0]


def test_what_was_found_is_plain_data(tmp_path: Path) -> None:
    splits(tmp_path)
    write(tmp_path / "extra.jsonl", "x")
    found = read(tmp_path)[1]
    data = json.loads(json.dumps(found.to_json()))
    assert data == found.to_json()
    assert FoundText.from_json(data) == found
    assert str(found) == (
        f"train: 2 documents of {tmp_path}/train.jsonl (JSON lines, column 'text'); 0 tokens taken"
    )
    source: TextSource = load_split(tmp_path, "train")
    next(iter(source))
    assert str(source.found(tokens=5)).startswith(f"train: first 1 documents of {tmp_path}")


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_random_folders_give_exactly_what_was_written(tmp_path: Path, start: int) -> None:
    for seed in range(start, start + 50):
        layout = draw(tmp_path / str(seed), seed)
        try:
            if "all" in layout.texts:
                assert everything(layout.root)[0] == layout.texts["all"]
            else:
                for split in ALL:
                    texts, found = read(layout.root, split)
                    assert Counter(texts) == layout.texts[split]
                    assert found.share is None
        except Exception as error:
            error.add_note(f"seed {seed}: {layout.root}")
            raise


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_damaged_folders_are_refused_or_read_and_never_crash(tmp_path: Path, start: int) -> None:
    refusals = 0
    for seed in range(start, start + 40):
        layout = draw(tmp_path / str(seed), seed)
        damage(layout.root, random.Random(seed))
        for split in ALL:
            source = None
            try:
                source = load_split(layout.root, split)
                assert not any("NOT OURS" in text for text in source)
            except DataError:
                refusals += 1
            if source is not None:
                assert str(source.found(tokens=0))
    assert refusals > 10
