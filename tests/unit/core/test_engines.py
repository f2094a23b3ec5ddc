"""Tables of engines: each row can be read, has its source, and says what is allowed."""

import tomllib
from importlib import resources
from typing import Any

import pytest

from fretsaw.core.engines import (
    SEVERITIES,
    Limit,
    common_granularity,
    engine_named,
    engine_names,
    has_equal_blocks,
    read_engine,
)
from fretsaw.core.precision import FORMATS, KINDS, preset
from fretsaw.core.shape import MIXERS
from fretsaw.errors import RecipeError
from tests.shapes import hybrid_shape

DIMENSIONS = {"ffn", "shared_ffn", "latent", "expert", "top_k", "state"}
DIMENSIONS |= {"mamba_head", "mamba_dim", "group"}


def raw(key: str) -> dict[str, Any]:
    path = resources.files("fretsaw") / "data" / "engines" / f"{key}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def limit(**rule: Any) -> Limit:
    return Limit("refuse", "why", "here", "ffn", **rule)


def test_the_engines_that_people_use_have_a_table() -> None:
    assert {"vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"} <= set(engine_names())


@pytest.mark.parametrize("key", engine_names())
def test_every_statement_has_its_source(key: str) -> None:
    data = raw(key)
    rows = [*data["limit"], *data["architecture"]]
    rows += [data["granularity"]] if "granularity" in data else []
    assert all(len(row["source"]) > 4 for row in rows)
    assert data["checked_source"]
    assert data["formats_source"]


@pytest.mark.parametrize("key", engine_names())
def test_every_name_in_a_table_is_one_that_shapes_and_precisions_have(key: str) -> None:
    engine = engine_named(key)
    assert set(engine.formats) <= set(FORMATS)
    assert set(engine.granularity) <= {"ffn", "state"}
    for row in engine.limits:
        assert row.severity in SEVERITIES
        assert set(row.formats) <= set(FORMATS)
        assert row.dimension in DIMENSIONS | {""}
        assert row.mixer in (None, *MIXERS)
        assert row.weights in (None, *KINDS)


@pytest.mark.parametrize("key", sorted({*engine_names()} - {"tensorrt-edge-llm"}))
def test_no_engine_knows_a_mamba_state_per_block(key: str) -> None:
    rules = [row for row in engine_named(key).limits if row.dimension == "state"]
    assert any(row.is_uniform and row.severity == "refuse" for row in rules)


def test_names_are_found_whatever_their_case_and_the_nearest_is_given() -> None:
    assert engine_named("vLLM").name == "vLLM"
    for word in ("llamacpp", "GGUF", "llama-cpp"):
        assert engine_named(word).key == "llama.cpp"
    with pytest.raises(RecipeError, match="unknown engine 'lamacpp'") as caught:
        engine_named("lamacpp")
    assert "did you mean 'llama.cpp'?" in caught.value.hint


@pytest.mark.parametrize(
    ("rule", "value", "allowed", "near"),
    [
        ({"multiple_of": 64}, 128, True, (128, 192)),
        ({"multiple_of": 64}, 100, False, (64, 128)),
        ({"multiple_of": 64}, 10, False, (64,)),
        ({"one_of": (64, 96, 128)}, 96, True, (96, 128)),
        ({"one_of": (64, 96, 128)}, 80, False, (64, 96)),
        ({"one_of": (64, 96, 128)}, 32, False, (64,)),
        ({"one_of": (64, 96, 128)}, 200, False, (128,)),
        ({"at_most": 8}, 8, True, (8,)),
        ({"at_most": 8}, 9, False, (8,)),
    ],
)
def test_rules_of_one_value(
    rule: dict[str, Any], value: int, allowed: bool, near: tuple[int, ...]
) -> None:
    assert limit(**rule).allows(value) is allowed
    assert limit(**rule).nearest_to(value) == near


def test_a_limit_of_a_format_holds_for_its_kind_of_weights_only() -> None:
    experts = limit(multiple_of=64, weights="experts", formats=("nvfp4",))
    shared = limit(multiple_of=64, weights="shared_experts", formats=("nvfp4",))
    anywhere = limit(multiple_of=64, formats=("nvfp4",))
    nvfp4 = preset("nvfp4")
    assert [row.holds_for(nvfp4) for row in (experts, shared, anywhere)] == [True, False, True]
    assert not experts.holds_for(preset("fp8"))
    assert [experts.has_block(m) for m in MIXERS] == [False, False, True, False, False]


@pytest.mark.parametrize(
    "row",
    [
        {"multiple_of": 2, "at_most": 8},
        {},
        {"severity": "often", "multiple_of": 2},
        {"multiple_off": 2},
        {"multiple_of": 2, "source": None},
    ],
)
def test_a_row_that_could_never_be_read_is_refused(row: dict[str, Any]) -> None:
    full = {"severity": "slow", "what": "", "source": "", "dimension": "ffn"} | row
    rows = [{k: v for k, v in full.items() if v is not None}]
    data = {"name": "x", "checked": "1", "formats": [], "architecture": [], "limit": rows}
    with pytest.raises((TypeError, ValueError)):
        read_engine(data, key="x")


def test_granularity_suits_all_engines_that_are_named() -> None:
    engines = [engine_named(name) for name in ("llama.cpp", "vllm", "transformers")]
    assert common_granularity("ffn", engines) == 128
    assert common_granularity("ffn", engines[:1]) == 64
    assert common_granularity("state", engines) == 32
    assert common_granularity("ffn", engines[2:]) == 1


def test_equal_blocks_are_told_from_unequal_ones() -> None:
    equal = hybrid_shape("ME*EM")
    thin = equal.blocks[3].with_values({"ffn": 32})
    assert has_equal_blocks(equal)
    assert not has_equal_blocks(equal.with_blocks((*equal.blocks[:3], thin)))
