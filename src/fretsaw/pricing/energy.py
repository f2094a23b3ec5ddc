"""Joules: modelled from a data sheet's power, or measured where a machine has a counter.

The two are never mixed: each `Energy` says which it is, and who says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fretsaw.core.hardware import Hardware, Layout
from fretsaw.core.precision import Precision
from fretsaw.core.shape import Block, ModelShape
from fretsaw.errors import RecipeError, RunError
from fretsaw.pricing.blocks import block_kernels, head_kernels
from fretsaw.pricing.kernels import Kernel, Step, Timer, Timing

if TYPE_CHECKING:
    from zeus.monitor import ZeusMonitor

MODEL = "model"
WINDOW = "fretsaw"


@dataclass(frozen=True)
class Energy:
    """What some work takes.

    Attributes:
        joules: In all, of all its GPUs.
        seconds: How long it takes.
        is_measured: Whether a counter was read; modelled otherwise.
        source: ``model``, or what was counted: ``GPU boards``, ``CPU packages and memory``.
    """

    joules: float
    seconds: float
    is_measured: bool
    source: str

    @property
    def watts(self) -> float:
        """Mean power."""
        return self.joules / self.seconds

    def per_token(self, tokens: float) -> float:
        """Joules per token, where the work gave so many."""
        return self.joules / tokens


def modelled_kernel_joules(kernel: Kernel, timing: Timing, *, hardware: Hardware) -> float:
    """Joules of a kernel on one GPU, modelled from the data sheet.

        dynamic = (board_w - idle_w) * (bytes / bandwidth + flops / rate)
        joules  = min(board_w * seconds, idle_w * seconds + dynamic)

    A byte costs what makes the board draw its limit at full bandwidth alone, a FLOP what does so at
    the full rate of its format alone. That is assumed, not measured: real boards stay below their
    limit when memory alone is busy, so decoding comes out too high rather than too low. Bytes on
    links cost nothing but idle power.

    Args:
        kernel: Its bytes and FLOPs.
        timing: Its seconds on this hardware.
        hardware: Board and idle power, bandwidth, dense rates.

    Raises:
        RecipeError: the hardware has no power figures, or no rate for the kernel's format.

    Source: the form, W * e_flop + Q * e_byte + P0 * T, from Choi, Bedard, Fowler, Vuduc, "A
    Roofline Model of Energy", IPDPS 2013; the coefficients from board power: own.
    """
    _need_power(hardware)
    busy_s = kernel.bytes / hardware.memory_bytes_per_s
    if kernel.flops:
        busy_s += kernel.flops / hardware.rate(kernel.computed_in)
    dynamic = (hardware.board_power_w - hardware.idle_power_w) * busy_s
    idle = hardware.idle_power_w * timing.seconds
    return min(hardware.board_power_w * timing.seconds, idle + dynamic)


def _need_power(hardware: Hardware) -> None:
    if not hardware.board_power_w > hardware.idle_power_w > 0:
        raise RecipeError(
            f"{hardware.name}: board power {hardware.board_power_w:g} W and idle power "
            f"{hardware.idle_power_w:g} W give no energy",
            "both have to be known, and the first be larger; or measure on the machine itself",
        )


@dataclass(frozen=True)
class EnergyModel:
    """Models joules of blocks and whole models on one layout: data-sheet power, a timer's seconds.

    Attributes:
        timer: Says how long a kernel takes.
        hardware: Of each GPU.
        layout: How a replica lies on its GPUs; joules are of all of them.
        precision: Number formats.
        host_s: Of each step outside its kernels, at idle power.
    """

    timer: Timer
    hardware: Hardware
    layout: Layout
    precision: Precision
    host_s: float = 0.0

    def block(self, block: Block, *, step: Step) -> Energy:
        """Modelled energy of one residual block; a sum of them and `fixed` is a step's."""
        kernels = block_kernels(block, step=step, layout=self.layout, precision=self.precision)
        return self._of(kernels)

    def fixed(self, shape: ModelShape, *, step: Step) -> Energy:
        """Modelled energy of what is no block: last norm, head, and waiting for the host."""
        kernels = head_kernels(shape, step=step, layout=self.layout, precision=self.precision)
        return self._of(kernels, idle_s=self.host_s)

    def step(self, shape: ModelShape, *, step: Step) -> Energy:
        """Modelled energy of one forward pass of the whole model."""
        parts = [(self.fixed(shape, step=step), 1)]
        parts += [(self.block(block, step=step), count) for block, count in shape.distinct]
        joules = sum(part.joules * count for part, count in parts)
        seconds = sum(part.seconds * count for part, count in parts)
        return Energy(joules, seconds, is_measured=False, source=MODEL)

    def _of(self, kernels: Iterable[Kernel], *, idle_s: float = 0.0) -> Energy:
        _need_power(self.hardware)
        joules, seconds = self.hardware.idle_power_w * idle_s, idle_s
        for kernel in kernels:
            timing = self.timer.time(kernel)
            joules += modelled_kernel_joules(kernel, timing, hardware=self.hardware)
            seconds += timing.seconds
        return Energy(self.layout.gpus * joules, seconds, is_measured=False, source=MODEL)


