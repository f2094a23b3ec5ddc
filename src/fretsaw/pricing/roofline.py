"""Seconds of a kernel from physics: bytes over bandwidth, FLOPs over rate, and a least duration.

    seconds = max(kernel_s, latency + max(bytes / (bandwidth * eff), flops / (rate * eff)))

Few constants, each with a meaning, per hardware and engine (`fretsaw/data/constants`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fretsaw.core.hardware import Hardware
from fretsaw.pricing.kernels import Kernel, Timing

PROVIDER = "roofline"


@dataclass(frozen=True)
class Constants:
    """What an engine reaches on a hardware.

    Attributes:
        memory_efficiency: Share of the bandwidth that kernels reach.
        compute_efficiency: Share of the dense rate that large products reach.
        state_efficiency: Share of the bandwidth that the recurrence's update reaches.
        scan_efficiency: Share of the dense rate that the chunked scan reaches.
        kernel_s: Least time from one kernel's start to the next one's, in a captured graph.
        experts_s: The same for the kernels around the experts' products: sort, gather, activate,
            scatter.
        pair_s: Of each (token, expert) pair on the way to its expert and back.
        link_efficiency: Share of a link's bandwidth that a collective reaches.
        link_s: Latency of a collective.
        host_s: Of a step outside its kernels: scheduling, sampling, output.
        shared_overlap: Share of the shared experts' time that runs beside the routed ones while
            decoding.
        sequence_s: The same for each sequence of a step.
    """

    memory_efficiency: float = 0.85
    compute_efficiency: float = 0.6
    state_efficiency: float = 0.7
    scan_efficiency: float = 0.2
    kernel_s: float = 2.5e-6
    experts_s: float = 16e-6
    pair_s: float = 5e-9
    link_efficiency: float = 0.6
    link_s: float = 5e-6
    host_s: float = 1e-3
    shared_overlap: float = 0.0
    sequence_s: float = 0.0


@dataclass(frozen=True)
class RooflineTimer:
    """Times kernels on a hardware by its data sheet and an engine's constants."""

    hardware: Hardware
    constants: Constants = Constants()

    def time(self, kernel: Kernel) -> Timing:
        """Seconds of a kernel, and what bounds it."""
        if kernel.operation in {"all_reduce", "all_to_all"}:
            return self._link(kernel)
        c = self.constants
        bandwidth = self.hardware.memory_bytes_per_s
        if kernel.operation == "state_update":
            bandwidth *= c.state_efficiency
        else:
            bandwidth *= c.memory_efficiency
        share = c.scan_efficiency if kernel.operation == "scan" else c.compute_efficiency
        compute_s = kernel.flops / (self.hardware.rate(kernel.computed_in) * share)
        memory_s = kernel.bytes / bandwidth
        seconds = max(memory_s, compute_s)
        bound = "compute" if compute_s > memory_s else kernel.largest_bytes
        least = c.kernel_s * kernel.launches
        if kernel.operation == "experts":
            pairs = kernel.sizes["tokens"] * kernel.sizes["top_k"]
            pairs *= kernel.sizes["expert"] / kernel.sizes["experts"]
            seconds += c.experts_s + c.pair_s * pairs
            bound = bound if seconds < 2 * max(memory_s, compute_s) else "launch"
        if seconds < least:
            return Timing(least, "launch", PROVIDER)
        return Timing(seconds, bound, PROVIDER)

    def _link(self, kernel: Kernel) -> Timing:
        """A ring or tree over the links: each GPU sends 2 (g-1)/g of a sum, (g-1)/g of a swap."""
        gpus = kernel.sizes["gpus"]
        ways = 2.0 if kernel.operation == "all_reduce" else 1.0
        moved = ways * (gpus - 1) / gpus * kernel.sizes["bytes"]
        c = self.constants
        rate = self.hardware.link_bytes_per_s * c.link_efficiency
        seconds = c.link_s + (moved / rate if rate else float("inf"))
        return Timing(seconds, "link", PROVIDER)
