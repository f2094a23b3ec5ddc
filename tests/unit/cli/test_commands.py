"""Names, help and defaults of all commands, walked through as the program holds them."""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import typer

import fretsaw
from fretsaw.cli import app, main
from fretsaw.cli.options import ENGINES, HARDWARE, NUMBER_FORMATS, OWN, SERVERS, SHIPPED
from fretsaw.core.engines import engine_names
from fretsaw.core.precision import PRESETS
from fretsaw.core.sheets import sheet_names
from fretsaw.core.shipped import shipped_names
from fretsaw.serving.engines.registry import ENGINES as MEASURED

COMMANDS: dict[str, Any] = dict(vars(typer.main.get_command(app))["commands"])
FUNCTIONS = {"recipe": "load_recipe"}
"""Command -> function, where they are not one word: `fretsaw.recipe` is the room of recipes."""

PYTHON_ONLY = {"reporter": "--quiet is its form on a command line"}
COMMAND_ONLY = {
    "as_json": "results have to_json()",
    "quiet": "Reporter(is_quiet=True)",
    "debug": "Python shows tracebacks by itself",
    "help": "help(fretsaw.plan)",
    "dry_run": "fretsaw.estimate",
    "resolved": "Recipe.to_json()",
}
FLAGS = {
    "overrides": ("--set", "set is a builtin's name in Python"),
    "round_number": ("--round", "round is a builtin's name in Python"),
    "as_json": ("--json", "json is a module's name in Python"),
}
"""Parameter -> flag, where the two are not one word, and why."""

DEFAULTS = {
    "to": "plan looks at a model as it is (bf16), quantize writes another",
    "hardware": "serve runs on this machine, plan cannot know",
    "engine": "plan has a usual one; serve and export start or name one on purpose",
    "workload": "serve needs one; plan can do with a context",
    "out": "report writes into its run, and a comparison beside the first one",
}
"""Options whose defaults differ between commands, and why."""


class Place(NamedTuple):
    command: str
    param: Any


def params(*, of: str | None = None) -> list[Place]:
    names = COMMANDS if of is None else [of]
    return [Place(name, p) for name in names for p in COMMANDS[name].params]


def flag(param: Any) -> str:
    return FLAGS[param.name][0] if param.name in FLAGS else f"--{param.name.replace('_', '-')}"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fretsaw", *arguments])
        with pytest.raises(SystemExit) as ending:
            main()
        streams = capsys.readouterr()
        return int(ending.value.code or 0), streams.out, streams.err

    return run


def test_u22_every_argument_and_option_has_help_and_a_unit_or_choices() -> None:
    for command, param in params():
        where = f"{command} {param.name}"
        assert param.help, where
        assert param.help[0].isupper(), where
        assert param.help.endswith("."), where
        is_switch = getattr(param, "is_flag", False)
        assert is_switch or param.metavar, where


def test_u22_one_name_is_one_thing_in_all_commands() -> None:
    meant = defaultdict(set)
    for command, param in params():
        if (command, param.name) not in OWN:
            meant[param.name].add((tuple(param.opts), param.metavar, param.help))
    assert {name: found for name, found in meant.items() if len(found) > 1} == {}
    assert all((c, n) in {(p.command, p.param.name) for p in params()} for c, n in OWN)


def test_u22_one_thing_has_one_name() -> None:
    helps = defaultdict(set)
    for _, param in params():
        helps[param.help].add(param.name)
    assert {text: names for text, names in helps.items() if len(names) > 1} == {}
    for command in COMMANDS:
        assert COMMANDS[command].params[0].metavar in {"MODEL", "RECIPE", "RUN", None}


def test_u22_defaults_agree_or_have_a_reason() -> None:
    found = defaultdict(set)
    for _, param in params():
        found[param.name].add("required" if param.required else repr(param.default))
    differ = {name for name, values in found.items() if len(values) > 1}
    assert differ == set(DEFAULTS)


