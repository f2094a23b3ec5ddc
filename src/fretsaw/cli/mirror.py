"""A command from a function of `fretsaw.api`: same name, same parameters, same defaults."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import typer

from fretsaw.cli.grouped import PlainUsage
from fretsaw.cli.options import OPTIONS, OWN
from fretsaw.cli.output import show
from fretsaw.errors import FretsawError

CONTEXT = Parameter("ctx", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)


@dataclass(frozen=True)
class Mirror:
    """Adds commands to a program, in one group of its help.

    Attributes:
        app: The program.
        group: Heading in the program's help.
    """

    app: typer.Typer
    group: str

    def add(
        self,
        function: Callable[..., Any],
        *,
        name: str = "",
        extra: tuple[str, ...] = (),
        run: Callable[..., Any] | None = None,
        fails: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Add a command.

        Args:
            function: Of `fretsaw.api`; its docstring begins with the command's help.
            name: Of the command; the function's if not given.
            extra: Further options of the command, all off by default.
            run: What the command calls instead, with `extra` as keywords too.
            fails: Whether a result is one to end with exit code 2 on.
        """
        given = inspect.signature(function).parameters.values()
        parameters = [_parameter(p, function) for p in given if p.name != "reporter"]
        has_reporter = len(parameters) < len(given)
        added = (*extra, "as_json", *(("quiet",) if has_reporter else ()), "debug")
        parameters = [CONTEXT, *parameters, *map(_off, added)]
        call = run or function
        several = {p.name for p in given if p.default == ()}

        def command(ctx: typer.Context, **values: Any) -> None:
            values |= {name: values[name] or () for name in several}
            as_json, debug = values.pop("as_json"), values.pop("debug") or ctx.obj
            if has_reporter:
                values["reporter"] = _reporter(is_quiet=values.pop("quiet"))
            with _traceback(is_printed=debug):
                with contextlib.redirect_stdout(sys.stderr):  # whatever libraries print
                    result = call(**values)
                show(result, as_json=as_json)
            if fails(result):
                raise typer.Exit(FretsawError.exit_code)

        command.__name__ = name or function.__name__
        command.__doc__ = (inspect.getdoc(function) or "").partition("\n")[0]
        vars(command)["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        self.app.command(cls=PlainUsage, rich_help_panel=self.group)(command)


def _parameter(parameter: Parameter, function: Callable[..., Any]) -> Parameter:
    default = parameter.default
    option = OWN.get((function.__name__, parameter.name), OPTIONS[parameter.name])
    return parameter.replace(annotation=option, default=None if default == () else default)


@contextlib.contextmanager
def _traceback(*, is_printed: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_printed and not isinstance(error, typer.Exit):
            traceback.print_exc()
        raise


def _off(name: str) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=OPTIONS[name])


def _reporter(*, is_quiet: bool) -> Any:
    from fretsaw.stages.progress import Reporter  # noqa: PLC0415

    return Reporter(is_quiet=is_quiet)
