"""Every key of a config is known, refused by name, or named as unknown; sizes must go together."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fretsaw.checkpoint.verify import verify_files
from fretsaw.errors import CheckpointError, UnsupportedModelError
from fretsaw.families import family_of
from fretsaw.families.nemotron_h import FAMILY, read_config, write_config
from fretsaw.stages.describe import describe
from tests.pico import HETEROGENEOUS, pico_config, puzzle_config, write_pico_checkpoint
from tests.shapes import CONFIGS

PUBLISHED = ("super", "puzzle")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_shared_experts": 2}, "n_shared_experts=2; vLLM multiplies the width"),
        ({"n_shared_experts": 0}, "n_shared_experts=0"),
        ({"n_shared_experts": None}, "n_shared_experts=None"),
        ({"time_step_limit": [0.001, 0.1]}, r"time_step_limit=\[0\.001, 0\.1\]"),
        ({"time_step_limit": 5}, "time_step_limit=5"),
    ],
)
def test_f1_a_key_of_which_engines_make_different_models_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_config(pico_config(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act='silu'"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act='gelu'"),
        ({"sliding_window": 128}, "sliding_window=128"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mamba_conv_bias": False}, "use_conv_bias=False"),
        ({"per_layer_config": {"1": {"moe_intermediate_size": 16}}}, "per_layer_config="),
    ],
)
def test_f1_a_key_that_the_table_does_not_hold_for_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        read_config(pico_config(**changes))


@pytest.mark.parametrize(
    ("changes", "both"),
    [
        ({"num_local_experts": 8}, ("n_routed_experts=4", "num_local_experts=8")),
        ({"mamba_n_groups": 4}, ("n_groups=2", "mamba_n_groups=4")),
        ({"attention_head_dim": 16}, ("head_dim=8", "attention_head_dim=16")),
        ({"rms_norm_eps": 1e-6}, ("layer_norm_epsilon=1e-05", "rms_norm_eps=1e-06")),
        ({"torch_dtype": "float32"}, ("dtype='bfloat16'", "torch_dtype='float32'")),
        ({"hybrid_override_pattern": "MEM*"}, ("layers_block_type", "hybrid_override_pattern")),
        ({"layer_types": ["moe"]}, ("layers_block_type", "layer_types")),
        ({"mtp_hybrid_override_pattern": "EE"}, ("mtp_layers_block_type", "mtp_hybrid")),
    ],
)
def test_f1_two_keys_that_say_one_thing_differently_are_refused(
    changes: dict[str, Any], both: tuple[str, str]
) -> None:
    with pytest.raises(CheckpointError) as error:
        read_config(pico_config(**changes))
    assert all(key in error.value.message for key in both)


def test_f1_values_of_a_block_that_a_reader_ignores_are_refused() -> None:
    config = puzzle_config(pico_config(), HETEROGENEOUS)
    assert read_config(config).blocks[1].sizes["ffn"] == 24
    plain = config | {"model_type": "nemotron_h", "moe_intermediate_size": 32}
    with pytest.raises(CheckpointError, match=r"block_configs\[1\]\.moe_intermediate_size=24 and"):
        read_config(plain)


def test_f1_a_blocks_own_value_of_something_global_is_not_dropped_in_silence() -> None:
    config = puzzle_config(pico_config(), HETEROGENEOUS)
    config["block_configs"][3] |= {"routed_scaling_factor": 2.0, "n_group": 1}
    read_config(config)
    config["block_configs"][3] |= {"routed_scaling_factor": 1.5}
    with pytest.raises(UnsupportedModelError, match=r"block_configs\[3\]\.routed_scaling_factor"):
        read_config(config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_f1_every_key_of_a_published_config_is_known(name: str) -> None:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    assert FAMILY.unknown_keys(config) == ()
    assert FAMILY.unknown_keys(write_config(read_config(config), config)) == ()


def test_f1_a_key_that_nobody_knows_is_named_and_copied() -> None:
    config = pico_config(router_z_loss=0.1, _note="a comment", attn_logit_cap=30)
    assert FAMILY.unknown_keys(config) == ("attn_logit_cap", "router_z_loss")
    assert write_config(read_config(config), config)["attn_logit_cap"] == 30


def test_f1_a_null_is_a_missing_key_and_readers_do_not_trip_over_it() -> None:
    config = pico_config(attention_dropout=None, n_group=None, pad_token_id=None, use_bias=None)
    written = write_config(read_config(config), config)
    assert "attention_dropout" not in written
    assert written["n_group"] == 1
    assert written["pad_token_id"] is None


def test_a_prediction_head_whose_layers_are_not_listed_has_those_of_transformers() -> None:
    config = pico_config()
    del config["mtp_layers_block_type"]
    assert read_config(config) == read_config(pico_config())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_groups": 3}, "mamba_num_heads=4 is no multiple of n_groups=3"),
        ({"n_groups": 8}, "mamba_num_heads=4 is no multiple of n_groups=8"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of"),
        ({"n_group": 3, "topk_group": 1}, "n_routed_experts=4 is no multiple of n_group=3"),
        ({"n_group": 2, "topk_group": 3}, "topk_group=3 exceeds n_group=2"),
        ({"n_group": 4, "topk_group": 4}, "n_group=4 leaves 1 expert a group"),
        (
            {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 3},
            "num_experts_per_tok=3 exceeds the 2 experts of topk_group=1",
        ),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"moe_latent_size": 0}, "moe_latent_size is 0"),
        ({"moe_latent_size": -16}, "moe_latent_size is -16"),
        ({"hidden_size": 32.0}, "hidden_size is 32.0"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000"),
        ({"n_routed_experts": 10**9}, "n_routed_experts is 1000000000"),
        ({"routed_scaling_factor": math.nan}, "routed_scaling_factor is nan"),
        ({"layer_norm_epsilon": math.inf}, "layer_norm_epsilon is inf"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1"),
        ({"layers_block_type": "mamba"}, "layers_block_type is 'mamba'"),
        ({"layers_block_type": [1, 2]}, r"layers_block_type is \[1, 2\]"),
        ({"block_configs": {"0": {}}}, "block_configs is "),
        ({"num_nextn_predict_layers": True}, "num_nextn_predict_layers is True"),
        ({"pad_token_id": "2"}, "pad_token_id is '2'"),
        ({"hidden_dropout": "none"}, "hidden_dropout is 'none'"),
        ({"dtype": 16}, "dtype is 16"),
    ],
)
def test_f4_impossible_sizes_are_refused_by_name_when_the_config_is_read(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_config(pico_config(**changes))


def test_f4_groups_that_go_together_are_read() -> None:
    config = pico_config(n_group=2, topk_group=1, num_experts_per_tok=2)
    assert read_config(config).blocks[1].settings == {"top_k": 2}
    entries = [{"block_type": "moe", "n_routed_experts": n} for n in (4, 6)]
    config = pico_config(
        model_type="nemotron_h_puzzle", n_group=2, topk_group=2, block_configs=entries
    )
    del config["layers_block_type"], config["num_hidden_layers"]
    assert [b.sizes["expert"] for b in read_config(config).blocks] == [4, 6]
    entries[1]["n_routed_experts"] = 5
    with pytest.raises(CheckpointError, match="n_routed_experts=5 is no multiple of n_group=2"):
        read_config(config)


def test_f4_verify_lists_it_and_goes_on(tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path, seed=1)
    config = json.loads((tmp_path / "config.json").read_text()) | {"n_groups": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").unlink()

    rule, tokenizer = (fault.message for fault in verify_files(tmp_path).faults)

    assert rule == (
        "mamba_num_heads=4 is no multiple of n_groups=3: each group serves equally many heads"
    )
    assert tokenizer.startswith("no tokenizer")
    with pytest.raises(CheckpointError, match="n_groups=3"):
        describe(tmp_path)


@pytest.mark.parametrize("model_type", [["nemotron_h"], {"a": 1}, 3])
def test_f4_a_model_type_that_is_no_word(model_type: object) -> None:
    with pytest.raises(UnsupportedModelError, match="unknown architecture"):
        family_of({"model_type": model_type})
