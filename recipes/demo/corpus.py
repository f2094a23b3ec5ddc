"""Text for the demo: Python's standard library, read from the running interpreter, and recall.

    python recipes/demo/corpus.py --out DIR

writes DIR/train.jsonl, DIR/calibration.jsonl and DIR/validation.jsonl, a line a document with the
fields "text" and "module". A module and its tests fall in one split, chosen by a hash of the
module's name, so the splits are the same on every machine. A tenth of each split is synthetic
recall: a dict literal whose entries are looked up further down.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

SPLITS = ("train", "calibration", "validation")
# Chosen so that the standard library of 3.11 falls 90 : 5 : 5 by bytes.
SALT = "fretsaw-88"
CALIBRATION_SHARE = 0.05
VALIDATION_SHARE = 0.05
RECALL_SHARE = 0.1
SEED = 20261201
MIN_CHARS = 200
MAX_FILE_CHARS = 400_000

SKIPPED_FOLDERS = {
    "__pycache__",
    "site-packages",
    "dist-packages",
    "pydoc_data",
    "encodings",
    "data",
    "lib2to3",
    "cjkencodings",
    "config-3",
}
SKIPPED_FILES = {"unicodedata_db.py", "entities.py", "test_codecs.py", "re_tests.py"}

# Four letters each: short enough to be one token.
WORDS = """
able acid aged also area army away baby back ball band bank base bath bear beat bell belt bend
best bird blow blue boat body bold bond bone book boot born boss both bowl bulk burn bush busy cake
call calm camp card care case cash cast cell chef city clay clip club coal coat code cold come cook
cool cope copy core cost crew crop dark data date dawn days deal dean dear debt deep deny desk dial
diet dirt disk dock door dose down draw drop drum dual dust duty each earn ease east easy edge else
even ever exit face fact fade fail fair fall farm fast fate fear feed feel file fill film find fine
fire firm fish five flag flat flow fold food foot form fort four free frog fuel full fund gain game
gate gear gift girl give glad goal gold golf good gray grid grow gulf hair half hall hand hard harm
hate have head hear heat herb hero hill hint hold hole home hope horn host hour huge hunt idea inch
iron item join jump jury keen keep kick kind king knee lady lake lamp land lane last late lead leaf
lean left less life lift like lime line link lion list live load loan lock logo long loop lord lose
loss love luck main make male mark mass mate meal mean meat menu mile milk mill mind mine mint moon
more most move much name navy near neck need news next nice nine node none nose note oval pack page
pain pair palm park part pass past path peak pick pine pink pipe plan play plot plug poem pole pond
pool port pose post pull pump pure push race rail rain rank rare rate read real rely rent rest rice
rich ride ring rise risk road rock role roll roof room root rope rose rule rush safe sail salt same
sand save seat seed seek self sell send ship shoe shop show sick side sign silk sing site size skin
slip slow snow soap soft soil sold sole song soon sort soul spin spot star stay stem step stop suit
sure swim tail take tale talk tall tank tape task team tent term test text than thin tide tile time
tiny tire tone tool tour town tree trip tube tune turn twin type unit user vary vast verb very vice
view vote wage wait walk wall want warm wash wave weak wear week well west wide wife wild wind wine
wing wire wise wish wolf wood word work yard year zero zone
""".split()  # noqa: SIM905


def main() -> None:
    """Parse the command line and write the three splits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    write_corpus(parser.parse_args().out)


def write_corpus(out: Path) -> None:
    """Write the corpus aside and rename it to `out`; do nothing if it is there already.

    Args:
        out: Folder to make.

    Raises:
        SystemExit: `out` holds something else than this corpus.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        for split, documents in build_splits().items():
            lines = (json.dumps(document) + "\n" for document in documents)
            (aside / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
        aside.chmod(0o755)
        if out.exists() and any(out.iterdir()):
            if _digests(out) != _digests(aside):
                message = f"error: {out} is not empty and is not this corpus"
                raise SystemExit(f"{message}\nhint: remove it, or pass another --out")
            return
        aside.replace(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def build_splits() -> dict[str, list[dict[str, str]]]:
    """Documents of every split: source files in a seeded order with recall in between."""
    splits: dict[str, list[dict[str, str]]] = {split: [] for split in SPLITS}
    for module, text in read_sources(Path(sysconfig.get_paths()["stdlib"])):
        splits[split_of(module)].append({"text": text, "module": module})
    for split, documents in splits.items():
        rng = random.Random(f"{SEED}-{split}")
        documents.extend(recall_documents(documents, rng=rng))
        rng.shuffle(documents)
    return splits


def read_sources(folder: Path) -> Iterator[tuple[str, str]]:
    """Module name and text of each source file below `folder`, in the order of their paths."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if any(part in SKIPPED_FOLDERS or "data" in part for part in parts[:-1]):
            continue
        if path.name in SKIPPED_FILES or path.name.startswith(("_sysconfigdata", "bad")):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if MIN_CHARS <= len(text) <= MAX_FILE_CHARS:
            yield module_of(parts), text


def module_of(parts: tuple[str, ...]) -> str:
    """Top-level module that a file belongs to; a test belongs to the module it tests."""
    in_test = parts[0] == "test" and len(parts) > 1
    name = parts[1] if in_test else parts[0]
    name = name.removesuffix(".py")
    if in_test:
        name = name.removeprefix("test_")
    return name.strip("_") or "test"


def split_of(module: str) -> str:
    """Split of a module, by a hash of its name."""
    digest = hashlib.sha256(f"{SALT}/{module}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < CALIBRATION_SHARE:
        return "calibration"
    return "validation" if position < CALIBRATION_SHARE + VALIDATION_SHARE else "train"


def recall_documents(
    documents: list[dict[str, str]], *, rng: random.Random
) -> list[dict[str, str]]:
    """Recall documents that make up `RECALL_SHARE` of a split's characters."""
    source_chars = sum(len(document["text"]) for document in documents)
    wanted = source_chars * RECALL_SHARE / (1 - RECALL_SHARE)
    recall: list[dict[str, str]] = []
    chars = 0
    while chars < wanted:
        filler = rng.choice(documents)["text"].splitlines()
        text = recall_text(filler, rng=rng)
        recall.append({"text": text, "module": "recall"})
        chars += len(text)
    return recall


def recall_text(filler: list[str], *, rng: random.Random) -> str:
    """One recall document: a dict literal, in a third of them some lines of code, then lookups.

    Args:
        filler: Lines of a source file of the same split.
        rng: Source of every choice.

    Returns:
        Text whose lookups read `assert table["key"] == "value"`, one a line.
    """
    num_entries = rng.randint(4, 12)
    keys = rng.sample(WORDS, num_entries)
    values = rng.choices(WORDS, k=num_entries)
    name = rng.choice(("table", "config", "items", "names"))
    lines = [f"{name} = {{"]
    lines += [f'    "{key}": "{value}",' for key, value in zip(keys, values, strict=True)]
    lines.append("}")
    if rng.random() < 1 / 3:
        start = rng.randrange(max(1, len(filler) - 8))
        lines += filler[start : start + rng.randint(2, 8)]
    order = rng.sample(range(num_entries), num_entries)
    lines += [f'assert {name}["{keys[i]}"] == "{values[i]}"' for i in order]
    return "\n".join(lines) + "\n"


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.iterdir()
    }


if __name__ == "__main__":
    sys.exit(main())
