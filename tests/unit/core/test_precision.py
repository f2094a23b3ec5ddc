"""Which weight is in which format: presets, one's own, and rules that cannot be meant."""

from __future__ import annotations

import pytest

from fretsaw.core.precision import (
    KINDS,
    LINEAR,
    PRESETS,
    Precision,
    kind_of,
    precision_from,
    preset,
)
from fretsaw.errors import RecipeError
from fretsaw.families import family_named
from tests.shapes import hybrid_shape


def test_every_weight_of_a_model_has_a_kind() -> None:
    shape = hybrid_shape("ME*-")
    rows = family_named(shape.family).rows(shape)
    kinds = {
        row.tensor.name.removeprefix("layers.").split(".", 1)[-1]: kind_of(
            row.tensor, part=row.part
        )
        for row in rows
    }
    expected = {
        "mixer.in_proj.weight": "mamba_projection",
        "mixer.out_proj.weight": "mamba_projection",
        "mixer.conv1d.weight": "mamba_other",
        "mixer.A_log": "mamba_other",
        "mixer.norm.weight": "mamba_other",
        "mixer.q_proj.weight": "attention",
        "mixer.gate.weight": "router",
        "mixer.gate.e_score_correction_bias": "router_bias",
        "mixer.experts.{expert}.up_proj.weight": "experts",
        "mixer.shared_experts.up_proj.weight": "shared_experts",
        "norm.weight": "norm",
    }
    assert {name: kinds[name] for name in expected} == expected


@pytest.mark.parametrize("name", PRESETS)
def test_presets_quantise_linear_maps_alone(name: str) -> None:
    assert set(preset(name).quantised) <= set(LINEAR)
    for kind in ("router", "norm", "mamba_other", "embedding", "mtp", "attention", "latent"):
        assert preset(name).format_of(kind) in ("bf16", "fp32")


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in LINEAR])
def test_what_is_no_linear_map_cannot_be_quantised(kind: str) -> None:
    """R50, R63: convolution, A, D, norms, router and prediction head stay as they are."""
    with pytest.raises(RecipeError, match=rf"{kind} cannot be in fp8"):
        precision_from({kind: "fp8"})


def test_own_precision() -> None:
    found = precision_from(
        {"experts": "nvfp4", "attention": "fp8", "kv": "bf16", "weight_only": ["experts"]}
    )
    assert found == Precision(
        "own", {"experts": "nvfp4", "attention": "fp8"}, kv="bf16", weight_only=("experts",)
    )
    assert found.quantised == ("experts", "attention")
    assert found.format_of("latent") == "bf16"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"expert": "fp8"}, "unknown kind of weight 'expert'"),
        ({"experts": "fp4"}, "unknown number format 'fp4'"),
        ({"default": "fp8"}, "default cannot be in fp8"),
        ({"weight_only": "experts"}, "weight_only is 'experts'"),
        ({"weight_only": ["experts"]}, "experts is weight-only, but not quantised"),
    ],
)
def test_what_cannot_be_meant_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        precision_from(data)


def test_a_rule_that_matches_nothing_is_refused() -> None:
    precision = precision_from({"experts": "nvfp4", "mlp": "fp8"})
    precision.check_kinds({"experts", "mlp"})
    with pytest.raises(RecipeError, match=r"gives mlp a format; the model has none") as caught:
        precision.check_kinds({"experts", "norm"})
    assert "norm, experts" in caught.value.hint
