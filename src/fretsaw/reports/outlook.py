"""A serving plan as tables, as JSON and as a picture, with every assumption beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fretsaw.core.hardware import Workload
from fretsaw.core.precision import preset
from fretsaw.core.units import format_bytes
from fretsaw.pricing.footprint import Pages, footprint, pages_of
from fretsaw.pricing.memory import model_costs, mtp_bytes
from fretsaw.reports.frontier import Curve, frontier_svg
from fretsaw.reports.shown import Shown
from fretsaw.serving.frontier import Point, requests_per_minute
from fretsaw.serving.planner import Outlook, Setting
from fretsaw.serving.requirement import Verdict

FORMATS = ("bf16", "fp8", "nvfp4")
GIB = 2**30
LEAST_SHARE = 0.01
"""Of a step: smaller parts are not listed."""


@dataclass(frozen=True)
class NamedOutlook:
    """A model's outlook with its name and setting."""

    name: str
    outlook: Outlook
    setting: Setting


@dataclass(frozen=True, repr=False)
class ServingPlan(Shown):
    """What `fretsaw plan` answers.

    Attributes:
        models: Parent first.
        engine: Whose constants.
        constants: Name -> value and source.
        is_calibrated: Whether any constant was fitted for this hardware and engine.
        verbosity: Tokens that the child says for one of the parent.
        require: As asked.
        verdict: What it takes.
        notes: What a reader should know.
    """

    models: tuple[NamedOutlook, ...]
    engine: str
    constants: Mapping[str, Mapping[str, Any]]
    is_calibrated: bool
    verbosity: float
    require: str | None
    verdict: Verdict | None
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float | None:
        """Server tokens/s of the child over the parent's, at the same user speed."""
        if len(self.models) < 2:  # noqa: PLR2004
            return None
        parent, child = (one.outlook.server_tokens_per_s for one in self.models[:2])
        return child / parent if parent and child else None

    def brief(self) -> str:
        """Which models on what, and the speed-up where it is known."""
        names = ", ".join(one.name for one in self.models)
        more = f": {self.speedup:.3g}x" if self.speedup else ""
        return f"{names} on {self.models[0].setting.node} with {self.engine}{more}"

    def print(self, console: Console) -> None:
        """See `print_serving_plan`."""
        print_serving_plan(self, console)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "models": [_model_json(one, verbosity=self._verbosity(one)) for one in self.models],
            "speedup": self.speedup,
            "assumptions": self.assumptions(),
            "requirement": _verdict_json(self.require, self.verdict),
            "notes": list(self.notes),
        }

    def _verbosity(self, one: NamedOutlook) -> float:
        return self.verbosity if one is not self.models[0] else 1.0

    def assumptions(self) -> dict[str, Any]:
        """Everything that the answer turns on beside the models."""
        setting = self.models[0].setting
        hardware, memory = setting.node.hardware, setting.assumptions
        workload = setting.workload
        return {
            "hardware": str(setting.node),
            "memory_bytes_per_gpu": hardware.memory_bytes,
            "memory_gib_per_gpu": round(hardware.memory_bytes / GIB, 2),
            "memory_bytes_per_s": hardware.memory_bytes_per_s,
            "memory_fraction": memory.memory_fraction,
            "headroom_bytes": memory.headroom_bytes,
            "weights_bytes_override": [
                one.setting.assumptions.weights_bytes for one in self.models
            ],
            "mtp_loaded": memory.has_mtp,
            "weights_format": setting.precision.name,
            "products_in_16_bits": list(setting.precision.weight_only),
            "kv_dtype": setting.precision.kv,
            "cache_pools": memory.cache.pools,
            "cache_source": memory.cache.source,
            "state_dtype": setting.precision.state,
            "conv_state_dtype": setting.precision.conv_state,
            "context_tokens": setting.context,
            "input_tokens": workload.input_tokens if workload else None,
            "output_tokens": workload.output_tokens if workload else None,
            "acceptance_length": workload.acceptance_length if workload else None,
            "user_tokens_per_s": setting.user_tokens_per_s,
            "layouts": [str(layout) for layout in setting.layouts],
            "engine": self.engine,
            "is_calibrated": self.is_calibrated,
            "verbosity": self.verbosity,
            "constants": self.constants,
            "hardware_sources": dict(hardware.sources),
        }


