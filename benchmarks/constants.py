"""What the measured tables say of the roofline's constants: shares of data-sheet rates.

    python benchmarks/constants.py

Weight-bound products (1 and 16 tokens) against bandwidth, large products (8,192 tokens) against the
dense rate, all-reduces of 16 and 64 MB against the links, and all-reduces of one token in us.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from fretsaw.core.hardware import hardware_named
from fretsaw.pricing.kernels import Kernel, all_reduce, gemm
from fretsaw.pricing.lookup import KernelTables, TableTimer, backends, load_tables
from fretsaw.pricing.provider import TABLES
from fretsaw.pricing.roofline import RooflineTimer

SIZES = ((16384, 8192), (8192, 16384), (16384, 16384))
FORMATS = ("bf16", "fp8", "nvfp4")


def products(tokens: tuple[int, ...], formats: tuple[str, ...]) -> Iterator[Kernel]:
    """Large dense products."""
    for fmt in formats:
        for outputs, inputs in SIZES:
            for count in tokens:
                yield gemm(count, outputs=outputs, inputs=inputs, fmt=fmt, group="")


def measured(tables: KernelTables, kernels: Iterator[Kernel]) -> Iterator[tuple[Kernel, float]]:
    """Kernels that the tables have, with their seconds."""
    timer = TableTimer(tables, fallback=RooflineTimer(hardware_named("H100")))
    for kernel in kernels:
        timing = timer.time(kernel)
        if timing.provider == "table":
            yield kernel, timing.seconds


def spread(values: list[float]) -> str:
    """Least, median and largest."""
    if not values:
        return "-"
    return f"{min(values):.2f} {statistics.median(values):.2f} {max(values):.2f}"


def main() -> None:
    """Print a line per hardware and engine."""
    print(
        "hardware engine | bandwidth | dense rate | links | one token, us  (least median largest)"
    )
    for name, folder in TABLES.items():
        hardware = hardware_named(name)
        formats = tuple(f for f in FORMATS if f in hardware.flops_per_s)
        for backend in backends(folder):
            tables = load_tables(folder, backend=backend)
            few = measured(tables, products((1, 16), formats))
            many = measured(tables, products((8192,), formats))
            sums = (k for g in (2, 4, 8) for n in (2048, 8192) for k in all_reduce(n, 4096, gpus=g))
            small = (k for g in (2, 4, 8) for k in all_reduce(1, 4096, gpus=g))
            ways = [
                spread([k.bytes / s / hardware.memory_bytes_per_s for k, s in few]),
                spread([k.flops / s / hardware.rate(k.number_format) for k, s in many]),
                spread(
                    [
                        2
                        * (1 - 1 / k.sizes["gpus"])
                        * k.sizes["bytes"]
                        / s
                        / hardware.link_bytes_per_s
                        for k, s in measured(tables, sums)
                    ]
                ),
                spread([s * 1e6 for _, s in measured(tables, small)]),
            ]
            print(f"{name:6} {backend:7} | {' | '.join(ways)}")


if __name__ == "__main__":
    main()
