"""What this machine reaches: bandwidth, product rates and the least time of an operation."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from fretsaw.core.hardware import THIS_MACHINE, Hardware

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
STREAM_BYTES = 256 * 2**20
"""Read by one matrix-vector product: far beyond any cache."""

PRODUCT_SIZE = 1024
SMALL_PASSES = 1000


@dataclass(frozen=True)
class MachineRates:
    """Measured on this machine with the threads that torch uses now.

    Attributes:
        memory_bytes: Installed.
        memory_bytes_per_s: At which a matrix-vector product reads its matrix from memory.
        flops_per_s: Number format -> rate of a large square product.
        operation_s: Least time of an element-wise operation, as called from Python.
        product_s: Least time of a linear layer's product, as called from Python.
        date: Of the measurement, ISO form.
    """

    memory_bytes: int
    memory_bytes_per_s: float
    flops_per_s: dict[str, float]
    operation_s: float
    product_s: float
    date: str

    @property
    def hardware(self) -> Hardware:
        """As hardware that blocks can be priced on."""
        source = f"measured on {self.date} by fretsaw.runtime.machine"
        return Hardware(
            THIS_MACHINE,
            memory_bytes=self.memory_bytes,
            memory_bytes_per_s=self.memory_bytes_per_s,
            flops_per_s=self.flops_per_s,
            families=("cpu",),
            sources={
                "memory_bytes": "the operating system",
                "memory_bytes_per_s": source,
                "flops_per_s": source,
            },
        )


@torch.no_grad()
def measure_machine(*, rounds: int = 9) -> MachineRates:
    """Micro-benchmarks of a few seconds; of each the median over the rounds.

    Args:
        rounds: Timings of each, after one that is unused.
    """
    matrix = torch.ones(STREAM_BYTES // 4 // PRODUCT_SIZE, PRODUCT_SIZE)
    vector = torch.ones(PRODUCT_SIZE)
    read_s = _median_s(lambda: matrix @ vector, rounds=rounds)
    small, weight = torch.ones(1, 8), torch.ones(8, 8)
    return MachineRates(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_bytes_per_s=STREAM_BYTES / read_s,
        flops_per_s={name: _product_rate(dtype, rounds=rounds) for name, dtype in DTYPES.items()},
        operation_s=_least_s(lambda: small.add_(0.0), rounds=rounds),
        product_s=_least_s(lambda: functional.linear(small, weight), rounds=rounds),
        date=time.strftime("%Y-%m-%d"),
    )


def _product_rate(dtype: torch.dtype, *, rounds: int) -> float:
    """FLOP/s of a square product, multiply-adds counting twice."""
    square = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, dtype=dtype)
    return float(2 * PRODUCT_SIZE**3 / _median_s(lambda: square @ square, rounds=rounds))


def _least_s(run: Callable[[], object], *, rounds: int) -> float:
    def many() -> None:
        for _ in range(SMALL_PASSES):
            run()

    return _median_s(many, rounds=rounds) / SMALL_PASSES


def _median_s(run: Callable[[], object], *, rounds: int) -> float:
    run()
    timings = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        timings.append(time.perf_counter() - started)
    return statistics.median(timings)