def _model_json(one: NamedOutlook, *, verbosity: float) -> dict[str, Any]:
    found, setting = one.outlook, one.setting
    costs = model_costs(found.shape)
    rate = found.server_tokens_per_s
    workload = setting.workload
    whole = footprint(found.shape, setting.precision)
    return {
        "name": one.name,
        "params": costs["params"],
        "active_params": costs["active_params"],
        "weights_bytes": {
            fmt: _weights(found, fmt) for fmt in dict.fromkeys((*FORMATS, setting.precision.name))
        },
        "mtp_bytes": mtp_bytes(found.shape),
        "kv_bytes_per_token": whole.kv_bytes_per_token,
        "state_bytes_per_sequence": whole.state_bytes,
        "page_tokens": _pages(one).tokens,
        "page_bytes": _pages(one).page_bytes,
        "max_concurrency": found.capacity.max_concurrency,
        "max_concurrency_layout": str(found.capacity_layout),
        "gpu_weights_bytes": found.capacity.footprint.weights_bytes,
        "gpu_usable_bytes": found.capacity.usable_bytes,
        "gpu_sequence_bytes": found.capacity.footprint.sequence_bytes(setting.context),
        "server_tokens_per_s": rate,
        "requests_per_minute": requests_per_minute(rate, workload, verbosity=verbosity)
        if rate and workload
        else None,
        "modelled_joules_per_token": found.joules_per_token,
        "operating_point": _point_json(found.operating_point),
        "step_seconds_by_group": dict(found.account.by_group) if found.account else None,
        "step_seconds_by_bound": dict(found.account.by_bound) if found.account else None,
        "step_seconds_by_provider": dict(found.account.by_provider) if found.account else None,
        "gain_percent_per_percent_cut": dict(found.worth),
        "frontier": [_point_json(point) for point in found.frontier],
    }


def _pages(one: NamedOutlook) -> Pages:
    """In which requests are kept, under the layout that holds the most of them."""
    found, setting = one.outlook, one.setting
    heads = found.shape.mtp if setting.assumptions.has_mtp else ()
    return pages_of(
        (*(block for block, _ in found.shape.distinct), *heads),
        setting.precision,
        layout=found.capacity_layout,
        rule=setting.assumptions.cache,
    )


def _page_text(pages: Pages) -> str:
    if not pages.kv_bytes:
        return "–"
    if pages.tokens == 1:
        return "by the token"
    return f"{pages.tokens:,} tokens, {format_bytes(pages.page_bytes)}"


def _weights(found: Outlook, number_format: str) -> int:
    return footprint(found.shape, preset(number_format)).weights_bytes


def _point_json(point: Point | None) -> dict[str, Any] | None:
    return {**vars(point), "layout": str(point.layout)} if point else None


def _verdict_json(text: str | None, verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "text": text,
        "wanted": verdict.wanted,
        "parent": verdict.parent,
        "smallest_model_reaches": verdict.smallest,
        "is_within_space": verdict.is_within_space,
        "uniform_cuts": [{**vars(cut), "axes": list(cut.axes)} for cut in verdict.cuts],
    }


def plan_svg(plan: ServingPlan) -> str:
    """The frontiers of all models in one picture."""
    setting = plan.models[0].setting
    curves = [
        Curve(one.name, [((p.user_tokens_per_s, p.server_tokens_per_s), _tip(p)) for p in points])
        for one in plan.models
        if (points := one.outlook.frontier)
    ]
    subtitle = (
        f"predicted: {setting.node}, {setting.workload}, {setting.precision.name}, {plan.engine}"
    )
    return frontier_svg(curves, subtitle=subtitle, speed=setting.user_tokens_per_s)


def _tip(point: Point) -> str:
    return (
        f"{point.layout}, {point.concurrency:g} requests in flight: "
        f"{point.user_tokens_per_s:.0f} tokens/s each, {point.server_tokens_per_s:,.0f} in all"
    )


def print_serving_plan(plan: ServingPlan, console: Console) -> None:
    """Tables of the models, of where a step goes and of what a cut gives; then the assumptions."""
    console.print(_models_table(plan))
    if any(one.outlook.account for one in plan.models):
        console.print(_account_table(plan.models))
        console.print(_worth_table(plan.models))
    if plan.verdict is not None:
        _print_verdict(plan, console)
    _print_assumptions(plan, console)
    for note in plan.notes:
        console.print(f"note: {note}")


def _models_table(plan: ServingPlan) -> Table:
    table = Table()
    table.add_column("")
    for one in plan.models:
        table.add_column(one.name, justify="right")
    for label, values in _model_rows(plan):
        table.add_row(label, *values)
    if plan.speedup is not None:
        table.add_section()
        table.add_row("speed-up", "1.00x", f"{plan.speedup:.2f}x")
    return table


def _model_rows(plan: ServingPlan) -> Iterator[tuple[str, list[str]]]:
    setting = plan.models[0].setting
    found = [one.outlook for one in plan.models]
    costs = [model_costs(one.shape) for one in found]
    yield "parameters", [f"{c['params'] / 1e9:,.2f}B" for c in costs]
    yield "active parameters", [f"{c['active_params'] / 1e9:,.2f}B" for c in costs]
    for fmt in dict.fromkeys((*FORMATS, setting.precision.name)):
        yield f"weights, {fmt}", [f"{_weights(one, fmt) / 1e9:.2f} GB" for one in found]
    whole = [footprint(one.shape, setting.precision) for one in found]
    yield (
        f"KV cache a token, {setting.precision.kv}",
        [f"{w.kv_bytes_per_token:,} B" for w in whole],
    )
    yield (
        f"state a sequence, {setting.precision.state}",
        [format_bytes(w.state_bytes) for w in whole],
    )
    yield f"page of an attention block, {plan.engine}", [_page_text(_pages(m)) for m in plan.models]
    yield (
        f"requests of {setting.context:,} tokens at once",
        [f"{one.capacity.max_concurrency} ({one.capacity_layout})" for one in found],
    )
    if setting.workload is not None:
        yield from _speed_rows(plan, setting.workload)


