"""What engines say to shapes and to search spaces: the reports R28 to R32 and R56."""

from collections.abc import Mapping

import pytest

from fretsaw.core.compatibility import Finding, findings, space_findings, who_can_load
from fretsaw.core.engines import Packing, engine_named
from fretsaw.core.precision import Precision, preset
from fretsaw.core.shape import ModelShape
from fretsaw.core.variant import Variant
from tests.shapes import hybrid_shape, published_shape

SUPER = published_shape("super")
PUZZLE = published_shape("puzzle")


def changed(shape: ModelShape, values: Mapping[int, Mapping[str, int]]) -> ModelShape:
    """The shape with own values in some blocks."""
    return shape.with_blocks(b.with_values(values.get(i, {})) for i, b in enumerate(shape.blocks))


def everywhere(shape: ModelShape, **values: int) -> ModelShape:
    return shape.with_blocks(block.with_values(values) for block in shape.blocks)


def said(
    shape: ModelShape, engine: str, dimension: str, *, precision: str = "bf16"
) -> list[Finding]:
    found = findings(shape, engine=engine_named(engine), precision=preset(precision))
    return [finding for finding in found if finding.dimension == dimension]


@pytest.mark.parametrize(
    ("state", "near"), [(80, (64, 96)), (100, (96, 128)), (96, None), (128, None)]
)
def test_r28_states_without_a_kernel_are_warned_about(
    state: int, near: tuple[int, ...] | None
) -> None:
    found = said(everywhere(SUPER, state=state), "vllm", "state")
    if near is None:
        assert found == []
    else:
        assert [(f.severity, f.values, f.nearest) for f in found] == [("slow", (state,), near)]
        assert found[0].blocks == SUPER.indices("mamba")


def test_r28_each_engine_has_its_own_list_of_states() -> None:
    [slow] = said(everywhere(SUPER, state=96), "llama.cpp", "state")
    assert (slow.severity, slow.nearest) == ("slow", (128,))


def test_r29_expert_counts_that_differ_by_block_run_in_vllm_and_not_in_llama_cpp() -> None:
    shape = changed(
        hybrid_shape("EEE*"),
        {i: {"expert": n, "top_k": 2} for i, n in enumerate((4, 8, 6))},
    )
    assert [f.severity for f in said(shape, "vllm", "expert")] == ["untested"]
    refused = said(shape, "llama.cpp", "expert")[0]
    assert (refused.severity, refused.values, refused.blocks) == ("refuse", (4, 6, 8), (0, 1, 2))


@pytest.mark.parametrize(("experts", "near"), [(144, (128, 192)), (160, (128, 192))])
def test_r30_expert_counts_that_routers_are_not_built_for(
    experts: int, near: tuple[int, ...]
) -> None:
    [found] = said(everywhere(SUPER, expert=experts), "vllm", "expert")
    assert found.severity == "untested"
    assert found.nearest == near
    assert "crashes at 144 and 160" in str(found)
    assert said(everywhere(SUPER, expert=192), "vllm", "expert") == []


def test_r31_top_k_by_block_says_which_engine_routes_slowly() -> None:
    moe = SUPER.indices("moe")
    shape = changed(SUPER, {i: {"top_k": 9 + n} for n, i in enumerate(moe[:13])})
    [found] = said(shape, "tensorrt-llm", "top_k")
    assert (found.severity, found.values) == ("slow", tuple(range(9, 22)))
    assert (found.blocks, found.nearest) == (moe[:13], (8, 22))
    assert "top_k 9 … 21 (13 values) in 13 blocks" in str(found)
    for engine in ("vllm", "sglang", "llama.cpp", "transformers"):
        assert said(shape, engine, "top_k") == []


def test_r31_the_edge_plug_in_refuses_super_as_it_did() -> None:
    [experts] = said(SUPER, "tensorrt-edge-llm", "expert", precision="nvfp4")
    [top_k] = said(SUPER, "tensorrt-edge-llm", "top_k", precision="nvfp4")
    assert (experts.severity, experts.nearest) == ("refuse", (256,))
    assert (top_k.severity, top_k.nearest) == ("refuse", (8,))
    assert said(SUPER, "tensorrt-edge-llm", "ffn", precision="nvfp4") == []


def test_an_nvfp4_latent_of_768_is_refused_and_in_bf16_it_is_not() -> None:
    shape = everywhere(SUPER, latent=768)
    [found] = said(shape, "vllm", "latent", precision="nvfp4")
    assert (found.severity, found.values, found.nearest) == ("refuse", (768,), (512, 1024))
    assert said(shape, "vllm", "latent") == []
    assert said(SUPER, "vllm", "latent", precision="nvfp4") == []


@pytest.mark.parametrize(
    ("ffn", "precision", "severities"),
    [
        (1288, "nvfp4", ["refuse", "slow"]),
        (1296, "nvfp4", ["slow"]),
        (1296, "fp8", ["slow"]),
        (1296, "bf16", []),
        (1280, "nvfp4", []),
    ],
)
def test_width_multiples_go_by_the_format_of_the_experts(
    ffn: int, precision: str, severities: list[str]
) -> None:
    found = said(everywhere(SUPER, ffn=ffn), "vllm", "ffn", precision=precision)
    assert [f.severity for f in found] == severities
    assert all(f.nearest for f in found)


@pytest.mark.parametrize("dimension", ["expert", "shared_ffn", "latent"])
def test_llama_cpp_takes_widths_and_top_k_by_block_and_nothing_else(dimension: str) -> None:
    first = SUPER.indices("moe")[0]
    assert said(changed(SUPER, {first: {"ffn": 1280, "top_k": 4}}), "llama.cpp", "ffn") == []
    half = SUPER.blocks[first].sizes[dimension] // 2
    [found] = said(changed(SUPER, {first: {dimension: half}}), "llama.cpp", dimension)
    assert found.severity == "refuse"


