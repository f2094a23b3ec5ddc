"""Activation maxima against the model's own forward, and what calibration refuses (R45, R47)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.errors import RunError
from fretsaw.quant.calibrate import Activations
from fretsaw.runtime.activations import ActivationSettings, measure_activations
from fretsaw.runtime.inspect import expert_activations
from fretsaw.runtime.linears import Counts, open_block
from fretsaw.runtime.load import load_model
from tests.pico import write_pico_checkpoint
from tests.views import pico_ids

SOME = ActivationSettings(min_tokens=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pico")
    write_pico_checkpoint(folder, seed=4, heterogeneous=True)
    return folder


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return pico_ids(1, sequences=6)


@pytest.fixture(scope="module")
def found(folder: Path, ids: Tensor) -> Activations:
    return measure_activations(Checkpoint(folder), ids.split(2), settings=SOME)


def test_equal_the_inputs_of_the_whole_model(folder: Path, ids: Tensor, found: Activations) -> None:
    model = load_model(Checkpoint(folder))
    peaks: dict[str, float] = {}

    def hook(name: str) -> None:
        def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            peaks[name] = max(peaks.get(name, 0.0), float(inputs[0].abs().amax()))
            if name.endswith(("k_proj.weight", "v_proj.weight")):
                scale = name.replace("proj.weight", f"proj.{name[-13]}_scale")
                peaks[scale] = max(peaks.get(scale, 0.0), float(output.abs().amax()))

        model.get_submodule(path).register_forward_hook(keep)

    linears = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    for path in linears:
        hook(path.removeprefix("model.") + ".weight")
    with torch.no_grad():
        model(ids)
    plain = {n: p for n, p in (found.inputs | found.cache).items() if ".experts." not in n}
    assert plain.keys() == peaks.keys()
    assert plain == pytest.approx(peaks, rel=1e-4)
    assert found.num_tokens == ids.numel()


def test_every_expert_has_its_own(folder: Path, ids: Tensor, found: Activations) -> None:
    model = load_model(Checkpoint(folder))
    layer = model.model.layers[1]
    seen: list[Tensor] = []
    layer.mixer.register_forward_hook(lambda m, inputs, _: seen.append(inputs[0]))
    with torch.no_grad():
        model(ids)
        for expert in expert_activations(layer.mixer, seen[0]):
            name = f"layers.1.mixer.experts.{expert.expert}.down_proj.weight"
            peak = float(expert.activations.abs().amax())
            assert found.inputs[name] == pytest.approx(peak, rel=1e-4)
            assert found.tokens[1][expert.expert] == len(expert.rows)
    assert sum(found.tokens[3]) == ids.numel() * 2


def test_experts_that_no_token_reached_are_listed_and_have_scales(folder: Path) -> None:
    """R45: four tokens cannot reach every expert of top-1 routing."""
    ids = pico_ids(0, sequences=1, tokens=2)
    found = measure_activations(Checkpoint(folder), [ids], settings=SOME)
    idle = [e for e, n in enumerate(found.tokens[1]) if n == 0]
    assert len(idle) >= 2
    assert found.borrowed[1] == idle
    peaks = [found.inputs[f"layers.1.mixer.experts.{e}.up_proj.weight"] for e in range(4)]
    assert all(p > 0 for p in peaks)
    used = max(p for e, p in enumerate(peaks) if e not in idle)
    assert all(peaks[e] == used for e in idle)


def test_a_percentile_is_at_most_the_largest(folder: Path, ids: Tensor, found: Activations) -> None:
    settings = ActivationSettings(min_tokens=1, percentile=99.0)
    cut = measure_activations(Checkpoint(folder), ids.split(2), settings=settings)
    assert all(cut.inputs[n] <= p for n, p in found.inputs.items() if ".experts." not in n)
    assert (
        cut.inputs["layers.0.mixer.in_proj.weight"] < found.inputs["layers.0.mixer.in_proj.weight"]
    )


def test_an_open_block_computes_the_same(folder: Path, ids: Tensor) -> None:
    def same(_: str, values: Tensor, *, counts: Counts) -> Tensor:
        del counts
        return values

    checkpoint = Checkpoint(folder)
    model = load_model(checkpoint)
    with torch.no_grad():
        expected = model(ids).logits
        opened = [
            open_block(
                layer, block, on_input=lambda weight, x, counts: x, on_cache=lambda name, x: x
            )
            for layer, block in zip(model.model.layers, checkpoint.shape.blocks, strict=True)
        ]
        for one in opened:
            one.__enter__()
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)
        for one in opened:
            one.__exit__(None, None, None)
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=0)


def test_values_that_are_not_finite_name_the_weight(tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path, seed=4, with_mtp=False)
    checkpoint = Checkpoint(tmp_path)
    read = checkpoint.read

    def broken(name: str) -> Tensor:
        weight = read(name)
        return (
            weight * torch.inf if name == "layers.1.mixer.shared_experts.up_proj.weight" else weight
        )

    checkpoint.read = broken  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"shared_experts\.down_proj\.weight multiplies"):
        measure_activations(checkpoint, [pico_ids(0)], settings=SOME)


def test_a_linear_map_that_is_passed_by_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R47: a kernel that bypasses calibration must not look calibrated."""
    from fretsaw.runtime import linears  # noqa: PLC0415

    monkeypatch.setattr(linears, "open_linear", lambda linear, **_: _nothing())
    with pytest.raises(RunError, match=r"saw 0 inputs of layers\.0\.mixer\.in_proj\.weight"):
        measure_activations(Checkpoint(folder), [pico_ids(0)], settings=SOME)


class _nothing:  # noqa: N801
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
