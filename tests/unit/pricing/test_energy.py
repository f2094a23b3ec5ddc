"""Joules by hand, and counters that are faked: what is measured is never mixed with a model."""

import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from fretsaw.core.hardware import Hardware, Layout, hardware_named
from fretsaw.core.precision import preset
from fretsaw.errors import RecipeError, RunError
from fretsaw.pricing.energy import EnergyModel, measured_energy, modelled_kernel_joules
from fretsaw.pricing.kernels import Kernel, Step, Timing, gemm
from tests.shapes import hybrid_shape, published_shape

CARD = Hardware(
    "card",
    10**9,
    1e12,
    {"fp32": 1e13, "bf16": 1e14, "fp8": 2e14},
    board_power_w=500.0,
    idle_power_w=100.0,
)

ONE = Layout()


@dataclass(frozen=True)
class SlowTimer:
    """Each kernel as long as its bytes and FLOPs one after the other, twice."""

    def time(self, kernel: Kernel) -> Timing:
        return Timing(
            2 * (kernel.bytes / 1e12 + kernel.flops / 1e14) or 1e-6, "weights", "roofline"
        )


def joules(kernel: Kernel, seconds: float) -> float:
    return modelled_kernel_joules(kernel, Timing(seconds, "weights", "roofline"), hardware=CARD)


def test_full_bandwidth_and_full_rate_each_draw_the_board_limit() -> None:
    memory = Kernel("stream", "norm", activation_bytes=1e12)
    compute = Kernel("gemm", "MLP", flops=1e14)
    assert joules(memory, 1.0) == pytest.approx(500.0)
    assert joules(compute, 1.0) == pytest.approx(500.0)


def test_half_the_bytes_in_the_same_time_draw_half_of_what_is_above_idle() -> None:
    kernel = Kernel("stream", "norm", activation_bytes=0.5e12)
    assert joules(kernel, 1.0) == pytest.approx(100 + 0.5 * 400)


def test_bytes_and_flops_add_up_to_the_board_limit_and_no_further() -> None:
    half = Kernel("gemm", "MLP", weight_bytes=0.25e12, flops=0.25e14)
    both = Kernel("gemm", "MLP", weight_bytes=1e12, flops=1e14)
    assert joules(half, 1.0) == pytest.approx(100 + 0.5 * 400)
    assert joules(both, 1.0) == pytest.approx(500.0)


def test_a_flop_costs_by_the_rate_of_its_format() -> None:
    kernel = Kernel("gemm", "MLP", flops=1e14, number_format="fp8")
    assert joules(kernel, 1.0) == pytest.approx(100 + 0.5 * 400)


@pytest.mark.parametrize(
    ("operation", "rate"), [("attention", 1e14), ("state_update", 1e13), ("scan", 2e14)]
)
def test_attention_is_computed_in_bf16_and_the_state_in_fp32(operation: str, rate: float) -> None:
    kernel = Kernel(operation, "x", flops=0.5 * rate, number_format="fp8")  # type: ignore[arg-type]
    assert joules(kernel, 1.0) == pytest.approx(100 + 0.5 * 400)


def test_waiting_costs_idle_power_only() -> None:
    assert joules(Kernel("all_reduce", "link"), 2.0) == pytest.approx(200.0)


@pytest.mark.parametrize("powers", [(0.0, 0.0), (500.0, 0.0), (100.0, 100.0)])
def test_hardware_without_power_figures_is_refused(powers: tuple[float, float]) -> None:
    card = replace(CARD, board_power_w=powers[0], idle_power_w=powers[1])
    with pytest.raises(RecipeError, match="give no energy"):
        modelled_kernel_joules(
            gemm(1, outputs=8, inputs=8, fmt="bf16", group="MLP"),
            Timing(1.0, "", ""),
            hardware=card,
        )


def model(layout: Layout = ONE, host_s: float = 0.0) -> EnergyModel:
    return EnergyModel(SlowTimer(), CARD, layout, preset("bf16"), host_s)


def test_a_step_is_the_sum_of_its_blocks_and_what_is_no_block() -> None:
    shape = hybrid_shape("ME*-")
    energy, step = model(host_s=1e-3), Step(4, context=100)
    whole = energy.step(shape, step=step)
    parts = [energy.block(block, step=step) for block in shape.blocks]
    fixed = energy.fixed(shape, step=step)
    assert whole.joules == pytest.approx(sum(p.joules for p in parts) + fixed.joules)
    assert whole.seconds == pytest.approx(sum(p.seconds for p in parts) + fixed.seconds)
    assert fixed.joules > 1e-3 * CARD.idle_power_w
    assert not whole.is_measured
    assert whole.source == "model"
    assert CARD.idle_power_w < whole.watts < CARD.board_power_w
    assert whole.per_token(4) == whole.joules / 4


def test_all_gpus_of_a_replica_are_paid() -> None:
    shape = hybrid_shape("M")
    step = Step(8, context=10)
    waiting = model(Layout(dp=2), host_s=1.0).fixed(shape, step=step)
    assert waiting.joules == pytest.approx(2 * CARD.idle_power_w, rel=1e-3)


