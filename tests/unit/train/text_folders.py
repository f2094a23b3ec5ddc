"""Folders of text as people have them, drawn at random, with what must be read of each."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fretsaw.errors import DataError
from fretsaw.train.data import load_split
from fretsaw.train.found import FoundText
from fretsaw.train.splits import Split

SPLITS = ("train", "calibration", "validation")
ODD_NAMES = (
    "v[2]",
    "set*",
    "a::b",
    "what?",
    "s3:",
    "x{1,2}",
    "#1",
    "50%",
    "ünï",
    "a b",
    "~",
    "$HOME",
)
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def json_lines(texts: list[str], rng: random.Random) -> bytes:
    """Rows with columns that nobody reads, in odd order and spacing."""
    lines = []
    for i, text in enumerate(texts):
        row: dict[str, Any] = {"id": i, "meta": rng.choice([None, "x", {"a": [1]}]), "text": text}
        keys = rng.sample(list(row), len(row))
        dumped = json.dumps({k: row[k] for k in keys}, ensure_ascii=rng.random() < 0.5)
        lines.append(dumped + rng.choice(["\n", "\r\n", "\n\n", " \n"]))
    body = "".join(lines)
    return rng.choice([body, body.rstrip(), "\ufeff" + body]).encode()


def json_array(texts: list[str], rng: random.Random) -> bytes:
    rows = [{"text": text} for text in texts]
    return json.dumps(rows, indent=rng.choice([None, 1])).encode()


def parquet(texts: list[str], rng: random.Random) -> bytes:
    table = pa.table({"n": list(range(len(texts))), "text": texts, "null": [None] * len(texts)})
    if rng.random() < 0.3:
        kind = rng.choice([pa.large_string(), pa.binary()])
        table = table.set_column(1, "text", table.column("text").cast(kind))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rng.randint(1, 3))
    return bytes(sink.getvalue().to_pybytes())


def arrow(texts: list[str], rng: random.Random) -> bytes:
    table = pa.table({"text": texts})
    sink = pa.BufferOutputStream()
    new = rng.choice([pa.ipc.new_stream, pa.ipc.new_file])
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


WRITERS = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".jsonlines": json_lines,
    ".json": json_array,
    ".parquet": parquet,
    ".arrow": arrow,
}


@dataclass
class Layout:
    """A folder of text, and what each split of it holds (``all`` where it names none)."""

    root: Path
    rng: random.Random
    texts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    decoys: int = 0
    number: int = 0

    def write(self, path: Path, split: str, *, suffix: str | None = None) -> None:
        """A file of a random kind; `path` has no suffix yet."""
        rng = self.rng
        suffix = suffix or rng.choice([*WRITERS, ".txt", ".text"])
        texts = [self.text() for _ in range(rng.randint(0, 4))]
        packed = ""
        if suffix in WRITERS:
            data = WRITERS[suffix](texts, rng)
            if suffix not in (".parquet", ".arrow"):
                packed = rng.choice(["", "", *PACKED])
        else:
            texts = texts[:1]
            data = "".join(texts).encode(rng.choice(["utf-8", "utf-8-sig", "utf-16"]))
            packed = rng.choice(["", "", *PACKED])
        name = path.name + suffix + packed
        name = rng.choice([name, name, path.name + (suffix + packed).upper(), name.title()])
        if path.with_name(name).exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(name).write_bytes(PACKED[packed](data))
        self.texts[split].update(texts)

    def text(self) -> str:
        self.number += 1
        words = self.rng.choice(
            ["plain words", 'quo"tes \\ and\ttabs', "ünïcödé 漢字 🙂", "{[}]", "a\nb"]
        )
        return f"{words} of document {self.number} in {self.root.name}"

    def add_decoys(self) -> None:
        """What lies about in folders and is no text of theirs."""
        rng = self.rng
        decoys: list[Callable[[], None]] = [
            lambda: (self.root / ".hidden.jsonl").write_text("{}") and None,
            lambda: (self.root / "picture.png").write_bytes(b"\x89PNG\0\0") and None,
            lambda: (self.root / "loop").symlink_to(self.root),
            lambda: (self.root / "dead.jsonl").symlink_to("nowhere"),
            lambda: (self.root / "self").symlink_to("self"),
            lambda: os.mkfifo(self.root / "pipe.jsonl"),
            (self.root / "folder.jsonl").mkdir,
            (self.root / "empty.txt").touch,
        ]
        for decoy in rng.sample(decoys, rng.randint(0, 4)):
            decoy()
            self.decoys += 1

    def add_siblings(self) -> None:
        """Folders and files that a pattern made of the root's path would find."""
        for name in ("v2", "set-other", "setx", "whatx", "x1", "a", "b"):
            other = self.root.parent / name
            if other != self.root and not other.exists():
                for split in SPLITS:
                    other.mkdir(exist_ok=True)
                    (other / f"{split}.jsonl").write_text('{"text": "NOT OURS"}\n')


