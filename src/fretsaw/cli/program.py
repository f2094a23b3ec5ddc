"""The program: commands in groups, exit codes, and what is said when something goes wrong."""

from __future__ import annotations

import errno
import re
import sys

import typer

from fretsaw import __version__
from fretsaw.cli import account, everyday, single_stages
from fretsaw.cli.grouped import GroupedHelp
from fretsaw.cli.streams import write_anything
from fretsaw.errors import FretsawError, RecipeError

app = typer.Typer(
    cls=GroupedHelp,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Cut a trained language model to fit its hardware, and put back what the cut took away.",
)
for group in (everyday, single_stages, account):
    group.add_to(app)

EMPTY = re.compile(r"--[\w-]+=")
"""An option that is given nothing."""

INTERRUPTED = 130
"""Exit code that typer gives to an interrupted command."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"fretsaw {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    ctx: typer.Context,
    *,
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", callback=_print_version, is_eager=True, help="Print it and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="With an error, print its traceback."),
) -> None:
    ctx.obj = debug


def main() -> None:
    """Entry point: exit code 0, 2 for the user's mistakes, 1 for ours, 130 when interrupted."""
    write_anything(sys.stdout, sys.stderr)
    try:
        _refuse_empty(sys.argv[1:])
        code = app(args=sys.argv[1:] or ["--help"], prog_name="fretsaw", standalone_mode=False)
    except typer.TyperException as error:
        code = _say(_usage_fault(error), _usage_hint(error), code=FretsawError.exit_code)
    except FretsawError as error:
        code = _say(error.message, error.hint, code=error.exit_code)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "free some space" if full else "see that the path exists and may be read and written"
        code = _say(f"{error}", f"{what}, and run the same command again: it goes on", code=2)
    except Exception as error:
        hint = "this is a fault of fretsaw: run again with --debug and report the traceback"
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        code = _say(f"{type(error).__name__}: {error}{notes}", hint, code=1)
    if code == INTERRUPTED:
        _print_line("hint: interrupted; run the same command again to go on")
    sys.exit(code)


def _refuse_empty(arguments: list[str]) -> None:
    """No option means anything by nothing, and as a path it would be the folder one is in."""
    for before, argument in zip(["fretsaw", *arguments], arguments, strict=False):
        if not argument or EMPTY.fullmatch(argument):
            raise RecipeError(
                f"the argument after {argument.rstrip('=') or before} is empty",
                "is it a variable of the shell that is not set?",
            )


def _usage_fault(error: typer.TyperException) -> str:
    """What is wrong with a command line that cannot be parsed, as our own errors say it."""
    option = getattr(error, "option_name", None)
    if option and getattr(error, "possibilities", None) is not None:
        return f"there is no option {option}"
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _usage_hint(error: typer.TyperException) -> str:
    """What to do about a command line that cannot be parsed."""
    near = getattr(error, "possibilities", None)
    ctx = getattr(error, "ctx", None)
    command = ctx.command_path if ctx else "fretsaw"
    guess = f"did you mean {near[0]}? " if near else ""
    return f"{guess}all options: {command} --help"


def _say(message: str, hint: str, *, code: int) -> int:
    _print_line(f"error: {message}")
    if hint:
        _print_line(f"hint: {hint}")
    return code


def _print_line(text: str) -> None:
    print(text, file=sys.stderr)
