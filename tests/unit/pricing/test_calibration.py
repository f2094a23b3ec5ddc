"""Constants fitted to what a model was measured to take."""

from dataclasses import replace

import pytest

from fretsaw.core.hardware import Hardware
from fretsaw.core.precision import preset
from fretsaw.families import family_named
from fretsaw.pricing.calibration import FITTED, Observation, fit_constants, pricer_with
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.roofline import Constants
from tests.pico import pico_config

MACHINE = Hardware("here", 10**10, 1e10, {"fp32": 5e10, "bf16": 5e10})
START = Constants(kernel_s=1e-5, pair_s=1e-7, host_s=1e-3, sequence_s=1e-5, memory_efficiency=0.8)
TRUE = replace(START, kernel_s=4e-5, host_s=5e-3, memory_efficiency=0.3, compute_efficiency=0.4)
STEPS = [Step(n, 1, 64) for n in (1, 4, 16, 64, 256)] + [Step(n, 128, 0) for n in (1, 4, 16)]
SHAPE = family_named("nemotron_h").read_config(pico_config())


def observed(constants: Constants, *, factor: float = 1.0) -> list[Observation]:
    pricer = pricer_with(MACHINE, constants, precision=preset("fp32"))
    return [
        Observation(
            lambda p, step=step: p.step_seconds(SHAPE, step=step),
            factor * pricer.step_seconds(SHAPE, step=step),
        )
        for step in STEPS
    ]


def test_a_fit_describes_what_it_was_fitted_to_and_what_it_was_not() -> None:
    found = fit_constants(observed(TRUE), MACHINE, start=START, precision=preset("fp32"))
    pricer = pricer_with(MACHINE, found, precision=preset("fp32"))
    truth = pricer_with(MACHINE, TRUE, precision=preset("fp32"))
    for step in (*STEPS, Step(32, 1, 64), Step(8, 128, 0)):
        seconds = truth.step_seconds(SHAPE, step=step)
        assert pricer.step_seconds(SHAPE, step=step) == pytest.approx(seconds, rel=0.05)


def test_one_disturbed_timing_does_not_decide() -> None:
    seen = observed(TRUE)
    seen[2] = replace(seen[2], seconds=5 * seen[2].seconds)
    found = fit_constants(seen, MACHINE, start=START, precision=preset("fp32"))
    pricer = pricer_with(MACHINE, found, precision=preset("fp32"))
    others = [one for i, one in enumerate(seen) if i != 2]
    assert all(one.predict(pricer) == pytest.approx(one.seconds, rel=0.15) for one in others)


def test_constants_stay_within_bounds_and_the_rest_as_it_was() -> None:
    found = fit_constants(
        observed(TRUE, factor=1e6), MACHINE, start=START, precision=preset("fp32")
    )
    for name, (low, high) in FITTED.items():
        assert low <= getattr(found, name) * (1 + 1e-9)
        assert getattr(found, name) <= high * (1 + 1e-9)
    assert found.state_efficiency == START.state_efficiency
