"""Quantised export: reports R47-R59 and R63, every format and layout, bytes as planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from fretsaw.checkpoint.header import read_header
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import LINEAR, Precision, kind_of, precision_from, preset
from fretsaw.errors import CheckpointError, DataError, RecipeError, ShapeError
from fretsaw.families.quantised import LAYOUTS, LayoutName, is_match, module_of
from fretsaw.pricing.memory import mtp_bytes, stored_bytes
from fretsaw.quant.calibrate import Activations
from fretsaw.quant.export import ExportSettings, write_quantized
from fretsaw.quant.formats import Nvfp4, fp8_scale, nvfp4_scale, peak_of
from fretsaw.quant.plan import plan_export
from fretsaw.quant.reader import QuantizedCheckpoint, open_checkpoint
from tests.pico import write_pico_checkpoint

PRECISIONS = {name: preset(name) for name in ("fp8", "nvfp4", "nvfp4-w4a16")} | {
    "all": Precision("all", {k: "nvfp4" for k in LINEAR if k != "mlp"}),
    "attention": Precision("attention", {"attention": "fp8", "experts": "nvfp4"}, kv="bf16"),
}


class Written(NamedTuple):
    source: Checkpoint
    found: QuantizedCheckpoint
    precision: Precision
    layout: LayoutName


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("source")
    write_pico_checkpoint(folder, seed=3, num_shards=2)
    return Checkpoint(folder)


def all_peaks(source: Checkpoint, value: float = 3.0) -> Activations:
    """Maxima of every input, as if calibration had seen them."""
    names = (name for row in source.rows for name, _ in row.names())
    cache = {f"layers.2.mixer.{p}_proj.{p}_scale": 2.0 for p in "kv"}
    return Activations(dict.fromkeys(names, value), cache, {}, 1)


def write(
    source: Checkpoint, precision: Precision, folder: Path, **options: Any
) -> QuantizedCheckpoint:
    layout: LayoutName = options.pop("layout", "modelopt")
    folder.mkdir()
    write_quantized(
        source,
        plan_export(source, precision, layout=layout),
        folder=folder,
        activations=options.pop("activations", all_peaks(source)),
        settings=ExportSettings(**options),
    )
    found = open_checkpoint(folder)
    assert isinstance(found, QuantizedCheckpoint)
    return found


@pytest.fixture(scope="module", params=[(n, l) for n in PRECISIONS for l in LAYOUTS], ids="-".join)
def written(
    request: pytest.FixtureRequest, source: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Written:
    name, layout = request.param
    folder = tmp_path_factory.mktemp("written") / "out"
    found = write(source, PRECISIONS[name], folder, layout=layout)
    return Written(source, found, PRECISIONS[name], layout)


def test_config_and_files_agree_both_ways(written: Written) -> None:
    """R47, R49, R52: dtypes are those of the plan, the config says so, and nothing else."""
    written.found.check()
    written.found.check_ignored()
    headers: dict[str, Any] = {}
    for file in written.found.folder.glob("*.safetensors"):
        headers |= read_header(file)
    plan = plan_export(written.source, written.precision, layout=written.layout)
    assert {k: (e["dtype"], tuple(e["shape"])) for k, e in headers.items()} == {
        p.planned.key: (p.planned.dtype, p.planned.shape) for p in plan.pieces
    }
    for name, row in written.found.matrices:
        expected = written.precision.format_of(kind_of(row.tensor, part=row.part))
        assert written.found.formats.get(name, "bf16") == expected


def test_the_list_of_ignored_modules_is_exact(written: Written) -> None:
    """R49, R50: every pattern matches, and what it matches is in 16 bits or more."""
    said = written.found.said
    modules = {
        module_of(place.key): place
        for name, place in written.found.stored.items()
        if len(place.shape) > 1 and place.dtype in ("BF16", "F32")
    }
    for pattern in said.ignore:
        assert any(is_match(pattern, module) for module in modules), pattern
    assert all(said.ignores(module) for module in modules)
    quantised = [written.found.module(name) for name in written.found.formats]
    assert not any(said.ignores(module) for module in quantised)
    exact = [p for p in said.ignore if "*" not in p]
    assert not [(p, m) for p in exact for m in quantised if p in m], "vLLM looks for substrings"
    kept = ("conv1d", "gate", "embeddings")
    assert all(any(p.endswith(k) for p in said.ignore) for k in kept)


def test_what_must_not_change_is_the_same_to_the_bit(written: Written) -> None:
    """R50, R63: router, convolution, A, D, time steps, norms and prediction head."""
    for row in written.source.rows:
        if kind_of(row.tensor, part=row.part) in LINEAR:
            continue
        for name, _ in row.names():
            assert written.found.dtype_of(name) == written.source.dtype_of(name)
            assert torch.equal(written.found.read(name), written.source.read(name)), name
    mtp = [n for n in written.found.stored if n.startswith("mtp.")]
    assert len(mtp) == sum(n.startswith("mtp.") for n in written.source.stored) > 0
    assert all(written.found.said.ignores(module_of(n)) for n in mtp if n.endswith("weight"))


def test_dequantised_weights_are_near(written: Written) -> None:
    """R58: with both levels of scales the error is that of the format."""
    limits = {"nvfp4": 0.11, "fp8": 0.03}
    for name, number_format in written.found.formats.items():
        exact = written.source.read(name).float()
        error = (written.found.read(name) - exact).norm() / exact.norm()
        assert float(error) < limits[number_format], name


def test_every_scale_is_a_positive_number(written: Written) -> None:
    """R45, R48."""
    for name in written.found.formats:
        scale = written.found.input_scale(name)
        if written.found.algorithm(name) == "W4A16_NVFP4":
            assert scale is None
        else:
            assert scale is not None
            rule = fp8_scale if written.found.formats[name] == "fp8" else nvfp4_scale
            assert float(scale) == pytest.approx(float(rule(torch.tensor(3.0))), rel=1e-6)
    keys = [n for n in written.found.stored if n.endswith(("k_scale", "v_scale"))]
    assert len(keys) == (0 if written.precision.kv == "bf16" else 2)
    assert all(float(written.found.cache_scale(n)) == pytest.approx(2 / 448) for n in keys)


def test_an_independent_reader_understands_the_file(source: Checkpoint, tmp_path: Path) -> None:
    """R58: by the published rule alone, without fretsaw's decoder."""
    found = write(source, preset("nvfp4"), tmp_path / "out")
    raw: dict[str, torch.Tensor] = {}
    for file in found.folder.glob("*.safetensors"):
        raw |= load_file(file)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    module = "backbone.layers.1.mixer.experts.2.down_proj"
    packed = raw[f"{module}.weight"]
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    values = grid[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)
    block = raw[f"{module}.weight_scale"].float().repeat_interleave(16, dim=1)
    values = values * block * raw[f"{module}.weight_scale_2"]
    exact = source.read("layers.1.mixer.experts.2.down_proj.weight").float()
    assert float((values - exact).norm() / exact.norm()) < 0.11
    scale = raw["backbone.layers.0.mixer.in_proj.weight_scale"]
    eighth = raw["backbone.layers.0.mixer.in_proj.weight"].float() * scale
    exact = source.read("layers.0.mixer.in_proj.weight").float()
    assert float((eighth - exact).norm() / exact.norm()) < 0.03


