"""YAML as a recipe may use it: the core schema of YAML 1.2, no key twice, every value's line.

PyYAML reads YAML 1.1, in which `no` is false, `010` is 8, `1:30` is 90 and `1e-3` is text. Here
`true` and `false` are the only booleans, and what looks like a number to one reader and not to
another is refused. Numbers of YAML 1.2 are in its specification, section 10.3.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fretsaw.errors import RecipeError

Place = tuple[str | int, ...]
"""The keys, and indices from 0, that lead to a value."""

MOST_BYTES = 2**20
MOST_VALUES = 20_000
MOST_DEPTH = 30
EXAMPLE = "see recipes/demo.yaml for a complete recipe"

NUMBERS = "-+0123456789"
IMPLICIT = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list(NUMBERS)),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list(NUMBERS + "."),
    ),
)
TAG = "tag:yaml.org,2002:"
ODD = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")


class _Loader(yaml.SafeLoader):
    """Composes nodes; their types are those of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _name, _pattern, _first in IMPLICIT:
    _Loader.add_implicit_resolver(TAG + _name, re.compile(f"(?:{_pattern})\\Z"), _first)


def named(place: Place) -> str:
    """A place as it is written, lists counted from 1."""
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in place)


@dataclass(frozen=True)
class Document:
    """What a YAML text holds.

    Attributes:
        data: Plain data: dicts with text as keys, lists, text, numbers, booleans, None.
        lines: The line of each value, from 1.
    """

    data: Any
    lines: dict[Place, int]


def read_document(path: Path) -> Document:
    """The YAML document in a file.

    Raises:
        RecipeError: no file, no YAML, or YAML that readers understand differently.
    """
    if path.is_dir():
        raise RecipeError(f"{path} is a folder", "give the YAML file itself")
    if not path.exists():
        raise RecipeError(f"{path} does not exist", "give the path of a recipe (a YAML file)")
    if not path.is_file():
        raise RecipeError(f"{path} is no ordinary file", "give the path of a recipe (a YAML file)")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise RecipeError(
            f"{path} has {size:,} bytes, too many for a recipe (at most {MOST_BYTES:,})", EXAMPLE
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is no UTF-8 text, so no recipe", EXAMPLE) from error
    return parse_document(text, str(path))


def parse_document(text: str, source: str) -> Document:
    """The YAML document in a text; `source` says in messages where it is from.

    Raises:
        RecipeError: no YAML, or YAML that readers understand differently.
    """
    _check_characters(text, source)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, source) from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise RecipeError(f"{source} is nested too deeply for a recipe", EXAMPLE) from error
    finally:
        loader.dispose()
    walk = _Walk(source)
    return Document(None if node is None else walk.value(node, ()), walk.lines)


def _check_characters(text: str, source: str) -> None:
    """Refuse control characters, and line ends that only YAML 1.1 knows."""
    odd = ODD.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        raise RecipeError(
            f"{source}, line {line}: an unprintable character (U+{ord(odd[0]):04X})",
            "a recipe is plain text: save it as UTF-8 again",
        )


def _not_yaml(error: yaml.MarkedYAMLError, source: str) -> RecipeError:
    mark = error.problem_mark or error.context_mark
    line = f", line {mark.line + 1}" if mark else ""
    problem = str(error.problem or error.context)
    if problem == "second occurrence":
        problem = "an anchor (`&name`) is defined twice"
    if r"'\t'" in problem:
        return RecipeError(f"{source}{line}: a tab where YAML wants spaces", "indent with spaces")
    if "another document" in problem:
        return RecipeError(
            f"{source}{line}: a second document begins (`---`)", "give one recipe a file"
        )
    return RecipeError(f"{source}{line} is not valid YAML: {problem}", EXAMPLE)


@dataclass
class _Walk:
    """Makes plain data of nodes, and keeps their lines."""

    source: str
    lines: dict[Place, int] = field(default_factory=dict)
    count: int = 0

    def value(self, node: Node, place: Place) -> Any:
        self.count += 1
        if self.count > MOST_VALUES or len(place) > MOST_DEPTH:
            what = "nested too deeply" if len(place) > MOST_DEPTH else "too large"
            raise self.error(node, f"{what} for a recipe", hint=EXAMPLE)
        self.lines[place] = node.start_mark.line + 1
        if isinstance(node, MappingNode) and node.tag == TAG + "map":
            return self.mapping(node, place)
        if isinstance(node, SequenceNode) and node.tag == TAG + "seq":
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        if isinstance(node, ScalarNode) and node.tag.startswith(TAG):
            return self.scalar(node)
        raise self.error(
            node, f"the tag {node.tag!r} is not read", hint="write the value without it"
        )

    def mapping(self, node: MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node)
            if key in found:
                raise self.error(
                    key_node,
                    f"{named((*place, key))} is given twice, the first time on line "
                    f"{self.lines[*place, key]}",
                    hint="keep one of the two",
                )
            found[key] = self.value(value_node, (*place, key))
            self.lines[*place, key] = key_node.start_mark.line + 1
        return found

    def key(self, node: Node) -> str:
        if not isinstance(node, ScalarNode):
            raise self.error(node, "a list or section stands where a key belongs", hint=EXAMPLE)
        if node.value == "<<" and node.style is None:
            raise self.error(
                node,
                "merge keys (`<<`) are not read",
                hint="what all rounds share stands at the top",
            )
        if ":" in node.value:
            raise self.error(
                node, f"{node.value!r} is taken for a key", hint="write a space after the colon"
            )
        if node.tag != TAG + "str":
            raise self.error(node, f"the key {node.value!r} is no text", hint=EXAMPLE)
        return str(node.value)

    def scalar(self, node: ScalarNode) -> Any:
        kind, text = node.tag.removeprefix(TAG), str(node.value)
        if kind == "int" and LEADING_ZERO.fullmatch(text):
            raise self.error(
                node,
                f"{text} begins with 0, which some readers take for an octal number",
                hint=f"write {int(text[:20])}, or put text in quotes",
            )
        try:
            return SCALARS[kind](text)
        except (KeyError, ValueError) as error:
            shown = text if len(text) <= 40 else f"{text[:40]}…"  # noqa: PLR2004
            raise self.error(node, f"{shown!r} is no {kind}", hint="write a plain value") from error

    def error(self, node: Node, message: str, *, hint: str) -> RecipeError:
        return RecipeError(f"{self.source}, line {node.start_mark.line + 1}: {message}", hint)


def _int(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2].lower(), 10)
    return int(text[2:] if base != 10 else text, base)  # noqa: PLR2004


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


SCALARS: dict[str, Callable[[str], object]] = {
    "str": str,
    "int": _int,
    "float": _float,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "null": lambda _: None,
}
