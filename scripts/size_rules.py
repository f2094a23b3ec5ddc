"""Keeps rule 8 of ARCHITECTURE.md: short files, short functions, few positional arguments.

python scripts/size_rules.py [FOLDER ...]      prints each fault, exits 1 if there is one
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 50
POSITIONAL = 2
BANNED_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "manager"})
RECEIVERS = frozenset({"self", "cls", "ctx"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def faults(path: Path) -> Iterator[str]:
    """Each breach of the size rules in one Python file, as `file:line: what, and what to do`."""
    text = path.read_text(encoding="utf-8")
    if BANNED_NAMES & {*path.stem.split("_"), path.parent.name}:
        yield f"{path}:1: the name says nothing; name the file for the noun that it holds"
    lines = text.count("\n")
    if lines >= FILE_LINES:
        yield f"{path}:1: {lines} lines, must be under {FILE_LINES}; move one noun to its own file"
    yield from _function_faults(path, ast.parse(text, filename=str(path)))


def _function_faults(path: Path, tree: ast.Module) -> Iterator[str]:
    nested = {
        inner
        for outer in ast.walk(tree)
        if isinstance(outer, Function)
        for inner in ast.walk(outer)
        if inner is not outer
    }
    for node in ast.walk(tree):
        if not isinstance(node, Function):
            continue
        where = f"{path}:{node.lineno}: {node.name}"
        lines = function_lines(node)
        if lines >= FUNCTION_LINES:
            yield f"{where} has {lines} lines, must be under {FUNCTION_LINES}; split it"
        if node not in nested and not _has_given_signature(node):
            count = required_positional(node)
            if count > POSITIONAL:
                yield (
                    f"{where} wants {count} positional arguments, at most {POSITIONAL}; "
                    "put `*` before the others, or pass a dataclass that means something"
                )


def function_lines(node: Function) -> int:
    """Lines from `def` to the end, without decorators and docstring."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        total -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return total


def required_positional(node: Function) -> int:
    """Positional arguments without a default, besides self, cls and an autograd function's ctx."""
    arguments = [*node.args.posonlyargs, *node.args.args]
    required = arguments[: len(arguments) - len(node.args.defaults)]
    return len(required) - bool(required and required[0].arg in RECEIVERS)


def _has_given_signature(node: Function) -> bool:
    """Whether somebody else chose the arguments: a dunder method, or one marked `@override`."""
    is_dunder = node.name.startswith("__") and node.name.endswith("__") and node.name != "__init__"
    decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
    return is_dunder or "override" in decorators


def main(folders: list[str]) -> int:
    """Check all Python files below the folders; the exit code."""
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    if not files:
        print(f"no Python file below {', '.join(folders)}", file=sys.stderr)
        return 1
    found = [fault for file in files for fault in faults(file)]
    print("\n".join([*found, f"size rules: {len(files)} files, {len(found)} faults"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src"]))
