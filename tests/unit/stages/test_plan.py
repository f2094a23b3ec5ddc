"""Planning from a config alone: what options mean, and what is refused before any pricing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fretsaw.errors import CheckpointError, FretsawError, RecipeError, UnsupportedModelError
from fretsaw.reports.outlook import ServingPlan
from fretsaw.stages.plan import PlanOptions, plan, write_picture
from tests.pico import pico_config
from tests.shapes import CONFIGS

SUPER, PUZZLE = (CONFIGS / f"{name}.json" for name in ("super", "puzzle"))
NODE = {"hardware": "8xB200", "workload": "8k/1k", "number_format": "nvfp4"}


def planned(model: Path, child: Path | None = None, **options: Any) -> ServingPlan:
    return plan(model, child, options=PlanOptions(**{**NODE, **options}))


def remembered(model: Path, child: Path | None = None, **options: Any) -> ServingPlan:
    """A plan of memory alone, which prices nothing."""
    return planned(model, child, **{"workload": None, "context": "8k", **options})


def written(folder: Path, **overrides: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(pico_config(**overrides)))
    return file


def pico_plan(folder: Path, options: dict[str, Any], **overrides: Any) -> ServingPlan:
    usual = {"hardware": "H100", "workload": "100/100", "number_format": "bf16"}
    return plan(written(folder, **overrides), options=PlanOptions(**{**usual, **options}))


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({"hardware": "8xB2000"}, "unknown hardware 'B2000'", "did you mean 'B200'"),
        ({"hardware": "0xB200"}, "'0xB200' is no hardware", "8xB200"),
        ({"hardware": "this-machine"}, "no data sheet", "recipe"),
        ({"memory": "0"}, "memory_bytes is 0", "above 0"),
        ({"memory": "80"}, "'80' of memory is 80 B", 'did you mean "80GB"?'),
        ({"headroom": "2"}, "'2' of memory is 2 B", 'did you mean "2GB"?'),
        ({"memory": "-80GB"}, "'-80GB' is no size", "GiB"),
        ({"memory": "1MiB", "headroom": "2MiB"}, "nothing is left", "more memory"),
        ({"headroom": "1TiB"}, "nothing is left", "less head-room"),
        ({"memory_fraction": 0.0}, "memory fraction of 0", "0.9"),
        ({"workload": None}, "neither a workload nor a context", "--workload"),
        ({"workload": "8k"}, "'8k' is no workload", "8k/64k"),
        ({"workload": "0/8k"}, "has no tokens", "8k/64k"),
        ({"workload": "1M/1M"}, "longer than the model's 1,048,576", "max_position_embeddings"),
        ({"context": "2M"}, "2,000,000 tokens is longer", "max_position_embeddings"),
        ({"context": "0"}, "context of 0", "128k"),
        ({"context": "9" * 5000}, "is no count", "k, M, B, T"),
        ({"layout": "tp3"}, "tp3 takes 3 GPUs", "1, 2, 4, 8"),
        ({"layout": "tp2 ep4"}, "spread over 4 GPUs", "ep2"),
        ({"layout": "two"}, "'two' is no layout", "tp2"),
        ({"hardware": "6xB200", "layout": "tp6"}, "tp6 does not divide", "take a tp"),
        ({"hardware": "16xB200", "layout": "tp16"}, "the 8 groups", "take a tp"),
        ({"hardware": "3xB200", "layout": "dp3 ep3"}, "ep3 does not divide the 512", "ep1"),
        ({"user_tokens_per_s": 0.0}, "--user-tokens-per-s is 0", "above 0"),
        ({"user_tokens_per_s": float("nan")}, "--user-tokens-per-s is nan", "above 0"),
        ({"user_tokens_per_s": float("inf")}, "--user-tokens-per-s is inf", "above 0"),
        ({"verbosity": -1.0}, "--verbosity is -1", "above 0"),
        (
            {"workload": None, "context": "8k", "user_tokens_per_s": 9.0},
            "no workload",
            "--workload",
        ),
        ({"acceptance_length": 0.5}, "acceptance length of 0.5", "speculative"),
        ({"acceptance_length": float("nan")}, "acceptance length of nan", "speculative"),
        ({"workload": "8k/2", "acceptance_length": 3.0}, "the 2 tokens", "speculative"),
        ({"weights_bytes": ["70GiB", "44GiB"]}, "given 2 times for 1 models", "once per model"),
        ({"weights_bytes": ["0"]}, "weights of 0 bytes", "70GiB"),
        ({"weights_bytes": ["much"]}, "'much' is no size", "GiB"),
        ({"require": "twice as fast"}, "is no requirement", "2x server tokens/s"),
        ({"require": "2x server tokens/s"}, "at no user speed", "--user-tokens-per-s"),
        (
            {"require": "2x server tokens/s", "user_tokens_per_s": 1e5},
            "no server tokens/s",
            "slower",
        ),
        ({"number_format": "int4"}, "unknown precision 'int4'", "nvfp4"),
        ({"kv_dtype": "fp9"}, "unknown number format 'fp9'", "fp8"),
        ({"state_dtype": "half"}, "unknown number format 'half'", "fp16"),
        ({"engine": "vlm"}, "unknown engine 'vlm'", "vllm"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        planned(SUPER, **options)
    assert said in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("overrides", "error", "said"),
    [
        ({"model_type": "gpt_odd"}, UnsupportedModelError, "gpt_odd"),
        ({"num_experts_per_tok": 9}, CheckpointError, "top-k 9 of 4 experts"),
        ({"layers_block_type": ["moe"], "num_hidden_layers": 1}, RecipeError, "neither attention"),
    ],
)
def test_models_that_cannot_be_planned(
    tmp_path: Path, overrides: dict[str, Any], error: type[FretsawError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        pico_plan(tmp_path, {}, **overrides)
    assert caught.value.hint


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(CheckpointError, match=str(path)) as caught:
            planned(path)
        assert caught.value.hint


def test_the_shortest_context_of_both_models_counts(tmp_path: Path) -> None:
    child = written(tmp_path)
    with pytest.raises(RecipeError, match="longer than the model's 512"):
        planned(SUPER, child, workload="500/100")
    assert planned(SUPER, child, workload="412/100").models[1].name == tmp_path.name


def test_a_context_counts_for_memory_and_the_workload_for_speed() -> None:
    own, longer = planned(PUZZLE), planned(PUZZLE, context="500k")
    assert own.models[0].setting.context == 9000
    assert longer.models[0].setting.context == 500_000
    held = [one.models[0].outlook.capacity.max_concurrency for one in (own, longer)]
    assert held[0] > 10 * held[1] > 0
    assert own.models[0].outlook.frontier == longer.models[0].outlook.frontier


def test_each_model_may_have_weights_of_its_own() -> None:
    found = remembered(SUPER, PUZZLE, weights_bytes=["70GiB", "44.5GiB"])
    sizes = [one.outlook.capacity.footprint.weights_bytes for one in found.models]
    assert sizes == [70 * 2**30, 44.5 * 2**30]


def test_layouts_are_equal_replicas_unless_all_are_asked_for() -> None:
    usual, every, one = (
        remembered(PUZZLE, layout=text).models[0].setting.layouts
        for text in (None, "all", "tp2 ep2")
    )
    assert {layout.dp for layout in usual} == {1}
    assert set(usual) < set(every)
    assert any(layout.dp > 1 for layout in every)
    assert [str(layout) for layout in one] == ["tp2 ep2"]


def test_formats_of_caches_replace_those_of_the_preset() -> None:
    setting = remembered(PUZZLE, kv_dtype="bf16", state_dtype="fp16").models[0].setting
    assert (setting.precision.kv, setting.precision.state) == ("bf16", "fp16")
    usual = remembered(PUZZLE).models[0].setting.precision
    assert (usual.kv, usual.state) == ("fp8", "fp32")


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"hardware": "A100", "workload": "1k/100"}, "default constants"),
        ({"hardware": "8xH200", "workload": "1k/100"}, "constants of H100"),
        ({"context": "500k"}, "262,144 positions"),
        ({"hardware": "L40S"}, "68.1 GiB of weights in 40.5 GiB of memory"),
        ({"hardware": "H100", "context": "1M"}, "leaves no room for a request of 1,000,000"),
    ],
)
def test_what_a_reader_should_know_is_a_note(terms: dict[str, Any], said: str) -> None:
    quiet = remembered(SUPER)
    assert not any(said in note for note in quiet.notes)
    assert any(said in note for note in remembered(SUPER, **terms).notes)


@pytest.mark.parametrize(
    "blocks",
    [
        ["attention", "moe"],
        ["mamba", "attention"],
        ["mamba", "moe"],
        ["mlp", "attention"],
        ["mamba"],
    ],
)
@pytest.mark.parametrize("layout", [None, "all"])
def test_models_without_some_kind_of_block(
    tmp_path: Path, blocks: list[str], layout: str | None
) -> None:
    shape = {"layers_block_type": blocks, "num_hidden_layers": len(blocks), "intermediate_size": 64}
    options = {"hardware": "8xH100", "user_tokens_per_s": 50.0, "layout": layout}
    found = pico_plan(tmp_path, options, **shape).models[0].outlook
    assert found.capacity.max_concurrency > 0
    assert found.server_tokens_per_s is not None
    assert found.server_tokens_per_s > 0


@pytest.mark.parametrize("hardware", ["3xH100", "7xB200", "1xL40S", "65536xH100"])
def test_nodes_of_odd_sizes(tmp_path: Path, hardware: str) -> None:
    for layout in (None, "all"):
        found = pico_plan(tmp_path, {"hardware": hardware, "layout": layout}).models[0]
        count = found.setting.node.count
        assert all(count % layout.gpus == 0 for layout in found.setting.layouts)
        assert all(
            p.concurrency * p.layout.gpus == p.sequences * count for p in found.outlook.frontier
        )


def test_an_answer_of_one_token_is_a_prefill_and_a_step(tmp_path: Path) -> None:
    found = pico_plan(tmp_path, {"workload": "100/1"}).models[0].outlook
    for point in found.frontier:
        request_s = point.decode_s + point.sequences * point.prefill_s
        assert point.user_tokens_per_s == pytest.approx(1 / request_s)


def test_accepted_drafts_multiply_speed_at_most_by_their_number(tmp_path: Path) -> None:
    one, three = (
        pico_plan(tmp_path, {"acceptance_length": n}).models[0].outlook.frontier[-1] for n in (1, 3)
    )
    assert 1 < three.user_tokens_per_s / one.user_tokens_per_s <= 3


def test_a_picture_is_written_once(tmp_path: Path) -> None:
    found, file = planned(SUPER, PUZZLE), tmp_path / "frontier.svg"
    write_picture(found, file)
    picture = file.read_text()
    assert "super" in picture
    with pytest.raises(RecipeError, match="there already") as caught:
        write_picture(found, file)
    assert caught.value.hint == "give another name"
    assert file.read_text() == picture


@pytest.mark.parametrize(
    "options", [{"workload": None, "context": "8k"}, {"hardware": "L40S", "number_format": "fp32"}]
)
def test_no_frontier_is_no_picture(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="no frontier to draw") as caught:
        write_picture(planned(SUPER, **options), tmp_path / "frontier.svg")
    assert "--workload" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_f3_short_requests_take_the_same_page_whatever_the_kv_format() -> None:
    """As measured: 1.00 times as many at short context, more the longer it is."""
    held = {
        (context, kv): remembered(SUPER, hardware="2xH200", context=context, kv_dtype=kv)
        .models[0]
        .outlook.capacity.max_concurrency
        for context in ("4k", "32k", "256k")
        for kv in ("bf16", "fp8")
    }
    gain = {c: held[c, "fp8"] / held[c, "bf16"] for c in ("4k", "32k", "256k")}
    assert gain["4k"] == 1
    assert 1.2 < gain["32k"] < gain["256k"] < 2


def test_f3_pages_are_printed_and_the_states_of_prefix_caching_told() -> None:
    found = remembered(SUPER, hardware="H200", kv_dtype="fp8")
    row = found.to_json()["models"][0]
    assert (row["page_tokens"], row["page_bytes"]) == (8320, 8320 * 512)
    assert any("2 Mamba states of a request" in note for note in found.notes)
    assert "vllm-project" in found.assumptions()["cache_source"]


def test_f3_an_engine_whose_pages_nobody_knows_says_so() -> None:
    notes = remembered(SUPER, hardware="4xH100", engine="mlx-lm", number_format="bf16").notes
    assert any("is not known here: counted by the byte" in note for note in notes)


def test_f3_separate_pools_hold_more_short_requests_than_one_pool() -> None:
    held = [
        remembered(SUPER, hardware="2xH200", context="1k", engine=engine)
        .models[0]
        .outlook.capacity.max_concurrency
        for engine in ("vllm", "tensorrt-llm")
    ]
    assert held[1] > held[0]


@pytest.mark.parametrize(
    ("hardware", "options", "said"),
    [
        ("4xA100", {"number_format": "fp8"}, "FP8: A100 has no such units; vLLM: Marlin widens"),
        ("4xL40S", {"number_format": "nvfp4"}, "NVFP4: L40S has no such units"),
        ("2xH100", {"number_format": "mxfp4"}, "MXFP4: H100 has no such units"),
        ("4xA100", {"kv_dtype": "fp8", "number_format": "bf16"}, "FP8 KV cache is widened"),
        ("8xMI300X", {"number_format": "nvfp4"}, "FP4 weights are emulated"),
        ("2xH100", {"engine": "llama.cpp"}, "FP8 weights are stored as BF16"),
        ("2xH100", {"engine": "llama.cpp"}, "no floating-point KV cache below 16 bits"),
        ("4xB200", {"engine": "transformers"}, "dequantised on loading"),
    ],
)
def test_u8_a_format_without_units_is_said(
    hardware: str, options: dict[str, Any], said: str
) -> None:
    notes = remembered(SUPER, **{"hardware": hardware, "layout": "tp2", **options}).notes
    assert any(said in note for note in notes), notes


@pytest.mark.parametrize("hardware", ["2xH100", "4xA100", "2xB200"])
def test_u8_only_notes_that_apply(hardware: str) -> None:
    notes = " ".join(remembered(SUPER, hardware=hardware, number_format="nvfp4").notes)
    assert "on a CPU" not in notes
    assert ("B200" in notes) == (hardware == "2xB200")
    assert "speeds rest" not in notes


@pytest.mark.parametrize(
    ("engine", "hardware", "number_format", "nearest"),
    [
        ("tensorrt-llm", "4xA100", "fp8", "bf16"),
        ("tensorrt-llm", "4xL40S", "nvfp4", "fp8"),
        ("sglang", "4xH100", "nvfp4", "fp8"),
    ],
)
def test_u8_a_format_that_does_not_run_is_refused_with_the_nearest(
    engine: str, hardware: str, number_format: str, nearest: str
) -> None:
    options = {"engine": engine, "hardware": hardware, "number_format": number_format}
    with pytest.raises(RecipeError, match="does not run") as caught:
        remembered(SUPER, **options)
    assert f"take format {nearest}" in caught.value.hint
    remembered(SUPER, **{**options, "number_format": nearest})


def test_u8_an_engine_that_is_for_other_hardware_is_refused() -> None:
    with pytest.raises(RecipeError, match="NVIDIA GPUs only") as caught:
        remembered(SUPER, engine="tensorrt-llm", hardware="8xMI300X", number_format="bf16")
    assert "another engine" in caught.value.hint


def test_u8_the_hint_of_a_long_context_names_both_limits() -> None:
    with pytest.raises(RecipeError) as caught:
        remembered(SUPER, context="2M")
    assert "at most 1,048,576" in caught.value.hint
    assert "max_position_embeddings is 262,144" in caught.value.hint


def test_u8_notes_on_sizes_name_the_nearest_value(tmp_path: Path) -> None:
    notes = pico_plan(tmp_path, {}, n_routed_experts=12, num_experts_per_tok=2).notes
    assert any("expert 12" in note and "nearest: 8 or 16" in note for note in notes), notes
