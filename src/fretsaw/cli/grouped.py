"""Help with the commands in groups, their sentences whole; unknown commands with the nearest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from typer.core import TyperCommand, TyperGroup

from fretsaw.errors import RecipeError, nearest

COLUMN = 12
"""Characters that the longest command's name takes, with its margin."""


class GroupedHelp(TyperGroup):
    """A program whose help lists its commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write one section per group, in the order in which commands were added."""
        for group, rows in groupby(self._rows(), key=lambda row: row[0]):
            with formatter.section(group):
                formatter.write_dl([(f"{name:{COLUMN - 2}}", help_) for _, name, help_ in rows])

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for name, command in self.commands.items():
            yield str(getattr(command, "rich_help_panel", "Commands")), name, command.help or ""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command.

        Raises:
            RecipeError: there is none of that name.
        """
        if args[0] not in self.commands and not ctx.resilient_parsing:
            guess = nearest(args[0], self.commands)
            raise RecipeError(
                f"there is no command {args[0]!r}",
                f"did you mean {guess}?" if guess else "all commands: fretsaw --help",
            )
        return super().resolve_command(ctx, args)


class PlainUsage(TyperCommand):
    """A command whose usage names arguments without braces: ``fretsaw plan MODEL [CHILD]``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Give the pieces of the usage line."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]
