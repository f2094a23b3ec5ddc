"""FP8 and NVFP4 to the bit: against the definitions, Model Optimizer's and compressed-tensors'."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import NVFP4PackedCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file
from torch import Tensor

from fretsaw.errors import ShapeError
from fretsaw.quant.calibrate import mse_block_scales
from fretsaw.quant.formats import (
    CHUNK,
    block_scales,
    decode_e2m1,
    encode_e2m1,
    encode_e4m3,
    fake_fp8,
    fake_nvfp4,
    fp8_scale,
    nvfp4_scale,
    pack,
    peak_of,
    peaks_of_blocks,
    quantize_fp8,
    quantize_nvfp4,
    round_e2m1,
    unpack,
)

GOLDEN = load_file(Path(__file__).parent / "golden" / "number_formats.safetensors")
NAMES = ("normal", "heavy", "ties", "steps")
GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3_points() -> list[float]:
    """The 127 magnitudes of E4M3 by code, from its definition: bias 7, no infinities."""
    points = [m / 8 * 2.0**-6 for m in range(8)]
    points += [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)]
    return points[:-1]  # the last code is NaN


def nearest_code(value: float, points: list[float] | tuple[float, ...]) -> int:
    """Code of the nearest point, ties to the even code; arithmetic in float64 is exact here."""
    errors = [abs(abs(value) - p) for p in points]
    best = [i for i, e in enumerate(errors) if e == min(errors)]
    return next(i for i in best if len(best) == 1 or i % 2 == 0)


def around(points: list[float] | tuple[float, ...]) -> list[float]:
    """Every point and every cut between two, and their float32 neighbours on both sides."""
    cuts = [(a + b) / 2 for a, b in itertools.pairwise(points)]
    exact = torch.tensor([*points, *cuts, points[-1] * 1.5, points[-1] * 100])
    below = torch.nextafter(exact, torch.full_like(exact, -math.inf))
    above = torch.nextafter(exact, torch.full_like(exact, math.inf))
    found: list[float] = torch.cat([exact, below, above]).tolist()
    return found


def test_every_e4m3_code_and_cut() -> None:
    points = e4m3_points()
    assert (len(points), points[1], points[-1]) == (127, 2.0**-9, 448.0)
    values = [v for v in around(points) if v >= 0]
    codes = encode_e4m3(torch.tensor(values)).view(torch.uint8).tolist()
    assert codes == [nearest_code(min(v, 448.0), points) for v in values]
    negative = encode_e4m3(-torch.tensor(values)).view(torch.uint8).tolist()
    assert [c & 127 for c in negative] == codes
    assert encode_e4m3(torch.tensor(points)).float().tolist() == points
    assert encode_e4m3(torch.tensor([math.inf, -math.inf])).float().tolist() == [448.0, -448.0]
    assert encode_e4m3(torch.tensor([math.nan])).float().isnan().all()


def test_every_e2m1_code_and_cut() -> None:
    values = around(GRID)
    codes = encode_e2m1(torch.tensor(values))
    assert codes.dtype == torch.uint8
    assert [c & 7 for c in codes.tolist()] == [nearest_code(v, GRID) for v in values]
    assert [bool(c >> 3) for c in codes.tolist()] == [v < 0 for v in values]
    for tie, expected in ((0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)):
        assert encode_e2m1(torch.tensor([tie, -tie])).tolist() == [expected, 8 + expected]
    assert encode_e2m1(torch.tensor([6.0, 7.0, 1e30, -1e30])).tolist() == [7, 7, 7, 15]
    assert encode_e2m1(torch.tensor([0.0, -0.0])).tolist() == [0, 0]


def test_every_e2m1_code_decodes() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert decode_e2m1(codes).tolist() == [*GRID, *(-g for g in GRID)]
    assert encode_e2m1(decode_e2m1(codes[1:8])).tolist() == list(range(1, 8))
    values = torch.linspace(-8, 8, 4001)
    assert torch.equal(round_e2m1(values), decode_e2m1(encode_e2m1(values)))


def test_the_even_column_lies_in_the_low_half() -> None:
    codes = torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)
    assert pack(codes).tolist() == [[0x21, 0x0F]]
    every = torch.arange(256, dtype=torch.uint8)[None]
    assert torch.equal(pack(unpack(every)), every)


@pytest.mark.parametrize("name", NAMES)
def test_equals_model_optimizer(name: str) -> None:
    weight = GOLDEN[f"{name}.weight"]
    found = quantize_nvfp4(weight)
    assert torch.equal(found.packed, GOLDEN[f"{name}.nvfp4.packed"])
    assert bits(found.block_scale) == bits(GOLDEN[f"{name}.nvfp4.block_scale"])
    assert torch.equal(found.scale, GOLDEN[f"{name}.nvfp4.scale"])
    torch.testing.assert_close(found.decode(), GOLDEN[f"{name}.nvfp4.back"], rtol=3e-7, atol=0)
    fp8 = quantize_fp8(weight)
    assert bits(fp8.codes) == bits(GOLDEN[f"{name}.fp8.codes"])
    assert torch.equal(fp8.scale, GOLDEN[f"{name}.fp8.scale"])


@pytest.mark.parametrize("seed", range(3))
def test_equals_compressed_tensors(seed: int) -> None:
    """It holds 1 / scale: a few scales lie one rounding apart, so codes are compared on ours."""
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(seed))
    scheme = preset_name_to_scheme("NVFP4", ["Linear"])
    peaks = peaks_of_blocks(weight)
    inverse = generate_gparam(weight.amin(), weight.amax())
    theirs, _ = calculate_qparams(-peaks, peaks, scheme.weights, global_scale=inverse)
    ours = quantize_nvfp4(weight)
    assert (1 / ours.scale).item() == pytest.approx(inverse.item(), rel=1e-6)
    gap = ours.block_scale.view(torch.uint8).int() - theirs.to(torch.float8_e4m3fn).view(
        torch.uint8
    )
    assert int(gap.abs().max()) <= 1
    assert float((gap != 0).float().mean()) < 0.01
    stored = {
        "weight": weight,
        "weight_scale": ours.block_scale.float(),
        "weight_global_scale": 1 / ours.scale.reshape(1),
    }
    compressed = NVFP4PackedCompressor.compress(stored, scheme)
    different = compressed["weight_packed"] != ours.packed
    assert float(different.float().mean()) < 1e-3
    back = NVFP4PackedCompressor.decompress(
        {**compressed, "weight_packed": ours.packed, "weight_scale": ours.block_scale}, scheme
    )["weight"]
    torch.testing.assert_close(back.float(), ours.decode(), rtol=2e-2, atol=1e-6)  # bf16


def bits(tensor: Tensor) -> list[int]:
    found: list[int] = tensor.contiguous().view(torch.uint8).flatten().tolist()
    return found


def test_scales_of_whole_tensors() -> None:
    assert fp8_scale(torch.tensor(448.0)).item() == 1.0
    assert nvfp4_scale(torch.tensor(2688.0)).item() == 1.0
    assert fp8_scale(torch.tensor(0.0)).item() == nvfp4_scale(torch.tensor(0.0)).item() == 1.0
    smallest = torch.tensor(1e-45)
    assert fp8_scale(smallest) > 0
    assert nvfp4_scale(smallest) > 0
    assert peak_of(torch.tensor([[1.0, -3.0], [2.0, 0.0]])).item() == 3.0
    assert peak_of(torch.tensor([1.0, math.nan])).isnan()


def test_scales_of_blocks() -> None:
    scale = torch.tensor(0.5)
    peaks = torch.tensor([3.0, 0.0, 6 * 0.5 * 448, 1e9, 1e-9])
    assert block_scales(peaks, scale).float().tolist() == [1.0, 1.0, 448.0, 448.0, 2.0**-9]


def test_a_zero_tensor_and_zero_blocks_stay_zero() -> None:
    zero = quantize_nvfp4(torch.zeros(3, 32))
    assert (bits(zero.packed), float(zero.scale)) == ([0] * 48, 1.0)
    assert not quantize_fp8(torch.zeros(3, 32)).decode().any()
    weight = torch.randn(2, 32)
    weight[:, 16:] = 0
    found = quantize_nvfp4(weight)
    assert found.block_scale[:, 1].float().tolist() == [1.0, 1.0]
    assert not found.decode()[:, 16:].any()


def test_tiny_blocks_beside_a_huge_one_are_not_lost_to_nan() -> None:
    weight = torch.full((1, 32), 1e-30)
    weight[0, 0] = 1e5
    decoded = quantize_nvfp4(weight).decode()
    assert decoded.isfinite().all()
    assert decoded[0, 0].item() == pytest.approx(1e5, rel=1e-6)
    subnormal = torch.full((1, 16), 1e-44)
    assert quantize_nvfp4(subnormal).decode().isfinite().all()


@pytest.mark.parametrize(("name", "expected"), [("nvfp4", 0.095), ("fp8", 0.0265)])
def test_error_on_gaussian_weights_is_what_theory_gives(name: str, expected: float) -> None:
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    found = (quantize_nvfp4 if name == "nvfp4" else quantize_fp8)(weight)
    error = (found.decode() - weight).norm() / weight.norm()
    assert float(error) == pytest.approx(expected, rel=0.02)


def test_work_in_chunks_is_work_in_one_piece() -> None:
    weight = torch.randn(3 * CHUNK // 64, 64, generator=torch.Generator().manual_seed(1))
    whole = quantize_nvfp4(weight)
    part = quantize_nvfp4(weight[-5:], scale=whole.scale)
    assert torch.equal(whole.packed[-5:], part.packed)
    assert bits(whole.block_scale[-5:]) == bits(part.block_scale)
    torch.testing.assert_close(whole.decode()[-5:], part.decode(), rtol=0, atol=0)


def test_rows_that_fall_into_no_blocks_are_refused() -> None:
    with pytest.raises(ShapeError, match="multiple of 16"):
        quantize_nvfp4(torch.zeros(8, 4))


@pytest.mark.parametrize("kind", ["normal", "heavy", "steps", "outlier"])
def test_mse_scales_are_the_best_of_all_126(kind: str) -> None:
    weight = (GOLDEN["normal.weight"] if kind == "outlier" else GOLDEN[f"{kind}.weight"]).float()
    if kind == "outlier":
        weight[:, ::16] *= 30
    scale = nvfp4_scale(peak_of(weight))
    found = mse_block_scales(weight, scale=scale)
    every = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    blocks = weight.unflatten(-1, (-1, 16))

    def errors(by: Tensor) -> Tensor:
        by = by.unsqueeze(-1) * scale
        return (round_e2m1(blocks / by) * by - blocks).square().sum(-1)

    best = torch.stack([errors(s.expand(blocks.shape[:-1])) for s in every]).amin(0)
    torch.testing.assert_close(errors(found.float()), best, rtol=1e-5, atol=0)
    by_peak = errors(block_scales(peaks_of_blocks(weight), scale).float())
    assert (errors(found.float()) <= by_peak).all()


def test_fake_values_are_decoded_values() -> None:
    values = torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(2))
    scale = nvfp4_scale(peak_of(values))
    flat = quantize_nvfp4(values.reshape(-1, 32), scale=scale).decode()
    torch.testing.assert_close(fake_nvfp4(values, scale=scale), flat.reshape(values.shape))
    eighth = fp8_scale(peak_of(values))
    expected = quantize_fp8(values.reshape(-1, 32), scale=eighth).decode().reshape(values.shape)
    torch.testing.assert_close(fake_fp8(values, scale=eighth), expected)
    assert fake_nvfp4(values.bfloat16(), scale=scale).dtype == torch.bfloat16
    small = torch.tensor(0.001)
    assert float(fake_fp8(values, scale=small).abs().max()) == pytest.approx(0.448)


def test_gradients_pass_straight_through() -> None:
    values = torch.randn(3, 16, requires_grad=True)
    slope = torch.arange(48.0).reshape(3, 16)
    for fake in (fake_fp8, fake_nvfp4):
        values.grad = None
        (fake(values, scale=torch.tensor(0.01)) * slope).sum().backward()
        assert values.grad is not None
        assert torch.equal(values.grad, slope)