def _speed_rows(plan: ServingPlan, workload: Workload) -> Iterator[tuple[str, list[str]]]:
    setting, found = plan.models[0].setting, [one.outlook for one in plan.models]
    points = [one.operating_point for one in found]
    if setting.user_tokens_per_s is not None:
        rates = [one.server_tokens_per_s for one in found]
        yield (
            f"server tokens/s at {setting.user_tokens_per_s:g} tokens/s a user",
            [f"{rate:,.0f}" if rate else "no layout" for rate in rates],
        )
        minutes = [
            requests_per_minute(rate, workload, verbosity=v) if rate else None
            for rate, v in zip(rates, (1.0, plan.verbosity), strict=False)
        ]
        yield "requests a minute", [f"{n:,.1f}" if n else "–" for n in minutes]
    yield "best layout", [str(p.layout) if p else "–" for p in points]
    yield "requests in flight there", [f"{p.concurrency:,.1f}" if p else "–" for p in points]
    joules = [one.joules_per_token for one in found]
    yield "energy of an output token, modelled", [f"{j:.3f} J" if j else "–" for j in joules]
    yield "decode step there", [f"{p.decode_s * 1e3:.2f} ms" if p else "–" for p in points]
    yield (
        f"prefill of {workload.input_tokens:,} tokens",
        [f"{p.prefill_s * 1e3:.0f} ms" if p else "–" for p in points],
    )


def _account_table(models: Sequence[NamedOutlook]) -> Table:
    """Where a decode step goes and what bounds it, in milliseconds."""
    table = Table(title="where a decode step goes, ms", title_justify="left")
    table.add_column("")
    for one in models:
        table.add_column(one.name, justify="right")
    accounts = [one.outlook.account for one in models]
    for section in ("by_group", "by_bound"):
        names = dict.fromkeys(n for a in accounts if a for n in getattr(a, section))
        parts = {
            n: [getattr(a, section).get(n, 0.0) if a else 0.0 for a in accounts] for n in names
        }
        least = LEAST_SHARE * max(a.seconds for a in accounts if a)
        for name, seconds in sorted(parts.items(), key=lambda part: -max(part[1])):
            if max(seconds) >= least:
                label = name if section == "by_group" else f"bound by {name}"
                table.add_row(label, *(f"{s * 1e3:.2f}" for s in seconds))
        table.add_section()
    return table


def _worth_table(models: Sequence[NamedOutlook]) -> Table:
    table = Table(title="server tokens/s gained per percent cut, %", title_justify="left")
    table.add_column("axis")
    for one in models:
        table.add_column(one.name, justify="right")
    for axis in dict.fromkeys(a for one in models for a in one.outlook.worth):
        values = [one.outlook.worth.get(axis) for one in models]
        table.add_row(axis, *("–" if v is None else f"{v:.2f}" for v in values))
    return table


def _print_verdict(plan: ServingPlan, console: Console) -> None:
    verdict = plan.verdict
    if verdict is None:
        return
    console.print(
        f"required: {plan.require} = {verdict.wanted:,.0f} (now {verdict.parent:,.0f}, exactly at "
        "that speed on its best layout)"
    )
    for cut in verdict.cuts:
        axes = ", ".join(cut.axes)
        if cut.share is None:
            console.print(f"  cutting {axes} alone does not suffice: {cut.reached:,.0f} at 1 %")
        else:
            console.print(f"  {axes} to {cut.share:.0%} in every block gives {cut.reached:,.0f}")
    can = "can" if verdict.is_within_space else "cannot"
    console.print(
        f"the published search space {can} meet it: its smallest model reaches "
        f"{verdict.smallest:,.0f}"
    )


def _print_assumptions(plan: ServingPlan, console: Console) -> None:
    a = plan.assumptions()
    console.print(
        f"assumed: {a['hardware']} with {a['memory_gib_per_gpu']} GiB each, of which "
        f"{a['memory_fraction']:.0%} may be used, {format_bytes(a['headroom_bytes'])} kept free; "
        f"weights {a['weights_format']}, KV {a['kv_dtype']}, state {a['state_dtype']}, conv state "
        f"{a['conv_state_dtype']}; MTP {'loaded' if a['mtp_loaded'] else 'not loaded'}; engine "
        f"{plan.engine}{'' if plan.is_calibrated else ' (constants not calibrated here)'}; "
        "GB is 10^9 bytes, GiB 2^30; all sources with --json"
    )