def draw(parent: Path, seed: int) -> Layout:
    """A random folder below `parent`; the same for the same seed."""
    rng = random.Random(seed)
    layout = Layout(parent / rng.choice([*ODD_NAMES, "plain"]), rng)
    layout.root.mkdir(parents=True)
    kind = rng.choice(["files", "shards", "folders", "deep", "none"])
    for split in SPLITS:
        own = layout.root
        if kind == "files":
            layout.write(own / split, split)
        elif kind == "shards":
            suffix = rng.choice(list(WRITERS))
            mark = rng.choice(["{}-{:05d}-of-00003", "{}_{}", "{}.{}", "{}-part-{}"])
            for i in range(rng.randint(1, 3)):
                layout.write(own / mark.format(split, i), split, suffix=suffix)
        elif kind == "folders":
            suffix = rng.choice(list(WRITERS))
            for i in range(rng.randint(1, 3)):
                layout.write(own / split / f"{rng.choice('abc[*')}{i}", split, suffix=suffix)
        elif kind == "deep":
            layout.write(own / "data" / split, split, suffix=rng.choice([".jsonl", ".parquet"]))
        else:
            for i in range(rng.randint(1, 4)):
                deep = own / rng.choice(["", "x", "x/y", "[a]"])
                layout.write(deep / f"{rng.choice('abc*?')}{i}-{split[0]}", "all")
    layout.add_decoys()
    layout.add_siblings()
    return layout


def damage(folder: Path, rng: random.Random) -> None:
    """Change bytes of some files, cut them, or give them other names."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()]
    for file in rng.sample(files, min(len(files), rng.randint(1, 3))):
        data = bytearray(file.read_bytes())
        kind = rng.choice(["flip", "cut", "insert", "append", "rename"])
        if kind == "flip":
            for _ in range(min(len(data), rng.randint(1, 4))):
                data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind == "cut":
            del data[rng.randrange(len(data) + 1) :]
        elif kind == "insert":
            data[(at := rng.randrange(len(data) + 1)) : at] = rng.randbytes(rng.randint(1, 9))
        elif kind == "append":
            data += rng.choice([b'{"text": 3}\n', b"\0", b"[", b'{"messages": [{}]}', b"\xff\xfe"])
        file.write_bytes(data)
        stem, suffix = rng.choice(["train", "test", "x"]), rng.choice([*WRITERS, "", ".csv", ".gz"])
        if kind == "rename" and not (other := file.with_name(stem + suffix)).exists():
            file.rename(other)


ALL: tuple[Split, ...] = ("train", "calibration", "validation")


def write(path: Path, *texts: object) -> Path:
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def splits(folder: Path, suffix: str = ".jsonl", word: str = "") -> Path:
    for split in SPLITS:
        write(folder / f"{split}{suffix}", f"{word}{split} one", f"{word}{split} two")
    return folder


def read(path: Path, split: Split = "train") -> tuple[list[str], FoundText]:
    source = load_split(path, split)
    return list(source), source.found(tokens=0)


def everything(path: Path) -> tuple[Counter[str], FoundText]:
    """Texts of a source without splits, from all its shares."""
    sources = [load_split(path, split) for split in ALL]
    assert all(source.is_hashed for source in sources)
    texts = Counter(text for source in sources for text in source)
    return texts, sources[0].found(tokens=0)


def counts(found: FoundText, outcome: str) -> dict[str, int]:
    return {one.what: one.count for one in getattr(found, outcome)}


def refused(path: Path, split: Split = "train") -> DataError:
    with pytest.raises(DataError) as error:
        list(load_split(path, split))
    return error.value


def read_ok(path: Path) -> tuple[list[str], FoundText]:
    write(path / "validation.jsonl", "v")
    return read(path)