@pytest.mark.parametrize(
    "engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers", "mlx-lm"]
)
def test_a_state_that_differs_by_block_is_refused_everywhere(engine: str) -> None:
    shape = changed(SUPER, {0: {"state": 96}})
    assert said(shape, engine, "state")[0].severity == "refuse"


def test_u1_packed_weights_need_our_loader_in_transformers() -> None:
    engine, precision = engine_named("transformers"), preset("nvfp4")
    ours = findings(SUPER, engine=engine, precision=precision)
    assert [f.severity for f in ours] == ["slow", "note"]
    assert "dequantises" in str(ours[0])
    strangers = findings(
        SUPER, engine=engine, precision=precision, packing=Packing(brings_loader=False)
    )
    assert strangers[0].severity == "refuse"
    assert "ModelOpt" in str(strangers[0])
    for plain in (Packing(), Packing(brings_loader=False)):
        found = findings(SUPER, engine=engine, precision=preset("bf16"), packing=plain)
        assert [f.severity for f in found] == ["note"]
    (row,) = (r for r in who_can_load(SUPER, precision) if r.engine == "transformers")
    assert (row.verdict, row.evidence) == ("yes, slowly", "tried")
    assert "trust_remote_code=True" in row.needs


def test_u1_what_was_tried_in_16_bits_is_not_called_tried_in_4() -> None:
    rows = {row.engine: row for row in who_can_load(SUPER, preset("nvfp4"))}
    assert rows["vLLM"].evidence == "read"
    mixed = {r.engine: r for r in who_can_load(SUPER, Precision("x", {"attention": "nvfp4"}))}
    assert mixed["vLLM"].evidence == "read"


def test_u1_a_layout_that_nobody_has_looked_for_is_untested() -> None:
    packing = Packing("compressed-tensors")
    rows = {r.engine: r for r in who_can_load(SUPER, preset("fp8"), packing=packing)}
    assert rows["TensorRT-LLM"].verdict == "untested"
    assert rows["vLLM"].verdict != "untested"
    plain = {r.engine: r for r in who_can_load(SUPER, preset("bf16"), packing=packing)}
    assert plain["TensorRT-LLM"].verdict == "yes"


def test_a_format_and_a_family_that_nobody_has_tried_are_called_so() -> None:
    found = findings(SUPER, engine=engine_named("vllm"), precision=preset("mxfp4"))
    assert ("untested", "mxfp4 in experts: nobody has tried") in [
        (f.severity, f.what) for f in found
    ]
    other = ModelShape("other", SUPER.sizes, SUPER.blocks)
    [found_other, _] = findings(
        other, engine=engine_named("transformers"), precision=preset("bf16")
    )
    assert (found_other.severity, found_other.blocks) == ("untested", ())


def test_r32_who_can_load_a_child_with_values_by_block() -> None:
    rows = {row.engine: row for row in who_can_load(PUZZLE, preset("bf16"))}
    assert rows["mlx-lm"].verdict == "no"
    assert rows["llama.cpp"].verdict == "yes, slowly"
    assert (rows["vLLM"].verdict, rows["vLLM"].evidence) == ("yes", "tried")
    assert rows["vLLM"].needs == "vLLM 0.24 or later, --trust-remote-code"
    assert (rows["SGLang"].verdict, rows["SGLang"].evidence) == ("yes", "read")
    assert [*rows][-1] == "mlx-lm"
    equal = {row.engine: row for row in who_can_load(SUPER, preset("bf16"))}
    assert equal["mlx-lm"].verdict == "yes"
    assert equal["vLLM"].needs == ""


def test_r56_back_ends_that_take_squared_relu_in_nvfp4_are_named() -> None:
    rows = {row.engine: row for row in who_can_load(SUPER, preset("nvfp4"))}
    notes = {name: " ".join(map(str, row.findings)) for name, row in rows.items()}
    assert "flashinfer_cutlass" in notes["vLLM"]
    assert "marlin does not" in notes["SGLang"]
    assert "flashinfer_cutlass" not in " ".join(
        str(f) for row in who_can_load(SUPER, preset("bf16")) for f in row.findings
    )


def test_a_search_space_is_judged_by_every_value_on_offer() -> None:
    moe, mamba = SUPER.indices("moe")[0], SUPER.indices("mamba")[0]
    variants = [Variant(moe, {"ffn": n}) for n in (2688, 1304)] + [Variant(moe, is_none=True)]
    variants += [Variant(mamba, {"state": n}) for n in (128, 80)]
    found = space_findings(
        variants, shape=SUPER, engine=engine_named("vllm"), precision=preset("nvfp4")
    )
    seen = {(f.dimension, f.severity, f.values, f.blocks) for f in found if f.dimension}
    assert seen == {
        ("ffn", "refuse", (1304,), (moe,)),
        ("ffn", "slow", (1304,), (moe,)),
        ("state", "slow", (80,), (mamba,)),
    }


def test_a_search_may_offer_several_states_but_not_several_expert_counts_to_llama_cpp() -> None:
    moe, mamba = SUPER.indices("moe")[0], SUPER.indices("mamba")
    variants = [Variant(i, {"state": n}) for i in mamba for n in (128, 256)]
    variants += [Variant(moe, {"expert": n}) for n in (512, 256)]
    found = space_findings(
        variants, shape=SUPER, engine=engine_named("llama.cpp"), precision=preset("bf16")
    )
    assert [(f.dimension, f.severity, f.values) for f in found] == [
        ("expert", "refuse", (256, 512))
    ]
