"""Number formats on hardware: run, widened, kept otherwise, or refused."""

from __future__ import annotations

import itertools

import pytest

from fretsaw.core.deployment import deploy
from fretsaw.core.engines import engine_named, engine_names
from fretsaw.core.hardware import ONE_GPU, hardware_named, hardware_names
from fretsaw.core.precision import PRESETS, QUANTISED, preset
from fretsaw.errors import RecipeError
from fretsaw.pricing.blocks import block_kernels
from fretsaw.pricing.kernels import Kernel, Step
from fretsaw.pricing.roofline import RooflineTimer
from tests.shapes import published_shape

SUPER = published_shape("super")
MOE = next(block for block in SUPER.blocks if block.mixer == "moe")


def deployed(hardware: str, name: str, *, engine: str = "vllm"):  # type: ignore[no-untyped-def]
    return deploy(
        preset(name), SUPER, engine=engine_named(engine), hardware=hardware_named(hardware)
    )


def experts_on_an_a100(name: str) -> Kernel:
    precision = deployed("A100", name).precision
    kernels = block_kernels(MOE, step=Step(4096, 1, 0), layout=ONE_GPU, precision=precision)
    return next(kernel for kernel in kernels if kernel.operation == "experts")


def test_u8_units_of_a_format_leave_it_as_it_is() -> None:
    for hardware, name in (("B200", "nvfp4"), ("H100", "fp8"), ("A100", "bf16"), ("L40S", "fp8")):
        found = deployed(hardware, name)
        assert found.precision == preset(name)
        assert not [note for note in found.notes if "KV" not in note]


def test_u8_widened_weights_keep_their_bytes_and_lose_their_rate() -> None:
    """FP8 on A100 computes no faster than BF16; its weights are half as many bytes."""
    kernels = {name: experts_on_an_a100(name) for name in ("bf16", "fp8")}
    assert kernels["fp8"].weight_bytes == kernels["bf16"].weight_bytes / 2
    assert kernels["fp8"].computed_in == "bf16"
    timer = RooflineTimer(hardware_named("A100"))
    assert timer.time(kernels["fp8"]).seconds <= timer.time(kernels["bf16"]).seconds


def test_u8_weight_only_formats_are_multiplied_in_16_bits_on_any_chip() -> None:
    precision = deployed("B200", "nvfp4-w4a16").precision
    kernels = block_kernels(MOE, step=Step(8192, 1, 0), layout=ONE_GPU, precision=precision)
    assert {k.computed_in for k in kernels if k.group == "experts"} == {"bf16"}


def test_u8_llama_cpp_keeps_fp8_in_16_bits() -> None:
    precision = deployed("H100", "nvfp4", engine="llama.cpp").precision
    assert precision.format_of("mamba_projection") == "bf16"
    assert precision.format_of("experts") == "nvfp4"
    assert precision.product_of("experts") == "bf16"
    assert precision.kv == "fp16"


@pytest.mark.parametrize(
    ("hardware", "name", "engine"),
    list(itertools.product(hardware_names(), PRESETS, engine_names())),
)
def test_u8_every_format_runs_with_a_word_or_is_refused(
    hardware: str, name: str, engine: str
) -> None:
    """Whatever has no units is widened or refused, never priced as if it had."""
    chip, known = hardware_named(hardware), engine_named(engine)
    formats = {*preset(name).weights.values(), "bf16"}
    rows = [known.product_of(chip, fmt, part="weights") for fmt in formats]
    rows.append(known.product_of(chip, preset(name).kv, part="kv"))
    if any(row is not None and row.runs == "no" for row in rows):
        with pytest.raises(RecipeError) as caught:
            deployed(hardware, name, engine=engine)
        assert caught.value.hint
        return
    found = deployed(hardware, name, engine=engine)
    for kind in found.precision.quantised:
        fmt = found.precision.format_of(kind)
        assert chip.has_units(fmt) or found.precision.product_of(kind) == "bf16"
    lacking = [fmt for fmt in formats if fmt in QUANTISED and not chip.has_units(fmt)]
    assert bool(found.notes) or not lacking
