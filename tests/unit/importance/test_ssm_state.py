"""State-channel sums against a scan per channel, head by head, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fretsaw.importance import ssm_state
from fretsaw.importance.ssm_state import ScanInputs, state_sums

SEQUENCES, TOKENS, HEADS, DIM, GROUPS, STATE = 2, 2 * ssm_state.CHUNK + 3, 4, 3, 2, 5


def make_scan(seed: int) -> ScanInputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return ScanInputs(
        x=normal(SEQUENCES, TOKENS, HEADS, DIM),
        dt=normal(SEQUENCES, TOKENS, HEADS).exp(),
        a=-normal(HEADS).exp(),
        b=normal(SEQUENCES, TOKENS, GROUPS, STATE),
        c=normal(SEQUENCES, TOKENS, GROUPS, STATE),
        d=normal(HEADS),
        gate=normal(SEQUENCES, TOKENS, HEADS, DIM),
    )


def brute_force(scan: ScanInputs) -> Tensor:
    total = torch.zeros(GROUPS, STATE, dtype=torch.float64)
    for s in range(SEQUENCES):
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            for n in range(STATE):
                h = torch.zeros(DIM, dtype=torch.float64)
                for t in range(TOKENS):
                    dt = scan.dt[s, t, head].double()
                    h = h * torch.exp(dt * scan.a[head].double())
                    h = h + dt * scan.b[s, t, group, n] * scan.x[s, t, head]
                    y = scan.c[s, t, group, n] * h * scan.gate[s, t, head]
                    total[group, n] += y.abs().sum()
    return total


@pytest.mark.parametrize("heads_at_a_time", [1, 3, 8])
def test_equals_a_scan_per_channel(heads_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssm_state, "TILE", heads_at_a_time * ssm_state.CHUNK * DIM * STATE)
    scan = make_scan(0)
    sums = state_sums(scan)
    torch.testing.assert_close(sums.total, brute_force(scan), rtol=1e-5, atol=0)
    assert sums.count.tolist() == [SEQUENCES * TOKENS * (HEADS // GROUPS) * DIM] * GROUPS


def test_a_channel_that_is_never_read_has_no_importance() -> None:
    scan = make_scan(1)
    scan.c[:, :, 1, 3] = 0
    mean = state_sums(scan).mean()
    assert mean[1, 3] == 0
    assert (mean > 0).sum() == GROUPS * STATE - 1
