"""A line in bytes and FLOPs through measured forms: found exactly, robust, never falling."""

from __future__ import annotations

import random

import pytest

from fretsaw.core.hardware import ONE_GPU
from fretsaw.core.precision import preset
from fretsaw.core.shape import Block
from fretsaw.pricing.blocks import block_kernels
from fretsaw.pricing.fitted import fit_kind
from fretsaw.pricing.kernels import Step
from tests.shapes import hybrid_shape

MOE = hybrid_shape("E*").blocks[0]
FORMS = [MOE.with_values({"ffn": f, "top_k": k}) for f in (16, 32, 48) for k in (1, 2, 4, 6)]
STEP = Step(8, 1, 100)
FP32 = preset("fp32")


def true_seconds(block: Block) -> float:
    kernels = block_kernels(block, step=STEP, layout=ONE_GPU, precision=FP32)
    return 5e-5 + 2e-9 * sum(k.bytes for k in kernels) + 3e-10 * sum(k.flops for k in kernels)


def test_an_exact_line_is_found() -> None:
    fit = fit_kind([(b, true_seconds(b)) for b in FORMS[::3]], step=STEP, precision=FP32)
    for block in FORMS:
        assert fit.seconds(block) == pytest.approx(true_seconds(block), rel=1e-6)
    assert fit.error < 1e-6


def test_a_single_form_is_met() -> None:
    fit = fit_kind([(MOE, 1e-3)], step=STEP, precision=FP32)
    assert fit.seconds(MOE) == pytest.approx(1e-3)


def test_one_disturbed_measurement_moves_nothing() -> None:
    measured = [(b, true_seconds(b) * (5 if b is FORMS[4] else 1)) for b in FORMS]
    fit = fit_kind(measured, step=STEP, precision=FP32)
    for block in FORMS:
        assert fit.seconds(block) == pytest.approx(true_seconds(block), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_under_noise_a_smaller_form_is_never_slower(seed: int) -> None:
    rng = random.Random(seed)
    measured = [(b, true_seconds(b) * rng.uniform(0.5, 2.0)) for b in FORMS]
    fit = fit_kind(measured, step=STEP, precision=FP32)
    for small in FORMS:
        for large in FORMS:
            if all(small.values[d] <= large.values[d] for d in ("ffn", "top_k")):
                assert fit.seconds(small) <= fit.seconds(large) * (1 + 1e-9)
    assert 0 < fit.error < 1