def test_the_child_takes_less_than_its_parent_and_a_block_that_is_gone_nothing() -> None:
    step = Step(32, context=40_000)
    energy = EnergyModel(SlowTimer(), hardware_named("H100"), Layout(), preset("bf16"))
    parent = energy.step(published_shape("super"), step=step)
    child = energy.step(published_shape("puzzle"), step=step)
    assert child.joules < parent.joules
    gone = energy.block(replace(hybrid_shape("M").blocks[0], mixer="none"), step=step)
    assert (gone.joules, gone.seconds) == (0.0, 0.0)


@dataclass
class Zone:
    name: str


@dataclass
class Cpu:
    rapl_file: Zone


@dataclass
class Cpus:
    cpus: Sequence[Cpu]


@dataclass
class Reading:
    time: float
    gpu_energy: Mapping[int, float]
    cpu_energy: Mapping[int, float] | None
    dram_energy: Mapping[int, float] | None


@dataclass
class FakeMonitor:
    """As `zeus.monitor.ZeusMonitor`, for a machine with two GPUs and the given RAPL zones."""

    gpu_indices: list[int] | None = None
    cpu_indices: list[int] | None = None
    zones: Sequence[str] = ("package-0", "package-1", "psys")
    gpus: int = 2
    step_j: float = 6.0
    has_memory: bool = True
    synced: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cpus = Cpus([Cpu(Zone(name)) for name in self.zones])
        if self.gpu_indices is None:
            self.gpu_indices = list(range(self.gpus))
        if self.cpu_indices is None:
            self.cpu_indices = list(range(len(self.zones)))

    def begin_window(self, key: str, *, sync_execution: bool) -> None:
        self.synced.append(sync_execution)

    def end_window(self, key: str, *, sync_execution: bool) -> Reading:
        assert self.gpu_indices is not None
        cpu = dict.fromkeys(self.cpu_indices or (), self.step_j) or None
        memory = dict.fromkeys(self.cpu_indices or (), 1.0) if cpu and self.has_memory else None
        return Reading(2.0, dict.fromkeys(self.gpu_indices, self.step_j), cpu, memory)


def install(monkeypatch: pytest.MonkeyPatch, **machine: object) -> None:
    """Put a faked zeus in place of the library."""

    def monitor(**asked: object) -> FakeMonitor:
        return FakeMonitor(**machine, **asked)  # type: ignore[arg-type]

    fake = types.ModuleType("zeus.monitor")
    fake.ZeusMonitor = monitor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus", types.ModuleType("zeus"))
    monkeypatch.setitem(sys.modules, "zeus.monitor", fake)


@pytest.mark.parametrize(
    ("device", "total_j", "source"),
    [
        ("cpu", 2 * (6.0 + 1.0), "CPU packages and memory"),
        ("cuda", 2 * 6.0, "GPU boards"),
        ("cuda:1", 6.0, "GPU boards"),
    ],
)
def test_counters_of_one_kind_of_device_are_read_once_each(
    monkeypatch: pytest.MonkeyPatch, device: str, total_j: float, source: str
) -> None:
    install(monkeypatch)
    energy = measured_energy(lambda: None, device=device, least_s=0.0)
    assert energy.joules == pytest.approx(total_j)
    assert (energy.seconds, energy.is_measured, energy.source) == (2.0, True, source)


def test_work_is_repeated_and_its_energy_is_that_of_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, zones=("package-0",), has_memory=False)
    clock = count()
    monkeypatch.setattr("fretsaw.pricing.energy.time.perf_counter", lambda: float(next(clock)))
    runs: list[int] = []
    energy = measured_energy(lambda: runs.append(1), least_s=4.0)
    assert len(runs) == 4
    assert energy.joules == pytest.approx(6.0 / 4)
    assert energy.seconds == pytest.approx(2.0 / 4)
    assert energy.source == "CPU packages"


@pytest.mark.parametrize("step_j", [0.0, -262.0])
def test_a_counter_that_stood_still_or_wrapped_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch, step_j: float
) -> None:
    install(monkeypatch, step_j=step_j, has_memory=False)
    with pytest.raises(RunError, match="energy counter of cpu went"):
        measured_energy(lambda: None, least_s=0.0)


@pytest.mark.parametrize(
    ("machine", "device"),
    [
        ({"zones": ()}, "cpu"),
        ({"zones": ("psys",)}, "cpu"),
        ({"gpus": 0}, "cuda"),
        ({"gpus": 1}, "cuda:1"),
    ],
)
def test_a_machine_without_a_counter_says_so(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, object], device: str
) -> None:
    install(monkeypatch, **machine)
    with pytest.raises(RunError, match=f"offers no energy counter for {device}") as caught:
        measured_energy(lambda: pytest.fail("nothing may run"), device=device)
    assert "modelled from a data sheet" in caught.value.hint


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus", None)
    monkeypatch.setitem(sys.modules, "zeus.monitor", None)
    with pytest.raises(RunError, match="not installed") as caught:
        measured_energy(lambda: None)
    assert caught.value.hint == 'pip install "fretsaw[energy]"'