def test_fused_weights_share_a_scale(source: Checkpoint, tmp_path: Path) -> None:
    found = write(source, PRECISIONS["all"], tmp_path / "out")
    names = [f"layers.2.mixer.{p}_proj.weight" for p in "qkvo"]
    scales = [float(found._scale(name, "scale")) for name in names]
    assert scales[0] == scales[1] == scales[2] != scales[3]
    largest = max(float(peak_of(source.read(name))) for name in names[:3])
    assert scales[0] == pytest.approx(largest / (6 * 448))
    up = [f"layers.1.mixer.experts.{e}.up_proj.weight" for e in range(4)]
    assert len({float(found._scale(name, "scale")) for name in up}) == 4


def test_least_error_is_no_worse_anywhere(source: Checkpoint, tmp_path: Path) -> None:
    by_max = write(source, preset("nvfp4"), tmp_path / "max")
    by_mse = write(source, preset("nvfp4"), tmp_path / "mse", method="mse")
    ratios = []
    for name, number_format in by_max.formats.items():
        exact = source.read(name).float()
        errors = [float((f.read(name) - exact).square().sum()) for f in (by_mse, by_max)]
        if number_format == "nvfp4":
            ratios.append(errors[0] / errors[1])
    assert max(ratios) <= 1.0
    assert sum(ratios) / len(ratios) < 0.9


