"""Text sources, splits and packing."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from fretsaw.errors import CheckpointError, DataError
from fretsaw.train.data import SHARES, load_split, split_of
from fretsaw.train.packing import load_tokenizer, pack, shared_vocab
from fretsaw.train.splits import Split
from tests.pico import EOS, VOCAB, write_tokenizer

SPLITS: tuple[Split, ...] = ("train", "calibration", "validation")


def rows(count: int, word: str = "row") -> list[dict[str, Any]]:
    return [{"text": f"{word} {i} says {i * 7919 % 1000}", "n": i} for i in range(count)]


def write_jsonl(path: Path, data: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in data))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(folder)


def write_splits(folder: Path, *, kind: str) -> None:
    for split in SPLITS:
        data = datasets.Dataset.from_list(rows(5, split))
        if kind == "jsonl":
            write_jsonl(folder / f"{split}.jsonl", rows(5, split))
        elif kind == "shards":
            write_jsonl(folder / f"{split}-00000-of-00002.jsonl", rows(5, split)[:3])
            write_jsonl(folder / f"{split}-00001-of-00002.jsonl", rows(5, split)[3:])
        elif kind == "parquet":
            folder.mkdir(exist_ok=True)
            data.to_parquet(folder / f"{split}.parquet")
        elif kind == "folders":
            for i, row in enumerate(rows(5, split)):
                (folder / split).mkdir(parents=True, exist_ok=True)
                (folder / split / f"{i}.py").write_text(row["text"])
    if kind == "disk":
        sets = {split: datasets.Dataset.from_list(rows(5, split)) for split in SPLITS}
        datasets.DatasetDict(sets).save_to_disk(folder)
    (folder / "README.md").write_text("a card")


@pytest.mark.parametrize("kind", ["jsonl", "shards", "parquet", "folders", "disk"])
@pytest.mark.parametrize("split", SPLITS)
def test_every_form_of_a_data_set_gives_its_split(tmp_path: Path, kind: str, split: Split) -> None:
    write_splits(tmp_path / "set", kind=kind)
    source = load_split(tmp_path / "set", split)
    assert list(source) == [row["text"] for row in rows(5, split)]
    assert not source.is_hashed
    assert list(source) == list(source), "a source can be read again"


def test_a_single_file_is_split_by_hash_and_nothing_is_lost(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all.jsonl", rows(2000))
    parts = {split: list(load_split(tmp_path / "all.jsonl", split)) for split in SPLITS}
    together = [text for part in parts.values() for text in part]
    assert Counter(together) == Counter(row["text"] for row in rows(2000))
    for split, part in parts.items():
        assert abs(len(part) / 2000 - SHARES[split]) < 0.03
        assert all(split_of(text) == split for text in part)


def test_a_plain_text_file_is_cut_into_pieces_at_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("".join(f"line {i} of a long book, and so on\n" for i in range(30_000)))
    parts = {split: list(load_split(file, split)) for split in SPLITS}
    assert all(parts.values())
    assert sum(len(text) for part in parts.values() for text in part) == file.stat().st_size
    assert all(text.endswith("\n") for text in parts["train"])
    assert "80% of its pieces" in load_split(file, "train").describe()


def test_a_folder_of_code_is_plain_text_even_with_a_folder_named_train(tmp_path: Path) -> None:
    for name in ("train/loop.py", "core/axes.py", "main.py", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    source = load_split(tmp_path, "train")
    assert source.is_hashed
    assert [file.name for file in source.files] == ["core/axes.py", "main.py", "train/loop.py"]


def test_valid_for_validation_names_the_nearest_split(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows(5, name))
    with pytest.raises(
        DataError, match=r"no split 'validation'; its splits: train, valid"
    ) as error:
        load_split(tmp_path, "validation")
    assert error.value.hint == "data.splits.validation: valid"
    source = load_split(tmp_path, "validation", names={"validation": "valid"})
    assert len(list(source)) == 5
    with pytest.raises(DataError) as error:
        load_split(tmp_path, "calibration", names={"validation": "valid"})
    assert error.value.hint == "data.splits.calibration: train"


def test_missing_split_of_a_saved_data_set(tmp_path: Path) -> None:
    part = datasets.Dataset.from_list(rows(3))
    datasets.DatasetDict(train=part, dev=part).save_to_disk(tmp_path / "set")
    with pytest.raises(DataError, match="its splits: dev, train") as error:
        load_split(tmp_path / "set", "validation")
    assert error.value.hint == "data.splits.validation: dev"


def test_hub_name_is_never_downloaded() -> None:
    with pytest.raises(DataError, match="downloads nothing") as error:
        load_split(Path("openai/gsm8k"), "train")
    assert "save_to_disk" in error.value.hint
    with pytest.raises(DataError, match="does not exist"):
        load_split(Path("/nowhere/at/all.txt"), "train")


def test_missing_text_column_names_the_nearest(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"texts": "a", "n": 1}])
    with pytest.raises(DataError, match="no column 'text'; its columns: texts, n") as error:
        list(load_split(tmp_path / "a.jsonl", "train"))
    assert error.value.hint == "data.text_key: texts"


def test_text_column_of_numbers_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": 3}])
    with pytest.raises(DataError, match=r"a\.jsonl:1: column .text. holds a number"):
        list(load_split(tmp_path / "a.jsonl", "train"))


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2 is no whole JSON value"):
        list(load_split(tmp_path / "bad.jsonl", "train"))
    (tmp_path / "weights.bin").write_bytes(b"\0\1\2")
    with pytest.raises(DataError, match=r"weights\.bin is not read: binary"):
        load_split(tmp_path / "weights.bin", "train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no text"):
        load_split(tmp_path / "empty", "train")


def test_pack_joins_documents_by_eos_without_padding(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = [f"document number {i}" for i in range(50)]
    ids = pack(texts, tokenizer, num_sequences=6, sequence_length=32, seed=0, vocab_size=VOCAB)
    assert ids.shape == (6, 32)
    assert ids.dtype == torch.int64
    decoded = tokenizer.decode(ids.flatten())
    assert isinstance(decoded, str)
    whole = decoded.split(EOS)[:-1]
    assert len(whole) > 5
    assert set(whole) <= set(texts)


def test_pack_does_not_depend_on_the_order_on_disk(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = [f"document number {i} {'x' * (i % 40)}" for i in range(400)]
    shuffled = random.Random(1).sample(texts, len(texts))
    packed = [
        pack(t, tokenizer, num_sequences=9, sequence_length=64, seed=s, vocab_size=VOCAB)
        for t, s in ((texts, 0), (shuffled, 0), (texts, 1))
    ]
    assert torch.equal(packed[0], packed[1])
    assert not torch.equal(packed[0], packed[2])


def test_pack_reads_no_more_than_it_needs(tokenizer: PreTrainedTokenizerBase) -> None:
    read = 0

    class Endless:
        def __iter__(self) -> Iterator[str]:
            nonlocal read
            for i in range(10**9):
                read += 1
                yield f"document number {i}"

    ids = pack(
        Endless(),
        tokenizer,
        num_sequences=4,
        sequence_length=32,
        seed=0,
        vocab_size=VOCAB,
    )
    assert ids.shape == (4, 32)
    assert read < 2000


def test_pack_takes_all_text_if_it_must(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = [" " * 400 + f"{i}" for i in range(60)]  # many characters per token
    total = sum(len(tokenizer(text)["input_ids"]) + 1 for text in texts)
    ids = pack(
        texts, tokenizer, num_sequences=total // 16, sequence_length=16, seed=0, vocab_size=VOCAB
    )
    assert ids.numel() > total - 16


def test_text_too_short_says_how_much_there_is(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = ["short"] * 3
    total = 3 * (len(tokenizer("short")["input_ids"]) + 1)
    with pytest.raises(DataError, match=f"too short: {total} tokens found, 640 needed") as error:
        pack(texts, tokenizer, num_sequences=10, sequence_length=64, seed=0, vocab_size=VOCAB)
    assert "fewer or shorter sequences" in error.value.hint
    ids = pack(
        texts,
        tokenizer,
        num_sequences=10,
        sequence_length=4,
        seed=0,
        vocab_size=VOCAB,
        min_sequences=1,
    )
    assert ids.shape == (total // 4, 4)
    with pytest.raises(DataError, match="0 tokens found"):
        pack([], tokenizer, num_sequences=1, sequence_length=4, seed=0, vocab_size=VOCAB)


def test_token_ids_beyond_the_vocabulary_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(CheckpointError, match="the model has 50 embeddings"):
        pack(["other words"], tokenizer, num_sequences=1, sequence_length=4, seed=0, vocab_size=50)


def test_missing_or_damaged_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        load_tokenizer(tmp_path)
    write_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="no end-of-text token"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tokenizer(tmp_path)


def test_r69_padded_vocabulary(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    assert shared_vocab(tokenizer, tokenizer, student_size=VOCAB, teacher_size=VOCAB + 8) == VOCAB
    with pytest.raises(CheckpointError, match="the difference is no padding"):
        shared_vocab(tokenizer, tokenizer, student_size=VOCAB - 8, teacher_size=VOCAB)
    write_tokenizer(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text().replace("<extra_0>", "<other_0>")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match="different tokenizers"):
        shared_vocab(tokenizer, load_tokenizer(tmp_path), student_size=VOCAB, teacher_size=VOCAB)