def measured_energy(
    work: Callable[[], object], *, device: str = "cpu", least_s: float = 2.0
) -> Energy:
    """Energy of some work on this machine, read from its counters by the library zeus.

    What is counted is the whole device, other programs' work and idle power included: CPU packages
    and, where they have a counter, their memory (RAPL), or GPU boards (NVML).

    Args:
        work: Run again and again for `least_s` seconds within one window, because counters move in
            steps of up to 0.1 s.
        device: ``cpu``, ``cuda`` (all visible GPUs) or ``cuda:0``.
        least_s: Seconds to go on for.

    Returns:
        Joules and seconds of one run of the work.

    Raises:
        RunError: the library is not installed, the machine offers no counter that we may read, or
            the counter did not move forward.
    """
    monitor = _monitor(device)
    is_gpu = bool(monitor.gpu_indices)
    runs, started = 0, time.perf_counter()
    monitor.begin_window(WINDOW, sync_execution=is_gpu)
    while not runs or time.perf_counter() - started < least_s:
        work()
        runs += 1
    measured = monitor.end_window(WINDOW, sync_execution=is_gpu)
    readings = (measured.gpu_energy, measured.cpu_energy, measured.dram_energy)
    joules = sum(sum(reading.values()) for reading in readings if reading)
    if not joules > 0:
        raise RunError(
            f"the energy counter of {device} went from one reading to the next by {joules:g} J in "
            f"{measured.time:.3g} s",
            "it moves in steps, and wraps around now and then: measure again, for longer",
        )
    memory = " and memory" if measured.dram_energy else ""
    source = "GPU boards" if is_gpu else f"CPU packages{memory}"
    return Energy(joules / runs, measured.time / runs, is_measured=True, source=source)


def _monitor(device: str) -> ZeusMonitor:
    """A monitor of one kind of device; the library looks after counters that wrap around."""
    try:
        from zeus.monitor import ZeusMonitor  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise RunError(
            "energy cannot be measured: the package zeus is not installed",
            'pip install "fretsaw[energy]"',
        ) from error
    machine = ZeusMonitor()
    if device == "cpu":
        gpus, cpus = [], [i for i in machine.cpu_indices if not _is_whole_system(machine, i)]
    else:
        index = device.partition(":")[2]
        gpus, cpus = [i for i in machine.gpu_indices if index in ("", str(i))], []
    if not gpus and not cpus:
        raise RunError(
            f"this machine offers no energy counter for {device}",
            "a CPU needs a readable /sys/class/powercap (root, or the zeusd service), a GPU its "
            "vendor's driver; without them, joules can be modelled from a data sheet",
        )
    return ZeusMonitor(gpu_indices=gpus, cpu_indices=cpus)


def _is_whole_system(monitor: ZeusMonitor, index: int) -> bool:
    """Whether a RAPL zone is the laptop as a whole, which holds the package once more."""
    zone = getattr(monitor.cpus.cpus[index], "rapl_file", None)
    return getattr(zone, "name", "") == "psys"
