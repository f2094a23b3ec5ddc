"""What stands behind a run's figures, from its folders; what an old run lacks is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fretsaw.core.shape import ModelShape
from fretsaw.reports.evidence import (
    Evidence,
    HeldOutText,
    Sample,
    Spread,
    spread_of,
    spread_of_parent,
)
from fretsaw.reports.summary import Summary
from fretsaw.stages.manifest import read_manifest
from fretsaw.stages.run import CHECK, Run, RunRound
from fretsaw.stages.samples import read_samples
from fretsaw.stages.speeds import find_speeds
from fretsaw.stages.summary import read_result

BY_AN_EARLIER_VERSION = "the run was made by a version of fretsaw that did not keep"


def collect_evidence(run: Run, summary: Summary, *, shape: ModelShape) -> Evidence:
    """Held-out text, intervals, samples and speeds of a run.

    Args:
        run: All its rounds are finished.
        summary: Of this run.
        shape: Of its parent.
    """
    rounds = list(run.rounds())
    samples = read_samples(rounds[-1].result("08-distill"))
    spreads = dict(_spreads(rounds))
    speeds, problem = find_speeds(run, summary.child, shape=shape)
    return Evidence(
        text=_held_out(rounds[0]),
        spreads=spreads,
        samples=tuple(Sample(**one) for one in samples),
        speeds=speeds,
        missing=tuple(_missing(run, has_spreads=bool(spreads), has_samples=bool(samples)))
        + ((problem,) if problem else ()),
    )


def _missing(run: Run, *, has_spreads: bool, has_samples: bool) -> Iterator[str]:
    lacking = {
        "intervals": has_spreads,
        "text samples": has_samples,
        "warnings": (run.folder / CHECK).is_file(),
    }
    names = [name for name, is_there in lacking.items() if not is_there]
    if names:
        yield f"Not shown: {', '.join(names)}; {BY_AN_EARLIER_VERSION} them."


def _held_out(round_: RunRound) -> HeldOutText:
    measured = read_result(round_)["before"]
    inputs = read_manifest(round_.result("08-distill"))["inputs"]
    sequences = len(measured.get("sequences", ())) or None
    return HeldOutText(measured["tokens"], sequences, inputs.get("text.validation", ""))


def _spreads(rounds: Sequence[RunRound]) -> Iterator[tuple[str, Spread]]:
    """Of each line of the summary whose sequences were kept."""
    for round_ in rounds:
        result = read_result(round_)
        for name, moment in (("cut", "before"), ("healed", "after")):
            sequences = result[moment].get("sequences")
            if not sequences:
                continue
            if round_.number == 1 and name == "cut":
                yield "parent", spread_of_parent(sequences)
            yield f"round {round_.number} {name}", spread_of(sequences)
