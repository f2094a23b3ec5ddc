"""Every command with --json: one JSON document on stdout, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from fretsaw.cli import app
from tests.flow.conftest import Finished, Said
from tests.flow.pico_run import STAGES

Command = Callable[..., Said]
COMMANDS = tuple(vars(typer.main.get_command(app))["commands"])
HAS = {
    "describe": "params",
    "plan": "models",
    "compress": "child",
    "report": "page",
    "quantize": "weights_bytes",
    "serve": "models",
    "verify": "checks",
    "export": "folder",
    "recipe": "resolved",
    "version": "torch",
}
"""Command -> a key of its document; stages give their folder."""


def arguments(name: str, finished: Finished, folder: Path) -> tuple[object, ...]:
    child, recipe = finished.summary.child, finished.setting.recipe_file
    if f"-{name}" in "".join(STAGES) and name != "describe":
        return (name, recipe, "--out", finished.out)
    return {
        "describe": ("describe", child),
        "plan": ("plan", "@super", child, "--hardware", "H100", "--context", "64"),
        "compress": ("compress", recipe, "--out", finished.out),
        "report": ("report", shutil.copytree(finished.out, folder / "run")),
        "quantize": (
            *("quantize", child, "--out", folder / "q", "--text", finished.setting.text),
            *("--sequences", "4", "--sequence-length", "32"),
        ),
        "serve": (
            *("serve", child, "--engine", "transformers", "--workload", "8/2"),
            *("--concurrency", "1", "--repeats", "1", "--requests-per-user", "1"),
        ),
        "verify": ("verify", child),
        "export": ("export", child, "--engine", "vllm", "--out", folder / "e"),
        "recipe": ("recipe", recipe),
        "version": ("version",),
    }[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_u22_json_is_one_document_and_nothing_else(
    name: str, finished: Finished, tmp_path: Path, command: Command
) -> None:
    said = command(*arguments(name, finished, tmp_path), "--json")
    assert said.code == 0, said.err
    document: Any = json.loads(said.out)
    key = HAS.get(name, "folder")
    assert key in document, sorted(document)
    if key == "folder":
        assert Path(document["folder"]).exists()


def test_u22_a_dry_run_has_json_too_and_an_error_leaves_stdout_empty(
    finished: Finished, tmp_path: Path, command: Command
) -> None:
    recipe = finished.setting.recipe_file
    said = command("compress", recipe, "--out", tmp_path / "new", "--dry-run", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)
    failed = command("compress", recipe, "--out", tmp_path / "new", "--set", "seed=x", "--json")
    assert (failed.code, failed.out) == (2, "")
