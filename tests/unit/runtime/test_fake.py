"""Quantised checkpoints run: dequantised anywhere, and rounded as hardware would round."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import Precision, precision_from, preset
from fretsaw.errors import CheckpointError
from fretsaw.quant.calibrate import Activations
from fretsaw.quant.export import ExportSettings, write_quantized
from fretsaw.quant.formats import fake_fp8, fake_nvfp4
from fretsaw.quant.plan import plan_export
from fretsaw.quant.reader import QuantizedCheckpoint, open_checkpoint
from fretsaw.quant.scales import Method
from fretsaw.runtime.activations import ActivationSettings, measure_activations
from fretsaw.runtime.fake import PlannedRounding, fake_quantized, rounded
from fretsaw.runtime.load import load_model, save_weights
from fretsaw.train.distill import DistillSettings, distill
from fretsaw.train.metrics import evaluate_kl
from tests.pico import write_pico_checkpoint
from tests.views import pico_ids

IDS = pico_ids(3, sequences=4)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("source")
    write_pico_checkpoint(folder, seed=6)
    return Checkpoint(folder)


@pytest.fixture(scope="module")
def activations(source: Checkpoint) -> Activations:
    return measure_activations(source, [IDS], settings=ActivationSettings(min_tokens=1))


def write(
    source: Checkpoint,
    precision: Precision,
    folder: Path,
    activations: Activations,
    *,
    method: Method = "max",
    planned: PlannedRounding | None = None,
) -> QuantizedCheckpoint:
    folder.mkdir()
    write_quantized(
        source,
        plan_export(source, precision),
        folder=folder,
        activations=activations,
        settings=ExportSettings(method),
        given=planned.given if planned else None,
    )
    found = open_checkpoint(folder)
    assert isinstance(found, QuantizedCheckpoint)
    return found


@torch.no_grad()
def logits(model: torch.nn.Module) -> Tensor:
    found: Tensor = model(IDS).logits.float()
    return found


def divergence(exact: Tensor, found: Tensor) -> float:
    one, two = exact.log_softmax(-1), found.log_softmax(-1)
    return float((one.exp() * (one - two)).sum(-1).mean())


def test_a_dequantised_model_is_the_model_with_rounded_weights(
    source: Checkpoint, activations: Activations, tmp_path: Path
) -> None:
    found = write(source, preset("nvfp4"), tmp_path / "out", activations)
    model = load_model(Checkpoint(found.folder))
    exact = load_model(source)
    name = "layers.1.mixer.experts.3.up_proj.weight"
    assert torch.equal(model.model.layers[1].mixer.experts.up_proj[3], found.read(name))
    same = model.model.layers[2].mixer.q_proj.weight
    assert torch.equal(same, exact.model.layers[2].mixer.q_proj.weight)
    assert 0 < divergence(logits(exact), logits(model)) < 0.5


def test_finer_formats_are_nearer(
    source: Checkpoint, activations: Activations, tmp_path: Path
) -> None:
    exact = logits(load_model(source))
    found = []
    for name in ("fp8", "nvfp4"):
        checkpoint = write(source, preset(name), tmp_path / name, activations)
        dequantised = divergence(exact, logits(load_model(checkpoint)))
        with fake_quantized(checkpoint) as model:
            rounded = divergence(exact, logits(model))
        found.append((dequantised, rounded))
    (fp8, fp8_rounded), (fp4, fp4_rounded) = found
    assert 0 < fp8 < fp8_rounded < fp4 < fp4_rounded < 1


def test_inputs_of_an_expert_are_rounded_by_its_own_scale(
    source: Checkpoint, activations: Activations, tmp_path: Path
) -> None:
    found = write(source, preset("nvfp4"), tmp_path / "out", activations)
    with fake_quantized(found) as model:
        mixer = model.model.layers[1].mixer
        latent = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
        indices = torch.tensor([[2, 0]]).repeat(5, 1)
        weights = torch.tensor([[0.75, 0.25]]).repeat(5, 1)
        output = mixer.experts(latent, indices, weights)
    expected = torch.zeros(5, 16)
    for expert, weight in ((2, 0.75), (0, 0.25)):
        up, down = (f"layers.1.mixer.experts.{expert}.{p}_proj.weight" for p in ("up", "down"))
        scales = [found.input_scale(name) for name in (up, down)]
        assert scales[0] is not None
        assert scales[1] is not None
        inner = functional.linear(fake_nvfp4(latent, scale=scales[0]), found.read(up))
        inner = functional.relu(inner).square()
        inner = functional.linear(fake_nvfp4(inner, scale=scales[1]), found.read(down))
        expected += weight * inner
    torch.testing.assert_close(output, expected)


def test_keys_and_values_are_rounded(
    source: Checkpoint, activations: Activations, tmp_path: Path
) -> None:
    found = write(source, preset("fp8"), tmp_path / "out", activations)
    plain = load_model(found)
    hidden = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(1))
    for projection in ("k_proj", "v_proj"):
        exact = plain.model.layers[2].mixer.get_submodule(projection)(hidden)
        scale = found.cache_scale(f"layers.2.mixer.{projection}.{projection[0]}_scale")
        with fake_quantized(found) as model:
            rounded = model.model.layers[2].mixer.get_submodule(projection)(hidden)
        torch.testing.assert_close(rounded, fake_fp8(exact, scale=scale))
        assert not torch.equal(rounded, exact)


def test_weight_only_reads_inputs_as_they_are(
    source: Checkpoint, activations: Activations, tmp_path: Path
) -> None:
    precision = precision_from({"experts": "nvfp4", "weight_only": ["experts"], "kv": "bf16"})
    found = write(source, precision, tmp_path / "out", activations)
    with fake_quantized(found) as model:
        torch.testing.assert_close(logits(model), logits(load_model(found)), rtol=1e-4, atol=1e-4)


def test_a_head_in_fp8_reads_rounded_inputs(
    source: Checkpoint, activations: Activations, tmp_path: Path
) -> None:
    found = write(
        source, precision_from({"head": "fp8", "kv": "bf16"}), tmp_path / "o", activations
    )
    plain = load_model(found)
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    scale = found.input_scale("lm_head.weight")
    assert scale is not None
    with fake_quantized(found) as model:
        expected = plain.lm_head(fake_fp8(hidden, scale=scale))
        torch.testing.assert_close(model.lm_head(hidden), expected)


def test_a_plain_checkpoint_has_nothing_to_round(source: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="not quantised"), fake_quantized(source):
        pass


@pytest.mark.parametrize("method", ["max", "mse", "lsq"])
def test_a_learning_model_computes_what_its_checkpoint_will(
    source: Checkpoint, activations: Activations, tmp_path: Path, method: Method
) -> None:
    """To the bit, also where scales were moved: what is written is what was learned under."""
    own = precision_from({"experts": "nvfp4", "attention": "nvfp4", "mamba_projection": "fp8"})
    for precision in (preset("fp8"), preset("nvfp4-w4a16"), own):
        model = load_model(source)
        planned = PlannedRounding(
            model, source.shape, precision=precision, activations=activations, method=method
        )
        generator = torch.Generator().manual_seed(0)
        for parameter in planned.parameters():
            torch.nn.init.normal_(parameter, std=0.02, generator=generator)
        found = write(
            source,
            precision,
            tmp_path / precision.name,
            activations,
            method=method,
            planned=planned,
        )
        with (
            fake_quantized(found) as expected,
            rounded(model, source.shape, roundings=planned.roundings),
        ):
            assert torch.equal(logits(model), logits(expected))


def test_healing_around_rounded_weights_brings_back_what_rounding_cost(
    source: Checkpoint, activations: Activations, tmp_path: Path
) -> None:
    """The student learns under rounding, and the checkpoint that is made of it keeps the gain."""
    teacher, student = load_model(source), load_model(source)
    planned = PlannedRounding(
        student, source.shape, precision=preset("nvfp4"), activations=activations
    )
    settings = DistillSettings(
        tokens=16 * 16 * 40, sequence_length=40, batch_size=16, learning_rate=3e-4, evaluations=4
    )
    with rounded(student, source.shape, roundings=planned.roundings):
        result = distill(
            student,
            teacher,
            train_ids=pico_ids(8, sequences=256),
            validation_ids=IDS,
            settings=settings,
            folder=tmp_path / "healing",
            seed=0,
        )
    assert result.after.kl < 0.9 * result.before.kl
    shutil.copytree(source.folder, tmp_path / "healed")
    (tmp_path / "healed" / "model.safetensors").unlink()
    save_weights(student, source, folder=tmp_path / "healed")
    healed = write(Checkpoint(tmp_path / "healed"), preset("nvfp4"), tmp_path / "out", activations)
    with fake_quantized(healed) as model:
        kl = evaluate_kl(model, teacher, ids=IDS, batch_size=4).kl
    assert kl == pytest.approx(result.after.kl, rel=0.05)
    state = student.state_dict()
    assert all("forward" not in name for name in state)
    for parameter in (student.model.layers[1].mixer.experts.up_proj, student.lm_head.weight):
        assert parameter.requires_grad
