"""Code blocks of Markdown pages, and how each is run.

A page is run from top to bottom in one folder, as a reader would. What a block is follows from its
language: `bash` is commands; `console` is commands after `$ `, each with what it prints below
(`…` stands for anything, and lines that are not shown may come between); `python` is a program of
its own; `yaml` is checked by its own test; `text` is not run. A block that needs more than a fresh
clone says so in a comment on the line above it: `<!-- needs: vllm -->`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "recipe.md",
    ROOT / "docs" / "cost-model.md",
    ROOT / "docs" / "from-a-sentence-to-a-budget.md",
    ROOT / "docs" / "report.md",
    ROOT / "docs" / "serve-your-child.md",
    ROOT / "recipes" / "demo" / "parent" / "README.md",
    ROOT / "plugins" / "fretsaw-vllm" / "README.md",
)
LANGUAGES = {"bash", "console", "python", "yaml", "text"}
NEEDS = {
    "minutes": "takes minutes; CI and the lead run it by hand",
    "gpu": "needs a GPU",
    "network": "needs a network",
    "vllm": "needs `make engines` (vLLM)",
    "llama.cpp": "needs `make engines` (llama.cpp)",
}
ENGINE_FOLDERS = {"vllm": "vllm", "llama.cpp": "llamacpp"}
TIMEOUT_S = 240


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A shell command and the lines that it should print."""

    text: str
    expected: tuple[str, ...] = ()


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block, in order."""
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    start = language = None
    for number, line in enumerate(lines, start=1):
        fence = re.fullmatch(r"\s*```(\w*)\s*", line)
        if fence and start is None:
            start, language = number, fence[1]
        elif fence and start is not None:
            text = "\n".join(lines[start : number - 1])
            found.append(Block(page, start, language or "", text, _needs(lines, start)))
            start = None
    return found


def _needs(lines: list[str], start: int) -> tuple[str, ...]:
    above = lines[start - 2] if start > 1 else ""
    said = re.fullmatch(r"\s*<!-- needs: ([\w., -]+) -->\s*", above)
    return tuple(re.split(r",\s*", said[1])) if said else ()


def commands_of(block: Block) -> list[Command]:
    """The commands of a `bash` or `console` block."""
    if block.language == "bash":
        return [Command(block.text)]
    return list(_prompted(block.text.splitlines()))


def _prompted(lines: list[str]) -> Iterator[Command]:
    command: list[str] = []
    expected: list[str] = []
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield Command("\n".join(command), tuple(expected))
            command, expected = [line[2:]], []
        elif command and command[-1].endswith("\\"):
            command.append(line)
        else:
            expected.append(line)
    if command:
        yield Command("\n".join(command), tuple(expected))


class Reader:
    """Somebody who follows a page: one folder, one shell's variables, no keyboard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = folder / ".variables"

    def run(self, command: Command) -> str:
        """What a command prints, errors included; its exit code must be 0."""
        script = f"set -e\n. {shlex.quote(str(self.variables))}\n{command.text}\n"
        script += f"export -p > {shlex.quote(str(self.variables))}\n"
        self.variables.touch()
        return self._call(["bash", "-c", script])

    def run_python(self, text: str, *, python: str = sys.executable) -> str:
        """The same of a Python program."""
        return self._call([python, "-c", text])

    def _call(self, command: list[str]) -> str:
        bin_folder = str(Path(sys.executable).parent)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"exit code {done.returncode} of {command[-1]}\n{done.stdout}"
        return done.stdout


def missing_line(printed: str, expected: tuple[str, ...]) -> str | None:
    """The first expected line that is not printed after those before it; None if all are."""
    lines = iter(printed.splitlines())
    for wanted in expected:
        pattern = ".*".join(map(re.escape, " ".join(wanted.split()).split("…")))
        if wanted.strip() not in ("", "…") and not any(
            re.fullmatch(pattern, " ".join(line.split())) for line in lines
        ):
            return wanted
    return None
