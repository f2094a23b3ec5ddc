from __future__ import annotations

from pathlib import Path

import pytest

from scripts.size_rules import FILE_LINES, FUNCTION_LINES, faults, main


def faults_of(tmp_path: Path, text: str, *, name: str = "noun.py") -> list[str]:
    file = tmp_path / name
    file.write_text(text)
    return list(faults(file))


def function_of(lines: int, *, docstring: str = "") -> str:
    body = [f'    """{docstring}"""'] if docstring else []
    return "\n".join(["def f():", *body, *["    pass"] * (lines - 1)]) + "\n"


def test_a_file_may_have_one_line_less_than_the_limit(tmp_path: Path) -> None:
    assert faults_of(tmp_path, "x = 1\n" * (FILE_LINES - 1)) == []
    [fault] = faults_of(tmp_path, "x = 1\n" * FILE_LINES)
    assert "400 lines, must be under 400" in fault


def test_a_function_is_measured_without_its_docstring(tmp_path: Path) -> None:
    assert (
        faults_of(tmp_path, function_of(FUNCTION_LINES - 1, docstring="One.\n\n    Two.\n")) == []
    )
    [fault] = faults_of(tmp_path, function_of(FUNCTION_LINES))
    assert ":1: f has 50 lines" in fault


@pytest.mark.parametrize(
    "signature",
    [
        "def f(a, b): ...",
        "def f(a, b, c=1): ...",
        "def f(a, b, *, c): ...",
        "class C:\n    def f(self, a, b): ...",
        "class C:\n    @classmethod\n    def f(cls, a, b): ...",
        "class C:\n    @staticmethod\n    def forward(ctx, a, b): ...",
        "class C:\n    def __exit__(self, kind, error, trace): ...",
        "class C:\n    @override\n    def f(self, a, b, c): ...",
        "class C:\n    @typing.override\n    def f(self, a, b, c): ...",
        "def f():\n    def hook(module, args, output): ...",
    ],
)
def test_few_positional_arguments_pass(tmp_path: Path, signature: str) -> None:
    assert faults_of(tmp_path, signature) == []


@pytest.mark.parametrize(
    "signature",
    [
        "def f(a, b, c): ...",
        "async def f(a, /, b, c): ...",
        "def _f(a, b, c, d=1): ...",
        "class C:\n    def f(self, a, b, c): ...",
        "class C:\n    def __init__(self, a, b, c): ...",
    ],
)
def test_many_positional_arguments_do_not(tmp_path: Path, signature: str) -> None:
    [fault] = faults_of(tmp_path, signature)
    assert "wants 3 positional arguments, at most 2" in fault


@pytest.mark.parametrize("name", ["utils.py", "shape_helpers.py", "common.py"])
def test_a_file_has_a_name_that_means_something(tmp_path: Path, name: str) -> None:
    [fault] = faults_of(tmp_path, "", name=name)
    assert "the name says nothing" in fault


def test_the_program_counts_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.py").write_text("x = 1\n")
    assert main([str(tmp_path)]) == 0
    (tmp_path / "misc.py").write_text("def f(a, b, c): ...\n")
    assert main([str(tmp_path)]) == 1
    assert "2 files, 2 faults" in capsys.readouterr().out


def test_a_folder_without_python_is_a_mistake(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
