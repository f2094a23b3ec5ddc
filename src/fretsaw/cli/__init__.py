"""The command line: parse, call a function of `fretsaw.api`, print.

Tables go to stdout, everything else to stderr.
"""

from fretsaw.cli.program import app, main

__all__ = ["app", "main"]
