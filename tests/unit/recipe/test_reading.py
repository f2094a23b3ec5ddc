"""YAML as a recipe may use it: numbers of YAML 1.2, no key twice, no surprises."""

from __future__ import annotations

from pathlib import Path

import pytest

from fretsaw.errors import RecipeError
from fretsaw.recipe import load_recipe, resolve_recipe
from fretsaw.recipe.reading import MOST_BYTES, parse_document, read_document

BASE = "parent: p\ndata: {path: d}\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("+5", 5),
        ("0x1F", 31),
        ("0o17", 15),
        ("TRUE", True),
        ("~", None),
        ("", None),
        ("-.inf", float("-inf")),
    ],
)
def test_f2_numbers_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_document(f"a: {text}", "r.yaml").data["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    ["yes", "no", "on", "off", "y", "1:30", "190:20:30", "2026-12-07", "0b11", "1_000", "=", "<<"],
)
def test_f2_surprises_of_yaml_1_1_stay_text(text: str) -> None:
    assert parse_document(f"a: {text}", "r.yaml").data == {"a": text}


@pytest.mark.parametrize("key", ["seed", "distill.learning_rate", "search.time_limit_s"])
@pytest.mark.parametrize("text", ["yes", "off", "1:30", "2026-12-07", "0b11"])
def test_f2_no_surprise_of_yaml_1_1_is_a_number(key: str, text: str) -> None:
    with pytest.raises(RecipeError, match=f"recipe key '{key}' .* is '{text}': expected"):
        resolve_recipe(parse_document(BASE, "r.yaml").data, [f"{key}={text}"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: a is given twice, the first time on line 1"),
        ("a:\n  b: 1\n  c: 2\n  b: 1", "line 4: a.b is given twice, the first time on line 2"),
        ("a: {b: 1,\n b: 2}", "line 2: a.b is given twice, the first time on line 1"),
        ("rounds:\n- {}\n- a: 1\n  a: 2", "line 4: rounds.2.a is given twice"),
        ('a: 1\n"a": 2', "line 2: a is given twice"),
        ("a: 010", "010 begins with 0"),
        ("a: -007", "-007 begins with 0"),
        ("a:\n\tb: 1", "line 2: a tab where YAML wants spaces"),
        ("a: &x 1\nb: &x 2", "line 2 is not valid YAML: an anchor"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "line 3: merge keys"),
        ("1: a", "line 1: the key '1' is no text"),
        ("null: a", "the key 'null' is no text"),
        ("[a]: 1", "a list or section stands where a key belongs"),
        ("a: 1\n---\nb: 2", "line 2: a second document begins"),
        ("a: !!python/object:os.system x", "line 1: "),
        ("a: !path x", "line 1: the tag '!path' is not read"),
        ("a: \x00", "line 1: an unprintable character (U+0000)"),
        ("x\n\x1b[31m", "line 2: an unprintable character (U+001B)"),
        ("a: {moe_params:60}", "line 1: 'moe_params:60' is taken for a key"),
        ("a: b: c", "line 1 is not valid YAML: mapping values are not allowed here"),
        ("a: " + "9" * 5000, "is no int"),
        ("[" * 5000, "nested too deeply"),
        ("{a: " * 100 + "1" + "}" * 100, "nested too deeply"),
        ("a: &a [*a]", "nested too deeply"),
        (
            "a: &a [x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{n}: &{n} [{','.join([f'*{p}'] * 8)}]\n"
                for p, n in zip("abcde", "bcdef", strict=True)
            ),
            "too large for a recipe",
        ),
    ],
)
def test_f12_what_readers_understand_differently_is_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_document(text, "r.yaml")
    assert caught.value.message.startswith("r.yaml")
    assert said in caught.value.message
    assert caught.value.hint


def test_f12_a_section_given_twice_is_an_error_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(BASE + "distill: {tokens: 5}\nseed: 1\ndistill: {batch_size: 2}\n")
    with pytest.raises(RecipeError, match=r"line 5: distill is given twice, .* on line 3"):
        load_recipe(file)


def test_f12_aliases_and_anchors_are_read(tmp_path: Path) -> None:
    found = parse_document("a: &grid [1, 2]\nb: *grid", "r.yaml").data
    assert found == {"a": [1, 2], "b": [1, 2]}


def test_u20_what_is_no_recipe_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is a folder"):
        read_document(tmp_path)
    with pytest.raises(RecipeError, match="does not exist"):
        read_document(tmp_path / "nothing.yaml")
    file = tmp_path / "weights.yaml"
    file.write_bytes(b"\x80\xff\x00")
    with pytest.raises(RecipeError, match="no UTF-8 text"):
        read_document(file)
    with file.open("wb") as out:
        out.truncate(MOST_BYTES + 1)
    with pytest.raises(RecipeError, match="bytes, too many for a recipe"):
        read_document(file)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + (BASE + "seed: 3\n").replace("\n", "\r\n").encode())
    assert load_recipe(str(file)).seed == 3
