"""This machine as hardware: no figure is asserted but what holds on any machine."""

from __future__ import annotations

import pytest
import torch

from fretsaw.core.hardware import THIS_MACHINE
from fretsaw.runtime import machine
from fretsaw.runtime.machine import MachineRates, measure_machine

RATES = MachineRates(2**34, 1e10, {"fp32": 1e11}, 1e-6, 2e-6, "2026-12-01")


def test_rates_as_hardware_with_their_sources() -> None:
    hardware = RATES.hardware
    assert hardware.name == THIS_MACHINE
    assert hardware.memory_bytes_per_s == 1e10
    assert hardware.rate("fp32") == 1e11
    assert "2026-12-01" in hardware.sources["memory_bytes_per_s"]


def test_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_median_s", lambda run, rounds: (run(), 0.5)[1])
    monkeypatch.setattr(machine, "STREAM_BYTES", 2**20)
    monkeypatch.setattr(machine, "PRODUCT_SIZE", 16)
    rates = measure_machine(rounds=2)
    assert rates.memory_bytes_per_s == 2**21
    assert rates.flops_per_s == {"fp32": 2 * 16**3 / 0.5, "bf16": 2 * 16**3 / 0.5}
    assert rates.operation_s == rates.product_s == 0.5 / 1000
    assert rates.memory_bytes > 2**28


def test_torch_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "STREAM_BYTES", 2**16)
    monkeypatch.setattr(machine, "PRODUCT_SIZE", 16)
    monkeypatch.setattr(machine, "SMALL_PASSES", 2)
    threads = torch.get_num_threads()
    rates = measure_machine(rounds=2)
    assert torch.get_num_threads() == threads
    assert min(rates.memory_bytes_per_s, *rates.flops_per_s.values(), rates.product_s) > 0
