"""The lean scan against transformers' reference, against its recurrence, and inside a mixer."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, NemotronHConfig, NemotronHForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import (
    NemotronHMamba2Mixer,
    mamba2_chunk_scan,
)

from fretsaw.runtime.scan import FastMamba2Mixer, causal_conv, chunk_scan, use_fast_scan

UNBOUNDED = (0.0, float("inf"))


def make_inputs(
    *, time: int, num_heads: int, num_groups: int, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(time + num_heads)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    return {
        "x": normal(2, time, num_heads, 8),
        "dt": normal(2, time, num_heads),
        "A": (-torch.arange(1, num_heads + 1).to(dtype)).requires_grad_(),
        "B": normal(2, time, num_groups, 16),
        "C": normal(2, time, num_groups, 16),
        "D": normal(num_heads),
        "dt_bias": (normal(num_heads).detach() - 2).requires_grad_(),
    }


def run_reference(
    inputs: dict[str, Any],
    *,
    chunk_size: int,
    dt_limit: tuple[float, float] = UNBOUNDED,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = mamba2_chunk_scan(
        inputs["x"],
        inputs["dt"],
        inputs["A"],
        inputs["B"],
        inputs["C"],
        chunk_size=chunk_size,
        D=inputs["D"],
        dt_bias=inputs["dt_bias"],
        initial_states=initial_state,
        dt_softplus=True,
        dt_limit=dt_limit,
        return_final_states=True,
    )
    return found


@pytest.mark.parametrize("dt_limit", [UNBOUNDED, (0.05, 0.5)])
@pytest.mark.parametrize(
    ("time", "num_heads", "num_groups", "chunk_size"),
    [(64, 4, 2, 16), (50, 4, 4, 16), (7, 6, 1, 32), (1, 2, 1, 8), (33, 2, 2, 1)],
)
def test_values_and_gradients_equal_the_reference(
    time: int, num_heads: int, num_groups: int, chunk_size: int, dt_limit: tuple[float, float]
) -> None:
    inputs = make_inputs(time=time, num_heads=num_heads, num_groups=num_groups)
    initial = torch.randn(2, num_heads, 8, 16, generator=torch.Generator().manual_seed(1))
    wanted = run_reference(inputs, chunk_size=chunk_size, dt_limit=dt_limit, initial_state=initial)
    found = chunk_scan(**inputs, chunk_size=chunk_size, dt_limit=dt_limit, initial_state=initial)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    def gradients(outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        loss = outputs[0].square().sum() + outputs[1].square().sum()
        return torch.autograd.grad(loss, list(inputs.values()))

    for ours, theirs in zip(gradients(found), gradients(wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())


def test_equals_the_recurrence_step_by_step() -> None:
    inputs = make_inputs(time=21, num_heads=4, num_groups=2)
    y, final = chunk_scan(**inputs, chunk_size=8)
    step = torch.nn.functional.softplus(inputs["dt"] + inputs["dt_bias"])
    B, C = (inputs[name].repeat_interleave(2, dim=2) for name in "BC")
    state = torch.zeros(2, 4, 8, 16)
    for t in range(21):
        written = step[:, t, :, None, None] * inputs["x"][:, t, :, :, None] * B[:, t, :, None]
        state = (step[:, t] * inputs["A"]).exp()[..., None, None] * state + written
        wanted = (state * C[:, t, :, None]).sum(-1) + inputs["D"][:, None] * inputs["x"][:, t]
        torch.testing.assert_close(y[:, t], wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(final, state, rtol=1e-5, atol=1e-5)


def test_state_carries_over_a_cut() -> None:
    inputs = make_inputs(time=40, num_heads=4, num_groups=2)
    weights = {name: inputs[name] for name in ("A", "D", "dt_bias")}
    whole, final = chunk_scan(**inputs, chunk_size=16)
    parts, state = [], None
    for times in (slice(0, 13), slice(13, 40)):
        part = {name: inputs[name][:, times] for name in ("x", "dt", "B", "C")}
        y, state = chunk_scan(**part, **weights, chunk_size=16, initial_state=state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, final, rtol=1e-5, atol=1e-5)


def test_convolution_equals_the_padded_one() -> None:
    conv = torch.nn.Conv1d(6, 6, kernel_size=4, groups=6, padding=3)
    x = torch.randn(2, 9, 6)
    wanted = conv(x.transpose(1, 2))[..., :9].transpose(1, 2)
    found = causal_conv(x, conv.weight.squeeze(1), bias=conv.bias)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def make_model() -> NemotronHForCausalLM:
    torch.manual_seed(0)
    config = NemotronHConfig(
        vocab_size=64,
        hidden_size=32,
        layers_block_type=["mamba", "attention", "mamba"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        mamba_num_heads=4,
        mamba_head_dim=8,
        n_groups=2,
        ssm_state_size=16,
        chunk_size=16,
    )
    model: NemotronHForCausalLM = NemotronHForCausalLM(config).eval()
    return model


def test_a_model_gives_the_same_logits_and_only_its_mixers_change() -> None:
    model = make_model()
    ids = torch.randint(64, (2, 37), generator=torch.Generator().manual_seed(0))
    wanted = model(ids, use_cache=False).logits
    assert use_fast_scan(model) == 2
    assert use_fast_scan(model) == 0
    assert type(make_model().model.layers[0].mixer) is NemotronHMamba2Mixer
    assert type(model.model.layers[0].mixer) is FastMamba2Mixer
    torch.testing.assert_close(model(ids, use_cache=False).logits, wanted, rtol=1e-5, atol=1e-5)


def test_with_a_cache_or_padding_a_model_computes_as_before() -> None:
    model, reference = make_model(), make_model()
    use_fast_scan(model)
    ids = torch.randint(3, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.no_grad():
        padded = [each(ids, attention_mask=mask).logits for each in (model, reference)]
        torch.testing.assert_close(padded[0], padded[1])
        caches = [DynamicCache(config=each.config) for each in (model, reference)]
        for times in (slice(0, 11), slice(11, 12)):
            cached = [
                each(ids[:, times], cache=cache).logits
                for each, cache in zip((model, reference), caches, strict=True)
            ]
            torch.testing.assert_close(cached[0], cached[1])
