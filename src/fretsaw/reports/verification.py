"""A verification as a table, its faults one by one, and the text that was generated."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fretsaw.checkpoint.verify import Check, Verification
from fretsaw.reports.shown import Shown


@dataclass(frozen=True, repr=False)
class Verified(Shown, Verification):
    """A verification that can be looked at."""

    @classmethod
    def of(cls, found: Verification) -> Verified:
        """The same, to be looked at."""
        return cls(**{field.name: getattr(found, field.name) for field in fields(found)})

    def brief(self) -> str:
        """Where it lies, and the verdict."""
        return f"{self.folder}: {_verdict(self)}"

    def print(self, console: Console) -> None:
        """See `print_verification`."""
        print_verification(self, console)


def print_verification(verification: Verification, console: Console) -> None:
    """Every check with its result, then every fault with what to do."""
    table = Table(title=escape(f"{verification.folder}"), title_justify="left")
    for heading in ("check", "looked at", "result"):
        table.add_column(heading)
    for check in verification.checks:
        table.add_row(check.name, escape(check.looked_at), escape(_result(check)))
    console.print(table)
    for number, fault in enumerate(verification.faults, start=1):
        console.print(f"{number}. {escape(fault.message)}", highlight=False)
        console.print(f"   hint: {escape(fault.hint)}", highlight=False)
    for prompt, text in verification.texts:
        console.print(f"{escape(repr(prompt))} → {escape(repr(text))}", highlight=False)
    console.print(_verdict(verification), highlight=False)


def _result(check: Check) -> str:
    if check.not_run:
        return f"not run: {check.not_run}"
    count = len(check.faults)
    if check.answer and not count:
        return check.answer
    return "sound" if not count else f"{count} fault{'s' if count > 1 else ''}"


def _verdict(verification: Verification) -> str:
    if verification.faults:
        count = len(verification.faults)
        return f"{count} fault{'s' if count > 1 else ''}"
    left = [check.name for check in verification.checks if check.not_run]
    return "no fault found" + (f"; not run: {', '.join(left)}" if left else "")
