"""Every command and every snippet of every page does what the page says (F: U2, U4)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fretsaw.recipe import resolve_recipe
from tests.docs.pages import (
    ENGINE_FOLDERS,
    LANGUAGES,
    NEEDS,
    PAGES,
    ROOT,
    Block,
    Reader,
    blocks_of,
    commands_of,
    missing_line,
)

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COPIED = ("recipes", "docs", "benchmarks", "plugins", "Makefile", "constraints.txt")
LIGHT = {
    "calibrate.sequences": 8,
    "calibrate.sequence_length": 64,
    "library.repair_sequences": 4,
    "score.sequences": 2,
    "rank.min_tokens": 1,
    "search.n_best": 1,
    "rounds.1.search.random_choices": 0,
    "rounds.1.library.moe.ffn": "[48]",
    "rounds.2.library.moe.ffn": "[48]",
    "rounds.3.library.moe.top_k": "[2]",
    "distill.sequence_length": 64,
    "distill.validation_sequences": 4,
    "distill.evaluations": 1,
    "distill.learning_rate": "1e-4",
    "rounds.1.distill.tokens": 512,
    "rounds.2.distill.tokens": 512,
    "rounds.3.distill.tokens": 512,
}
"""What `make demo` does, on next to no text: the same folders, in a fraction of the time."""


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A fresh clone in which the documented set-up was done: `make demo`, nothing else."""
    folder = tmp_path_factory.mktemp("clone")
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    if (ROOT / ".engines").is_dir():
        (folder / ".engines").symlink_to(ROOT / ".engines")
    sets = [word for key, value in LIGHT.items() for word in ("--set", f"{key}={value}")]
    for command in (
        ["recipes/demo/corpus.py", "--out", "runs/demo-text"],
        ["-m", "fretsaw", "compress", "recipes/demo.yaml", "--out", "runs/demo", *sets],
    ):
        subprocess.run([sys.executable, *command], cwd=folder, check=True, capture_output=True)
    return Reader(folder)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_u4_every_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES
    assert set(block.needs) <= set(NEEDS)
    assert block.language != "console" or block.text.startswith("$ ")


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in ("bash", "console", "python")], ids=str
)
def test_u4_every_command_runs(block: Block, reader: Reader) -> None:
    if block.language == "python":
        compile(block.text, str(block), "exec")
    python = sys.executable
    for need in block.needs:
        folder = ENGINE_FOLDERS.get(need)
        if folder is None or not (ROOT / ".engines" / folder / ".ready").is_file():
            _check_words(block)
            pytest.skip(NEEDS[need])
        python = str(ROOT / ".engines" / folder / "bin" / "python")
    if block.language == "python":
        reader.run_python(block.text, python=python)
        return
    for command in commands_of(block):
        printed = reader.run(command)
        missing = missing_line(printed, command.expected)
        assert missing is None, f"{command.text}\ndoes not print\n{missing}\nbut\n{printed}"


def _check_words(block: Block) -> None:
    """What can be said of a block that cannot be run: it parses, and make knows its targets."""
    if block.language == "python":
        return
    text = "\n".join(command.text for command in commands_of(block))
    subprocess.run(["bash", "-n", "-c", text], check=True)
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["make"]:
            subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=str)
def test_u4_every_recipe_is_one(block: Block, tmp_path: Path) -> None:
    """A whole recipe, a part of one, or number formats for `quantize --to`."""
    data = yaml.safe_load(block.text)
    if "kv" in data:
        from fretsaw.stages.quantize_options import QuantizeOptions, precision_of  # noqa: PLC0415

        file = tmp_path / "mine.yaml"
        file.write_text(block.text)
        assert precision_of(QuantizeOptions(to=str(file)))
    else:
        assert resolve_recipe({"parent": "p", "data": {"path": "t"}} | data).rounds


def test_u4_the_runner_sees_what_a_page_gets_wrong(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one \\\n  two\none two\n$ echo 3\n4\n```\n")
    (block,) = blocks_of(page)
    first, second = commands_of(block)
    reader = Reader(tmp_path)
    assert missing_line(reader.run(first), first.expected) is None
    assert missing_line(reader.run(second), second.expected) == "4"
    with pytest.raises(AssertionError, match="exit code 3"):
        reader.run(type(first)("exit 3"))
    assert os.environ.get("HF_HUB_OFFLINE") == "1"
