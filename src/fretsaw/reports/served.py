"""What engines were measured to serve: tables, JSON and the frontier, predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fretsaw.core.hardware import Workload
from fretsaw.core.units import format_bytes
from fretsaw.reports.frontier import Curve, frontier_svg
from fretsaw.reports.shown import Shown
from fretsaw.serving.frontier import Point, pareto
from fretsaw.serving.load import Load, Loaded, Matched

COLUMNS = ("model", "users", "each", "server", "low–high", "first", "next", "predicted", "error")


@dataclass(frozen=True)
class ServedModel:
    """One model under load.

    Attributes:
        name: ``parent``, ``child``, or its folder's.
        source: Folder or config that it came from.
        loaded: One entry per concurrency, the lowest first.
        predicted: The cost model's point for each, in the same order.
        weights_bytes: Of the trunk in the format that it ran in, from its table.
        sequence_bytes: KV and state of one request at its end, in that format.
        peak_bytes: Largest resident memory of the engine; None where unknown.
        acceptance_length: Tokens per decode step; None without speculative decoding.
    """

    name: str
    source: str
    loaded: tuple[Loaded, ...]
    predicted: tuple[Point, ...]
    weights_bytes: int
    sequence_bytes: float
    peak_bytes: int | None
    acceptance_length: float | None

    @property
    def prefill_s(self) -> float:
        """Time to the first token with the fewest users."""
        return self.loaded[0].median.ttft_s


@dataclass(frozen=True, repr=False)
class Served(Shown):
    """What `fretsaw serve` has measured.

    Attributes:
        engine: That served.
        load: What was asked.
        models: Parent first.
        matched: Child and parent at the same user speed; empty for one model.
        hardware: Of the prediction.
        calibrated_on: Model whose points gave the constants; None for known hardware.
        setting: Threads, dtype and the like.
        is_random: Whether weights are random.
    """

    engine: str
    load: Load
    models: tuple[ServedModel, ...]
    matched: tuple[Matched, ...]
    hardware: str
    calibrated_on: str | None
    setting: Mapping[str, Any]
    is_random: bool

    def brief(self) -> str:
        """Which models were measured, and with what."""
        return f"{', '.join(model.name for model in self.models)} measured with {self.engine}"

    def print(self, console: Console) -> None:
        """See `print_served`."""
        print_served(self, console)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "engine": self.engine,
            "input_tokens": self.load.workload.input_tokens,
            "output_tokens": self.load.workload.output_tokens,
            "repeats": self.load.repeats,
            "requests_per_user": self.load.requests_per_user,
            "random_weights": self.is_random,
            "hardware": self.hardware,
            "calibrated_on": self.calibrated_on,
            **self.setting,
            "models": [_model_json(model, self.load.workload) for model in self.models],
            "matched": [asdict(one) | {"gain": one.gain} for one in self.matched],
        }


def _model_json(model: ServedModel, workload: Workload) -> dict[str, Any]:
    rows = zip(model.loaded, model.predicted, strict=True)
    return {
        "name": model.name,
        "source": model.source,
        "weights_bytes": model.weights_bytes,
        "sequence_bytes": model.sequence_bytes,
        "peak_bytes": model.peak_bytes,
        "acceptance_length": model.acceptance_length,
        "prefill_tokens_per_s": workload.input_tokens / model.prefill_s,
        "points": [
            {
                "concurrency": loaded.concurrency,
                **asdict(loaded.median),
                "lowest_server_tokens_per_s": loaded.lowest_server,
                "highest_server_tokens_per_s": loaded.highest_server,
                "predicted_user_tokens_per_s": predicted.user_tokens_per_s,
                "predicted_server_tokens_per_s": predicted.server_tokens_per_s,
                "prediction_error": prediction_error(loaded, predicted),
            }
            for loaded, predicted in rows
        ],
    }


def prediction_error(loaded: Loaded, predicted: Point) -> float:
    """Of the server rate, relative to what was measured."""
    return predicted.server_tokens_per_s / loaded.median.server_tokens_per_s - 1


def served_svg(served: Served) -> str:
    """Measured frontiers with their predictions in one picture."""
    curves = []
    for model in served.models:
        measured = pareto([one.point for one in model.loaded])
        curves.append(Curve(model.name, [_place(p) for p in measured], is_measured=True))
        curves.append(Curve(model.name, [_place(p) for p in pareto(model.predicted)]))
    load = served.load
    subtitle = f"{served.engine} on {served.hardware}, {load.workload}, medians of {load.repeats}"
    return frontier_svg(curves, subtitle=subtitle)


def _place(point: Point) -> tuple[tuple[float, float], str]:
    tip = f"{point.concurrency:g} at a time: {point.server_tokens_per_s:,.0f} tokens/s in all"
    return (point.user_tokens_per_s, point.server_tokens_per_s), tip


def print_served(served: Served, console: Console) -> None:
    """Speeds of each model, both at the same user speed, memory, and what it holds for."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for model in served.models:
        for loaded, predicted in zip(model.loaded, model.predicted, strict=True):
            table.add_row(model.name, *_cells(loaded, predicted))
    console.print(table)
    console.print("tokens/s of each user and of the server; time to the first and the next token")
    for one in served.matched:
        console.print(_matched_line(one), soft_wrap=True)
    for model in served.models:
        console.print(_memory_line(model, served), soft_wrap=True)
    load = served.load
    words = ", ".join(f"{key} {value}" for key, value in served.setting.items())
    console.print(
        f"{served.engine}, {load.workload} tokens, medians of {load.repeats} repeats of "
        f"{load.requests_per_user} requests per user; {words}"
        + ("; random weights" if served.is_random else ""),
        soft_wrap=True,
    )
    basis = (
        f", constants fitted to the {served.calibrated_on} above" if served.calibrated_on else ""
    )
    console.print(
        f"predicted: the cost model on {served.hardware}{basis}; error: of server tokens/s",
        soft_wrap=True,
    )


def _cells(loaded: Loaded, predicted: Point) -> tuple[str, ...]:
    one = loaded.median
    return (
        str(loaded.concurrency),
        f"{one.user_tokens_per_s:.1f}",
        f"{one.server_tokens_per_s:.1f}",
        f"{loaded.lowest_server:.0f}–{loaded.highest_server:.0f}",
        f"{one.ttft_s * 1e3:.0f} ms",
        f"{one.decode_s * 1e3:.1f} ms",
        f"{predicted.server_tokens_per_s:.1f}",
        f"{prediction_error(loaded, predicted):+.0%}",
    )


def _matched_line(one: Matched) -> str:
    at = f"at the parent's {one.user_tokens_per_s:.1f} tokens/s per user"
    if one.child is None or one.gain is None:
        return f"{at}: the child was not seen to serve a user so fast"
    return f"{at}: {one.parent:.1f} -> {one.child:.1f} server tokens/s, {one.gain:.2f}x"


def _memory_line(model: ServedModel, served: Served) -> str:
    peak = "unknown" if model.peak_bytes is None else format_bytes(model.peak_bytes)
    accepted = model.acceptance_length
    return (
        f"{model.name}: weights {format_bytes(model.weights_bytes)}, a request "
        f"{format_bytes(int(model.sequence_bytes))}; peak memory of the engine {peak}; prefill "
        f"{served.load.workload.input_tokens / model.prefill_s:.0f} tokens/s"
        + (f"; {accepted:.2f} tokens per step" if accepted else "")
    )
