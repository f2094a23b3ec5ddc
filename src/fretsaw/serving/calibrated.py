"""Predictions for an engine on this machine: constants fitted to one model, told of another.

The paper's data sheets do not hold for a CPU or for an engine's code on it. So the parent's own
measured points give the constants; what is then said of the child is a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

from fretsaw.core.hardware import Hardware, Node, Workload
from fretsaw.core.precision import Precision
from fretsaw.core.shape import ModelShape
from fretsaw.pricing.calibration import Observation, fit_constants, pricer_with
from fretsaw.pricing.roofline import Constants
from fretsaw.pricing.step import Pricer
from fretsaw.serving.frontier import point, prefill_seconds
from fretsaw.serving.load import Loaded

CPU_START = Constants(
    memory_efficiency=0.8,
    compute_efficiency=0.6,
    state_efficiency=0.3,
    scan_efficiency=0.1,
    kernel_s=1e-5,
    experts_s=1e-5,
    pair_s=1e-6,
    host_s=1e-3,
    sequence_s=1e-4,
)
"""Where the fit begins on a CPU: rough sizes of what its operations take."""


def calibrated_pricer(
    shape: ModelShape,
    loaded: Sequence[Loaded],
    *,
    workload: Workload,
    hardware: Hardware,
    precision: Precision,
) -> Pricer:
    """A pricer whose constants describe what a model was measured to serve.

    Args:
        shape: The measured model.
        loaded: Its points.
        workload: Of each request.
        hardware: This machine.
        precision: In which it ran.
    """

    def request_s(pricer: Pricer, sequences: int) -> float:
        at = point(shape, Node(hardware), workload=workload, pricer=pricer, sequences=sequences)
        return workload.output_tokens / at.user_tokens_per_s

    seen = [
        Observation(
            lambda pricer, n=one.concurrency: request_s(pricer, n),  # type: ignore[misc]
            workload.output_tokens / one.median.user_tokens_per_s,
        )
        for one in loaded
    ]
    first = loaded[0].median.ttft_s
    tokens = workload.input_tokens
    seen.append(Observation(lambda p: prefill_seconds(shape, tokens, pricer=p), first))
    constants = fit_constants(seen, hardware, start=CPU_START, precision=precision)
    return pricer_with(hardware, constants, precision=precision)
