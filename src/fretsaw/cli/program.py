"""The program: commands in groups, exit codes, and what is said when something goes wrong."""

from __future__ import annotations

import errno
import sys
import traceback

import typer

from fretsaw.cli import account, everyday, single_stages
from fretsaw.errors import FretsawError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Cut a trained language model to fit its hardware, and put back what the cut took away.",
)
for group in (everyday, single_stages, account):
    group.add_to(app)

INTERRUPTED = 130
"""Exit code that typer gives to an interrupted command."""


def main() -> None:
    """Entry point: exit code 0, 2 for the user's mistakes, 1 for ours, 130 when interrupted."""
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        app(args=arguments, prog_name="fretsaw")
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            print("hint: interrupted; run the same command again to go on", file=sys.stderr)
        raise
    except FretsawError as error:
        _fail(error.message, error.hint, code=error.exit_code, debug=debug)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "free some space" if full else "see that the path exists and may be read and written"
        hint = f"{what}, and run the same command again: it goes on"
        _fail(f"{error}", hint, code=2, debug=debug)
    except Exception as error:
        hint = "this is a fault of fretsaw: run again with --debug and report the traceback"
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        _fail(f"{type(error).__name__}: {error}{notes}", hint, code=1, debug=debug)


def _fail(message: str, hint: str, *, code: int, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(code)