@pytest.mark.parametrize("name", ["fp8", "nvfp4", "nvfp4-w4a16"])
def test_bytes_are_what_the_policy_predicts(source: Checkpoint, tmp_path: Path, name: str) -> None:
    """To the byte; per weight, 4 for its scale, 4 for its inputs', which costs leave out."""
    halved = _with_16_bit_state(source, tmp_path / "halved")
    precision = preset(name)
    plan = plan_export(halved, precision)
    found = write(halved, precision, tmp_path / "out")
    predicted = sum(stored_bytes(row, precision) for row in halved.rows if row.part != "mtp")
    predicted += mtp_bytes(halved.shape)
    scalars = 4 * sum(p.part in ("scale", "input_scale", "cache_scale") for p in plan.pieces)
    assert plan.num_bytes == predicted + scalars
    data = 0
    for file in found.folder.glob("*.safetensors"):
        header = int.from_bytes(file.read_bytes()[:8], "little")
        data += file.stat().st_size - 8 - header
    assert data == plan.num_bytes
    index = json.loads((found.folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == plan.num_bytes


def _with_16_bit_state(source: Checkpoint, folder: Path) -> Checkpoint:
    """A, D and time steps in bf16, as published checkpoints have them."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(source.config))
    tensors = {}
    for name, place in source.stored.items():
        kept = place.dtype == "F32" and name.endswith("bias") and "gate" in name
        tensors[place.key] = source.read(name) if kept else source.read(name).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint(folder)


def test_fused_experts_are_read_one_by_one(source: Checkpoint, tmp_path: Path) -> None:
    """R47, R55: experts in one three-dimensional tensor, without gates."""
    fused: dict[str, torch.Tensor] = {}
    for name, place in source.stored.items():
        if ".experts." not in name or name.startswith("mtp."):
            fused[place.key] = source.read(name)
    for block in (1, 3):
        for projection in ("up_proj", "down_proj"):
            names = [f"layers.{block}.mixer.experts.{e}.{projection}.weight" for e in range(4)]
            stacked = torch.stack([source.read(name) for name in names])
            fused[f"backbone.layers.{block}.mixer.experts.{projection}"] = stacked
    (tmp_path / "fused").mkdir()
    (tmp_path / "fused" / "config.json").write_text(json.dumps(source.config))
    save_file(fused, tmp_path / "fused" / "model.safetensors")
    left = write(Checkpoint(tmp_path / "fused"), preset("nvfp4"), tmp_path / "left")
    right = write(source, preset("nvfp4"), tmp_path / "right")
    assert left.formats == right.formats
    assert left.said == right.said
    assert all(torch.equal(left.read(name), right.read(name)) for name in left.formats)


def test_a_width_that_falls_into_no_blocks_is_refused_before_a_weight_is_read(
    tmp_path: Path,
) -> None:
    write_pico_checkpoint(tmp_path / "odd", seed=0, moe_intermediate_size=24)
    with pytest.raises(ShapeError, match=r"experts\.\{expert\}\.down_proj.*multiple of 16"):
        plan_export(Checkpoint(tmp_path / "odd"), preset("nvfp4"))


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        (preset("bf16"), "quantises nothing"),
        (preset("mxfp4"), "writes no mxfp4"),
        (precision_from({"mlp": "fp8"}), "the model has none"),
        (precision_from({"experts": "fp8", "weight_only": ["experts"]}), "weight-only in fp8"),
    ],
)
def test_what_is_not_written_is_refused(
    source: Checkpoint, precision: Precision, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        plan_export(source, precision)


def test_missing_calibration_is_refused(source: Checkpoint, tmp_path: Path) -> None:
    """R45: an expert without a scale never reaches a file."""
    activations = all_peaks(source)
    some = {k: v for k, v in activations.inputs.items() if "experts.3.up" not in k}
    for broken in (None, Activations(some, {}, {}, 1)):
        with pytest.raises(DataError, match="inputs of unknown size"):
            write(source, preset("nvfp4"), tmp_path / f"o{broken is None}", activations=broken)


def test_weight_only_needs_no_text(source: Checkpoint, tmp_path: Path) -> None:
    precision = precision_from({"experts": "nvfp4", "weight_only": ["experts"]})
    found = write(source, precision, tmp_path / "out", activations=None)
    found.check()
    assert not [name for name in found.stored if name.endswith("input_scale")]


def test_f14_f15_papers_travel_and_the_config_says_what_is_stored(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    write_pico_checkpoint(parent, seed=1)
    (file,) = parent.glob("*.safetensors")
    save_file({name: tensor.float() for name, tensor in load_file(file).items()}, file)
    for name in ("NOTICE.md", "chat_template.jinja"):
        (parent / name).write_text("x")
    precision = precision_from({"experts": "nvfp4", "weight_only": ["experts"]})
    found = write(Checkpoint(parent), precision, tmp_path / "out", activations=None)
    assert found.config["dtype"] == "float32"
    assert (tmp_path / "out" / "NOTICE.md").is_file()
    assert (tmp_path / "out" / "chat_template.jinja").is_file()


def test_weights_that_are_not_finite_are_refused(
    source: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Checkpoint(source.folder)
    read = broken.read
    name = "layers.3.mixer.experts.1.up_proj.weight"
    monkeypatch.setattr(broken, "read", lambda n: read(n) * torch.nan if n == name else read(n))
    with pytest.raises(CheckpointError, match=rf"{name} has values that are not finite"):
        write(broken, preset("nvfp4"), tmp_path / "out")


def test_one_group_is_held_at_a_time(
    source: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R59: peak memory is a fused group, not a model."""
    counting = Checkpoint(source.folder)
    read = counting.read
    names: list[str] = []

    def counted(name: str) -> torch.Tensor:
        names.append(name)
        return read(name)

    monkeypatch.setattr(counting, "read", counted)
    write(counting, PRECISIONS["all"], tmp_path / "out")
    assert len(names) == len(set(names)) == len(source.stored), "each tensor is read once"
    places = [names.index(f"layers.2.mixer.{p}_proj.weight") for p in "qkv"]
    assert places == list(range(places[0], places[0] + 3))


def test_a_tied_head_gets_its_own(tmp_path: Path) -> None:
    """transformers ties no nemotron_h: without a head it would make one up."""
    write_pico_checkpoint(tmp_path / "tied", seed=1, tie_word_embeddings=True)
    (file,) = (tmp_path / "tied").glob("*.safetensors")
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file(tensors, file)
    tied = Checkpoint(tmp_path / "tied")
    tied.check()
    found = write(tied, preset("nvfp4"), tmp_path / "out")
    found.check()
    found.check_ignored()
    assert not found.config["tie_word_embeddings"]
    assert torch.equal(found.read("lm_head.weight"), tied.read("embeddings.weight"))


def test_decoding_in_rows(source: Checkpoint) -> None:
    packed = torch.zeros(3, 8, dtype=torch.uint8)
    block = torch.ones(3, 1).to(torch.float8_e4m3fn)
    assert Nvfp4(packed, block, torch.tensor(1.0)).decode().shape == (3, 16)