@pytest.mark.parametrize("command", COMMANDS)
def test_u3_a_function_of_that_name_takes_the_same(command: str) -> None:
    function = getattr(fretsaw, FUNCTIONS.get(command, command))
    takes = inspect.signature(function).parameters
    has = {p.param.name: p.param for p in params(of=command) if p.param.name not in COMMAND_ONLY}
    assert set(has) == set(takes) - set(PYTHON_ONLY)
    for name, param in has.items():
        default = takes[name].default
        if default is inspect.Parameter.empty:
            assert param.required, name
        else:
            assert param.default == (None if default == () else default), name
        is_positional = takes[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if is_positional and name != "overrides":
            assert param.param_type_name == "argument", name
        else:
            assert flag(param) in param.opts, name


def test_choices_in_help_are_those_that_there_are() -> None:
    assert set(HARDWARE) == set(sheet_names("hardware"))
    assert set(SHIPPED) == set(shipped_names())
    assert set(NUMBER_FORMATS) == set(PRESETS)
    assert set(ENGINES) == set(engine_names())
    assert set(SERVERS) == set(MEASURED)


def test_u22_help_lists_commands_in_groups_with_whole_sentences(said: Callable[..., Any]) -> None:
    code, text, _ = said("-h")
    assert code == 0
    assert said() == (0, text, ""), "without a word, it says what there is"
    assert "..." not in text.partition("Everyday")[2]
    everyday, _, rest = text.partition("Everyday:")[2].partition("Single stages of a run:")
    stages, _, others = rest.partition("Checks and exchange:")
    assert re.findall(r"^  (\w+)", everyday, re.M)[:3] == ["describe", "plan", "compress"]
    assert re.findall(r"^  (\w+)", stages, re.M)[0] == "calibrate"
    assert {"verify", "export", "recipe", "version"} <= set(re.findall(r"^  (\w+)", others, re.M))
    for command in COMMANDS.values():
        flat = " ".join(text.split())
        assert " ".join(command.help.split()) in flat


@pytest.mark.parametrize("command", COMMANDS)
def test_u22_every_command_has_h_and_json(command: str, said: Callable[..., Any]) -> None:
    code, text, _ = said(command, "-h")
    assert code == 0
    for option in ("--json", "--debug", "-h, --help"):
        assert f"\n  {option} " in text, option
    assert said(command, "--help")[1] == text
    assert "{" not in text.splitlines()[0]


def test_u22_version_is_printed(said: Callable[..., Any]) -> None:
    assert said("--version") == (0, f"fretsaw {fretsaw.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["comprss", "r.yaml"], "there is no command 'comprss'", "did you mean compress?"),
        (["xyzzy"], "there is no command 'xyzzy'", "fretsaw --help"),
        (
            ["plan", "@super", "--hardwear", "H100"],
            "no option --hardwear",
            "did you mean --hardware",
        ),
        (["plan", "@super", "--xyzzy"], "there is no option --xyzzy", "fretsaw plan --help"),
        (["plan", "@super"], "missing option '--hardware'", "fretsaw plan --help"),
        (["rank", "r.yaml", "--out", "x", "--round", "0"], "'--round'", "fretsaw rank --help"),
        (["serve"], "missing", "fretsaw serve --help"),
        (["describe", "@supr"], "no config named '@supr'", "did you mean @super?"),
        (["describe", "@"], "no config named '@'", "@nano, @puzzle, @super"),
        (["describe", ""], "the argument after describe is empty", "variable of the shell"),
        (["compress", "r.yaml", "--out="], "the argument after --out is empty", "variable"),
        (["rank", "r.yaml", "--out", ""], "the argument after --out is empty", "variable"),
        (["--versoin"], "there is no option --versoin", "did you mean --version"),
    ],
)
def test_u22_mistakes_on_the_command_line_have_the_form_of_all_others(
    arguments: list[str], message: str, hint: str, said: Callable[..., Any]
) -> None:
    code, out, err = said(*arguments)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_prints_the_traceback_too(where: str, said: Callable[..., Any]) -> None:
    call = ["describe", "/nowhere"]
    _, _, err = said(*(["--debug", *call] if where == "before" else [*call, "--debug"]))
    assert err.startswith("Traceback")
    assert err.splitlines()[-2].startswith("error: /nowhere does not exist")
