"""What is imported, and when: help, and what is refused, come before anything heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "transformers", "datasets", "accelerate", "scipy", "plotly")
PROGRAM = f"""
import sys
from fretsaw.cli import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["fretsaw", *line.split()]
    try:
        main()
    except SystemExit as ending:
        print("ENDED", ending.code)
print("HEAVY", sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def outcome(*lines: str) -> tuple[str, list[str]]:
    """Stderr, and the last lines of stdout, of several commands in one new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr, done.stdout.splitlines()


def test_help_imports_nothing_heavy() -> None:
    _, lines = outcome("--help", "--version", "quantize --help")
    assert any("compress" in line for line in lines)
    assert lines[-1] == "HEAVY []"


def test_u15_what_is_not_there_is_said_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "typo.yaml").write_text("parent: p\ndata: {path: d}\ndistil: {tokens: 5}\n")
    (tmp_path / "broken.yaml").write_text("parent: [\n")
    commands = (
        "compress nope.yaml --out x",
        f"compress {tmp_path}/typo.yaml --out x",
        f"compress {tmp_path}/typo.yaml --out x --dry-run",
        f"score {tmp_path}/broken.yaml --out x",
        f"recipe {tmp_path}/typo.yaml",
        "describe nope",
        "verify nope",
        "plan nope --hardware H100 --context 8k",
        "plan @super nope --hardware H100 --context 8k",
        "quantize nope --out x",
        "quantize @super --out x",
        "export nope --engine vllm --out x",
        "serve nope --engine transformers --workload 8/8",
        f"serve {tmp_path} --against nope --engine transformers --workload 8/8",
    )
    said, lines = outcome(*commands)
    assert lines == ["ENDED 2"] * len(commands) + ["HEAVY []"]
    assert said.count("error: ") == said.count("hint: ") == len(commands)
    assert "did you mean 'distill'?" in said
    assert "Traceback" not in said


def test_python_imports_as_little() -> None:
    program = (
        "import sys, fretsaw\n"
        "fretsaw.plan('@super', '@puzzle', hardware='8xH100', context='128k')\n"
        "for call in (lambda: fretsaw.compress('nope.yaml', out='x'),\n"
        "             lambda: fretsaw.quantize('nope', out='x')):\n"
        "    try:\n"
        "        call()\n"
        "    except fretsaw.FretsawError as error:\n"
        "        assert 'nope' in error.message and error.hint\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
