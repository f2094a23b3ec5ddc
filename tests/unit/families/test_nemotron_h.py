"""The nemotron_h family: published counts, every spelling on disk, and the config that we write."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from transformers import NemotronHConfig

from fretsaw.core.shape import Block, ModelShape
from fretsaw.errors import CheckpointError, UnsupportedModelError
from fretsaw.families import family_of
from fretsaw.families.nemotron_h import FAMILY, canonical, read_config, rows, stored, write_config
from fretsaw.stages.describe import describe
from tests.pico import HETEROGENEOUS, pico_config, puzzle_config
from tests.shapes import CONFIGS

SUPER, PUZZLE = "super", "puzzle"
PER_BLOCK_KEYS = {
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
}


def _published(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


def _mixers(config: Mapping[str, Any]) -> list[str]:
    return [block.mixer for block in read_config(config).blocks]


def _names(shape: ModelShape) -> list[str]:
    return [name for row in rows(shape) for name, _ in row.names()]


def _cut(shape: ModelShape, **values: int) -> ModelShape:
    """The first MoE block with other values."""
    blocks = list(shape.blocks)
    first = shape.indices("moe")[0]
    blocks[first] = blocks[first].with_values(values)
    return shape.with_blocks(blocks)


@pytest.mark.parametrize(
    ("name", "params", "active", "with_mtp"),
    [
        (SUPER, 120_668_707_840, 12_770_237_440, 123_611_033_088),
        (PUZZLE, 75_353_345_024, 9_337_097_216, 78_295_670_272),
    ],
)
def test_describe_counts_what_was_published(
    name: str, params: int, active: int, with_mtp: int
) -> None:
    description = describe(CONFIGS / f"{name}.json")

    assert description.params == description.costs["params"] == params
    assert description.active_params == description.costs["active_params"] == active
    assert description.params + description.mtp_params == with_mtp
    blocks = {line.kind: line.num_blocks for line in description.lines if line.num_blocks}
    assert blocks == {"mamba": 40, "attention": 8, "moe": 40}
    assert description.is_checked is False


def test_super_has_the_published_number_of_tensors() -> None:
    table = rows(read_config(_published(SUPER)))
    dtypes: Counter[str | None] = Counter()
    for row in table:
        dtypes[row.tensor.dtype] += row.tensor.copies(row.sizes)

    assert sum(dtypes.values()) == 42_683
    assert dtypes["float32"] == 41
    names = [name for row in table for name, _ in row.names()]
    assert len(set(names)) == 42_683
    assert len([n for n in names if n.startswith("mtp.")]) == 1040


def test_super_has_the_published_shapes() -> None:
    shapes = {row.tensor.name: row.tensor.shape(row.sizes) for row in rows(_shape(SUPER))}

    assert shapes["layers.0.mixer.in_proj.weight"] == (18560, 4096)
    assert shapes["layers.0.mixer.conv1d.weight"] == (10240, 1, 4)
    assert shapes["layers.7.mixer.k_proj.weight"] == (256, 4096)
    assert shapes["layers.1.mixer.experts.{expert}.up_proj.weight"] == (2688, 1024)
    assert shapes["mtp.layers.0.eh_proj.weight"] == (4096, 8192)
    cut = {row.tensor.name: row.tensor.shape(row.sizes) for row in rows(_shape(PUZZLE))}
    assert cut["layers.0.mixer.in_proj.weight"] == (18048, 4096)
    assert cut["layers.0.mixer.conv1d.weight"] == (9728, 1, 4)
    assert cut["layers.1.mixer.experts.{expert}.down_proj.weight"] == (1024, 1280)
    assert cut["mtp.layers.1.mixer.experts.{expert}.up_proj.weight"] == (2688, 1024)


def _shape(name: str) -> ModelShape:
    return read_config(_published(name))


def _with_layers(**layers: Any) -> dict[str, Any]:
    config = pico_config(**layers)
    for key in ("layers_block_type", "num_hidden_layers"):
        if key not in layers:
            del config[key]
    return config


@pytest.mark.parametrize(
    "layers",
    [
        {"layers_block_type": ["mamba", "moe", "attention", "mlp"]},
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
        {"layer_types": ["linear_attention", "moe", "full_attention", "mlp"]},
        {"hybrid_override_pattern": "ME*-"},
        {"hybrid_override_pattern": "ME|*-"},
        {"hybrid_override_pattern": "ME*-/*E"},
        {"block_configs": [{"block_type": w} for w in ("mamba", "moe", "attention", "mlp")]},
    ],
)
def test_layers_are_read_in_every_spelling(layers: dict[str, Any]) -> None:
    config = _with_layers(**layers) | {"intermediate_size": 64}
    assert _mixers(config) == ["mamba", "moe", "attention", "mlp"]


def test_marks_in_a_pattern_part_pipeline_and_prediction_head() -> None:
    config = _with_layers(hybrid_override_pattern="ME*E|ME/*E")
    del config["num_nextn_predict_layers"], config["mtp_layers_block_type"]

    shape = read_config(config)

    assert [b.mixer for b in shape.blocks] == ["mamba", "moe", "attention", "moe", "mamba", "moe"]
    assert [b.mixer for b in shape.mtp] == ["attention", "moe"]
    written = write_config(shape, config)
    assert read_config(written) == shape
    assert written["num_nextn_predict_layers"] == 1
    assert read_config(config | {"num_nextn_predict_layers": 0}).mtp == ()


def test_keys_are_read_under_their_other_names() -> None:
    config = pico_config()
    old = dict(config) | {
        "num_local_experts": config.pop("n_routed_experts"),
        "mamba_n_groups": config.pop("n_groups"),
        "mamba_d_conv": config.pop("conv_kernel"),
    }
    for key in ("n_routed_experts", "n_groups", "conv_kernel"):
        old.pop(key)

    assert read_config(old) == read_config(pico_config())
    written = write_config(read_config(old), old)
    assert (written["n_routed_experts"], written["n_groups"], written["conv_kernel"]) == (4, 2, 4)
    assert "num_local_experts" not in written
    assert "mamba_d_conv" not in written


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("backbone.embeddings.weight", "embeddings.weight"),
        ("backbone.embedding.weight", "embeddings.weight"),
        ("model.embeddings.weight", "embeddings.weight"),
        ("model.embed_tokens.weight", "embeddings.weight"),
        ("backbone.layers.3.mixer.in_proj.weight", "layers.3.mixer.in_proj.weight"),
        ("model.layers.3.mixer.in_proj.weight", "layers.3.mixer.in_proj.weight"),
        ("model.norm_f.weight", "norm_f.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("mtp.layers.0.enorm.weight", "mtp.layers.0.enorm.weight"),
    ],
)
def test_keys_are_known_under_both_prefixes(key: str, name: str) -> None:
    assert canonical(key) == name


def test_canonical_names_come_back_under_the_prefix_of_the_model_type() -> None:
    shape = _shape(PUZZLE)
    for model_type, prefix in {"nemotron_h": "backbone.", "nemotron_h_puzzle": "model."}.items():
        keys = {stored(name, {"model_type": model_type}) for name in _names(_cut(shape, ffn=128))}
        assert f"{prefix}embeddings.weight" in keys
        assert f"{prefix}layers.0.mixer.A_log" in keys
        assert {k for k in keys if not k.startswith(prefix)} == {"lm_head.weight"} | {
            k for k in keys if k.startswith("mtp.")
        }
        assert {canonical(key) for key in keys} == set(_names(shape))


@pytest.mark.parametrize("end", ["", ".weight"])
def test_fused_experts_stand_for_one_tensor_each(end: str) -> None:
    for place in ("layers.1", "mtp.layers.1"):
        fused = FAMILY.fused_axes(f"{place}.mixer.experts.up_proj{end}")
        assert fused == (f"{place}.mixer.experts.{{expert}}.up_proj.weight", "expert")
    assert FAMILY.fused_axes("layers.1.mixer.experts.0.up_proj.weight") is None
    assert FAMILY.fused_axes("layers.1.mixer.shared_experts.up_proj.weight") is None


def test_equal_blocks_are_written_as_plain_nemotron_h() -> None:
    config = _published(SUPER)
    written = write_config(_shape(SUPER), config)

    assert written["model_type"] == "nemotron_h"
    assert written["architectures"] == ["NemotronHForCausalLM"]
    assert not {"block_configs", "mtp_block_configs", "auto_map"} & set(written)
    assert written["moe_intermediate_size"] == 2688
    assert written["num_experts_per_tok"] == 22
    assert read_config(written) == _shape(SUPER)
    NemotronHConfig(**{k: v for k, v in written.items() if k != "num_hidden_layers"})


def test_a_uniform_child_of_unequal_blocks_is_plain_again() -> None:
    parent = puzzle_config(pico_config(), HETEROGENEOUS)
    shape = read_config(parent)
    blocks = [b.with_values({"ffn": 16, "top_k": 1}) for b in shape.blocks]
    uniform = dataclasses.replace(shape, blocks=tuple(blocks), mtp=())

    written = write_config(uniform, parent)

    assert written["model_type"] == "nemotron_h"
    assert not {"block_configs", "mtp_block_configs", "auto_map"} & set(written)
    assert (written["moe_intermediate_size"], written["num_experts_per_tok"]) == (16, 1)
    assert read_config(written) == uniform


def test_a_head_that_differs_from_the_trunk_makes_the_blocks_unequal() -> None:
    shape = read_config(pico_config())
    blocks = [b.with_values({"ffn": 16}) for b in shape.blocks]

    written = write_config(shape.with_blocks(blocks), pico_config())

    assert written["model_type"] == "nemotron_h_puzzle"
    assert written["mtp_block_configs"][1]["moe_intermediate_size"] == 32


@pytest.fixture
def puzzle() -> dict[str, Any]:
    """What is written for a child of Super with the shape of Puzzle."""
    infinite = {"time_step_limit": [0.0, float("inf")], "hidden_act": "silu", "_name_or_path": "x"}
    return write_config(_shape(PUZZLE), _published(SUPER) | infinite)


def test_unequal_blocks_are_read_back_as_they_were_written(puzzle: dict[str, Any]) -> None:
    assert read_config(json.loads(json.dumps(puzzle))) == _shape(PUZZLE)
    assert write_config(read_config(puzzle), puzzle) == puzzle


def test_unequal_blocks_have_what_some_engine_needs(puzzle: dict[str, Any]) -> None:
    assert puzzle["architectures"] == ["NemotronHPuzzleForCausalLM"]
    assert puzzle["model_type"] == "nemotron_h_puzzle"
    assert set(puzzle["auto_map"]) == {"AutoConfig", "AutoModelForCausalLM"}
    assert puzzle["num_hidden_layers"] == 88
    assert Counter(puzzle["layers_block_type"]) == {"mamba": 40, "moe": 40, "attention": 8}
    assert puzzle["mtp_layers_block_type"] == ["attention", "moe"]
    assert puzzle["ssm_state_size"] == 96
    assert puzzle["n_groups"] == puzzle["mamba_n_groups"] == 8
    assert puzzle["mamba_ssm_cache_dtype"] == "float32"
    assert puzzle["layer_norm_epsilon"] == 1e-5
    for entry, word in zip(puzzle["block_configs"], puzzle["layers_block_type"], strict=True):
        assert entry["block_type"] == word
        assert word != "moe" or set(entry) - {"block_type"} == PER_BLOCK_KEYS
    attention, moe = puzzle["mtp_block_configs"]
    assert attention["block_type"] == "attention"
    assert (moe["moe_intermediate_size"], moe["num_experts_per_tok"]) == (2688, 22)


def test_what_engines_look_up_in_the_file_is_written_where_the_parent_relied_on_defaults() -> None:
    parent = pico_config(moe_latent_size=None)
    looked_up = ("n_shared_experts", "n_group", "topk_group", "norm_topk_prob", "chunk_size")
    for key in (*looked_up, "routed_scaling_factor", "moe_latent_size"):
        del parent[key]
    shape = read_config(parent)
    for child in (shape, _cut(shape, ffn=16)):
        written = write_config(child, parent)
        assert [written[key] for key in looked_up] == [1, 1, 1, True, 128]
        assert written["routed_scaling_factor"] == 1.0
        assert written["moe_latent_size"] is None
        assert read_config(written) == child
    for entry in write_config(_cut(shape, ffn=16), parent)["block_configs"]:
        assert entry["block_type"] != "moe" or set(entry) - {"block_type"} == PER_BLOCK_KEYS


def test_unequal_blocks_have_nothing_that_some_engine_trips_over(puzzle: dict[str, Any]) -> None:
    text = json.dumps(puzzle, allow_nan=False)
    assert "full_attention" not in text
    assert "linear_attention" not in text
    for key in (
        "moe_intermediate_size",
        "num_experts_per_tok",
        "per_layer_config",
        "hidden_act",
        "time_step_limit",
        "hybrid_override_pattern",
        "_name_or_path",
    ):
        assert key not in puzzle
    assert not [key for key in puzzle if key.startswith("_")]


@pytest.mark.parametrize(
    "limit", [[0.0, float("inf")], [0.0, {"__float__": "Infinity"}], [0.0, "inf"]]
)
def test_an_infinite_time_step_limit_is_left_out(limit: list[Any]) -> None:
    config = pico_config(time_step_limit=limit)
    assert "time_step_limit" not in write_config(read_config(config), config)


def test_a_finite_time_step_limit_is_kept() -> None:
    config = pico_config(time_step_limit=[0.0, 1e308])
    assert write_config(read_config(config), config)["time_step_limit"] == [0.0, 1e308]


def test_a_scalar_of_unequal_experts_is_the_largest() -> None:
    entries = [
        {"block_type": "moe", "n_routed_experts": n, "moe_shared_expert_intermediate_size": s}
        for n, s in ((4, 16), (8, 24), (6, 8))
    ]
    config = _with_layers(block_configs=entries, model_type="nemotron_h_puzzle")

    shape = read_config(config)

    assert [b.sizes["expert"] for b in shape.blocks] == [4, 8, 6]
    written = write_config(shape, config)
    assert written["n_routed_experts"] == 8
    assert written["moe_shared_expert_intermediate_size"] == 24
    assert read_config(written) == shape


def test_a_config_without_latents_has_experts_of_the_hidden_size() -> None:
    config = pico_config(moe_latent_size=None)
    names = _names(read_config(config))
    assert not [name for name in names if "latent" in name]
    shapes = {r.tensor.name: r.tensor.shape(r.sizes) for r in rows(read_config(config))}
    assert shapes["layers.1.mixer.experts.{expert}.up_proj.weight"] == (32, 32)


def test_a_tied_head_has_no_tensor_of_its_own() -> None:
    tied = read_config(pico_config(tie_word_embeddings=True))
    assert "lm_head.weight" not in _names(tied)
    assert "lm_head.weight" in _names(read_config(pico_config()))


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"use_bias": True}, UnsupportedModelError, "use_bias=True"),
        ({"use_conv_bias": False}, UnsupportedModelError, "use_conv_bias=False"),
        ({"num_nextn_predict_layers": 2}, UnsupportedModelError, "num_nextn_predict_layers=2"),
        ({"layers_block_type": ["mamba", "x"]}, UnsupportedModelError, "layer word 'x'"),
        ({"num_hidden_layers": 5}, CheckpointError, "num_hidden_layers=5 but lists 4"),
        ({"num_experts_per_tok": 9}, CheckpointError, "top-k 9 of 4"),
        ({"num_attention_heads": 3}, CheckpointError, "no multiple of num_key_value_heads=2"),
        ({"hidden_size": "32"}, CheckpointError, "hidden_size is '32'"),
        ({"vocab_size": True}, CheckpointError, "vocab_size is True"),
        ({"ssm_state_size": 0}, CheckpointError, "ssm_state_size is 0"),
        ({"block_configs": [{}]}, CheckpointError, "lists 1 block_configs for 4 blocks"),
        ({"mtp_block_configs": [{}]}, CheckpointError, "1 mtp_block_configs for 2 blocks"),
        (
            {"block_configs": [{"block_type": "moe"}, {}, {}, {}]},
            CheckpointError,
            r"block_configs\[0\] is of type 'moe', but block 0 is mamba",
        ),
    ],
)
def test_what_has_no_tensor_table_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        read_config(pico_config(**changes))


def test_a_pattern_with_unknown_letters_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"unknown letters \['Q'\]"):
        read_config(_with_layers(hybrid_override_pattern="MQ"))
    with pytest.raises(CheckpointError, match="config has no list of layers"):
        read_config(_with_layers())


def test_the_registry_knows_both_model_types_and_nothing_else() -> None:
    assert family_of({"model_type": "nemotron_h"}) is FAMILY
    assert family_of({"model_type": "nemotron_h_puzzle"}) is FAMILY
    for config in ({}, {"model_type": "llama"}, {"model_type": None}):
        with pytest.raises(UnsupportedModelError, match="unknown architecture"):
            family_of(config)


def test_a_shape_survives_json() -> None:
    for shape in (_shape(PUZZLE), read_config(pico_config())):
        assert ModelShape.from_json(json.loads(json.dumps(shape.to_json()))) == shape
    assert Block("none") == Block("none", {}, {})
