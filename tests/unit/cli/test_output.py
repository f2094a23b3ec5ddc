"""What reaches a file, a pipe, a terminal of any width and a stream of any encoding."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fretsaw.cli import main
from fretsaw.cli.output import Answer, plain, show
from tests.shapes import CONFIGS

LONG = "a-name-of-a-model-that-somebody-has-thought-about-for-far-too-long-and-then-some-v2"
PLAN = ("--hardware", "8xB200", "--context", "128k")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config whose name is longer than a terminal is wide."""
    file = tmp_path_factory.mktemp("configs") / f"{LONG}.json"
    file.write_text((CONFIGS / "super.json").read_text())
    return file


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[bytes]:
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "TERM")}
    return subprocess.run(
        [sys.executable, "-m", "fretsaw", *map(str, arguments)],
        capture_output=True,
        env=kept | variables,
        check=False,
    )


def in_terminal(*arguments: object, columns: int, **variables: str) -> str:
    """What a terminal of a width is given."""
    kept = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    mother, daughter = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "fretsaw", *map(str, arguments)],
        stdin=daughter,
        stdout=daughter,
        stderr=daughter,
        env=kept | {"COLUMNS": str(columns), "TERM": "xterm"} | variables,
    )
    os.close(daughter)
    parts = []
    while True:
        try:
            part = os.read(mother, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(mother)
    assert program.wait() == 0
    return b"".join(parts).decode()


def test_u21_a_pipe_gets_whole_lines_and_whole_names(config: Path) -> None:
    done = run("plan", config, "@puzzle", *PLAN)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert LONG in text
    assert "…" not in text
    (assumed,) = (line for line in text.splitlines() if line.startswith("assumed:"))
    assert assumed.endswith("all sources with --json")
    assert "\x1b" not in text


def test_u21_columns_are_obeyed_where_they_are_set(config: Path) -> None:
    text = run("plan", config, *PLAN, COLUMNS="60").stdout.decode()
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_u21_a_narrow_terminal_breaks_names_and_never_cuts_them(
    config: Path, variables: dict[str, str]
) -> None:
    text = in_terminal("plan", config, *PLAN, columns=50, **variables)
    plain_text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert LONG in re.sub(r"[^\w-]", "", plain_text)
    assert "…" not in text
    assert not re.search(r"\x1b\[[0-9;]*[39]\d", text), "no colour"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_u21_streams_without_utf8_say_it_plainly(
    encoding: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*arguments: object) -> tuple[int, bytes, bytes]:
        out, err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr(sys, "argv", ["fretsaw", *map(str, arguments)])
        for name, stream in (("stdout", out), ("stderr", err)):
            wrapper = io.TextIOWrapper(stream, encoding=encoding, write_through=True)
            monkeypatch.setattr(sys, name, wrapper)
        with pytest.raises(SystemExit) as ending:
            main()
        left = out.getvalue(), err.getvalue()
        monkeypatch.undo()
        return int(ending.value.code or 0), *left

    code, out, err = said("plan", config, "@puzzle", *PLAN, "--workload", "8k/64k")
    assert (code, err) == (0, b"")
    assert b"?" not in out
    code, out, err = said("plan", "n→×\udcff", *PLAN)
    assert (code, out) == (2, b"")
    assert err.startswith(b"error: n->")
    assert b"\xff does not exist" in err, "a name that is no text is given back as it was"
    for command in ("plan", "quantize", "serve"):
        assert said(command, "--help")[0] == 0


def test_u21_the_c_locale_is_no_error() -> None:
    name = "näme→×"
    done = run("plan", name, *PLAN, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {name} does not exist".encode())


@pytest.mark.parametrize("arguments", [("plan", "@super", *PLAN), ("--help",)])
def test_u21_a_reader_that_goes_early_is_told_nothing(arguments: tuple[str, ...]) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "fretsaw", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() == 1


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fretsaw qu", ["quantize"]),
        ("fretsaw plan --hardw", ["--hardware"]),
        ("fretsaw plan @", ["@nano", "@puzzle", "@super"]),
        ("fretsaw plan @super --hardware 8xB2", ["8xB200"]),
        ("fretsaw plan @super --hardware H", ["H100", "H200"]),
        ("fretsaw serve x --engine ll", ["llama.cpp"]),
    ],
)
def test_u22_completion_knows_commands_options_and_values(
    line: str,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_FRETSAW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    monkeypatch.setattr(sys, "argv", ["fretsaw"])
    with pytest.raises(SystemExit) as ending:
        main()
    assert not ending.value.code
    assert capsys.readouterr().out.split() == offered


def test_json_is_json_whatever_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer("", {"loss": float("nan"), "rows": [float("inf"), 1.5], "at": Path("a/b")})
    show(answer, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"loss": None, "rows": [None, 1.5], "at": "a/b"}
    assert plain(Path("run/04-score")) == {"folder": "run/04-score"}
