from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fretsaw.cli import main
from fretsaw.reports.summary import Summary
from fretsaw.stages.compress import compress
from tests.flow.pico_run import QUIET, Setting


class Finished(NamedTuple):
    """A run that has ended, with what it gave back; shared by all tests: look, do not touch."""

    setting: Setting
    summary: Summary

    @property
    def out(self) -> Path:
        return self.setting.out


class Said(NamedTuple):
    """What a command has left on its two streams, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    setting = Setting.write(tmp_path_factory.mktemp("finished"))
    return Finished(setting, compress(setting.recipe, out=setting.out, reporter=QUIET))


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Parent and text to copy from."""
    return Setting.write(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def setting(pristine: Setting, tmp_path: Path) -> Setting:
    """A parent, text and recipe of one's own."""
    return pristine.copy(tmp_path)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """The command line, in this process."""

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["fretsaw", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        streams = capsys.readouterr()
        return Said(int(exit_.value.code or 0), streams.out, streams.err)

    return run
