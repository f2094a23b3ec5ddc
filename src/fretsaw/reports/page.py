"""The page of a run: one HTML file that opens offline, light and dark."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from fretsaw.core.intervals import Interval
from fretsaw.core.units import format_bytes, format_count, format_seconds
from fretsaw.reports.drawings import additivity_chart, choice_chart, healing_chart, scores_chart
from fretsaw.reports.evidence import Sample, Spread
from fretsaw.reports.figures import agreement
from fretsaw.reports.findings import Findings, RoundFindings
from fretsaw.reports.html import Section, document, listed, table, tiles
from fretsaw.reports.loaders import opening_snippet
from fretsaw.reports.quantized import QUANTIZED_COLUMNS, quantized_rows
from fretsaw.reports.speeds import speeds_note, speeds_table
from fretsaw.reports.summary import Summary, SummaryLine
from fretsaw.reports.svg import number, share

MEASURED = ("model", "loss", "over parent", "KL", "agree", "tokens", "time")
SIZES = ("model", "params", "trunk", "active", "routed", "state", "BF16")
SMALL_KL, SHORTEST = 0.01, 1e-5
SHARES = ("trunk_params", "active_params", "active_routed_params", "state_bytes")


def summary_csv(summary: Summary) -> str:
    """All figures in full, a row per model, costs as columns of their own."""
    stream = io.StringIO()
    names = ("name", "loss", "kl", "agreement", "seconds", "tokens")
    costs = tuple(summary.lines[0].costs)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*names, *costs))
    for line in summary.lines:
        figures = [getattr(line, name) for name in names]
        writer.writerow([*figures, *(line.costs[name] for name in costs)])
    return stream.getvalue()


def report_page(findings: Findings) -> str:
    """The whole page.

    Args:
        findings: A run of which at least one round is finished.

    Returns:
        An HTML document that needs no other file.
    """
    return document(
        findings.summary.run.name,
        kind="fretsaw report",
        contents=_sections(findings),
        lead=_tiles(findings),
        foot=f"finished {findings.finished}",
    )


def _sections(findings: Findings) -> Iterator[Section]:
    evidence, rounds = findings.evidence, findings.rounds
    if said := [*_notices(findings)]:
        yield Section("To know first", listed(said, css="warnings"), css="alert")
    models = _summary_table(findings)
    yield Section("What was lost and what came back", models, _summary_note(findings))
    if quantized := quantized_rows(findings.summary.quantized):
        table_of = table(QUANTIZED_COLUMNS, quantized, name="The child in fewer bits")
        yield Section("In fewer bits", table_of, QUANTIZED_NOTE)
    if evidence.samples:
        yield Section("In its own words", _samples(evidence.samples), SAMPLES_NOTE)
    if evidence.speeds:
        yield Section(
            "Speed and memory", speeds_table(evidence.speeds), speeds_note(evidence.speeds)
        )
    if findings.summary.serving:
        told = listed(line.told() for line in findings.summary.serving)
        yield Section("Served", told, SERVED_NOTE)
    yield Section("Rounds", _rounds_table(rounds), ROUNDS_NOTE)
    yield Section("What each block has kept", choice_chart(findings), CHOICE_NOTE)
    yield Section("Cut and heal", healing_chart(findings), HEALING_NOTE)
    yield Section("Where the network is sensitive", scores_chart(findings), SCORES_NOTE)
    yield Section("Can scores be summed?", additivity_chart(findings), ADDITIVITY_NOTE)
    yield Section("The child", _child(findings))
    yield Section("How it was made", _making(findings))


QUANTIZED_NOTE = (
    "The last child, its weights, inputs and KV cache rounded as hardware for the format would; "
    "agree: share of tokens whose greedy prediction is the same. Held-out text."
)
SAMPLES_NOTE = (
    "Greedy: the most likely token each time, after the beginnings of held-out sequences. "
    "Text that looks alike is no measure of quality, and text that differs may be as good."
)
SERVED_NOTE = (
    "Demands of the last round. Speed-ups are over the original parent in the same terms; "
    "measured: parent and child of the last cut in turn, on the machine of the run."
)
ROUNDS_NOTE = (
    "Budgets are upper bounds on the whole model; percentages are of the original parent. "
    "Searched and equal: KL of the cut that the search chose, before healing, beside that of the "
    "largest cut within the same budget in which all blocks of a kind are alike; a dash where none "
    "fits, or none was measured."
)
CHOICE_NOTE = (
    "Relative to the original parent; the deeper the colour, the more is cut. "
    "<a href='choice.svg'>choice.svg</a>"
)
HEALING_NOTE = (
    "Held-out text, but for the curve of the training; the teacher is always the original parent "
    "(dotted). A dotted rise is a cut; training goes on from the best weights of the round before. "
    "<a href='healing.svg'>healing.svg</a>"
)
SCORES_NOTE = (
    "What replacing one block by one variant does to the model that the round works around; "
    "logarithmic. Blocks without a star stay as they are."
)
ADDITIVITY_NOTE = (
    "The search adds up scores of single replacements. Here whole choices are swapped in and "
    "measured; both axes are logarithmic. <a href='additivity.svg'>additivity.svg</a>"
)


def _notices(findings: Findings) -> Iterator[str]:
    """What is unfinished, what the run warned of, and what cannot be shown."""
    if (done := len(findings.rounds)) < findings.num_planned:
        yield f"The run is not finished: {done} of {findings.num_planned} rounds are shown."
    for warning in findings.summary.warnings:
        yield f"{warning.place}: {warning.text}"
    yield from findings.evidence.missing


def _summary_table(findings: Findings) -> str:
    lines = findings.summary.lines
    notes = [f"{line.name}: {note}." for line in lines for note in line.notes]
    healed = range(0, len(lines), 2)
    measured = [_measured_row(line, findings) for line in lines]
    sizes = [_size_row(line, lines[0].costs) for line in lines]
    return (
        table(MEASURED, measured, name="Measured on held-out text", marked=healed)
        + (listed(notes, css="warnings") if notes else "")
        + table(SIZES, sizes, name="Sizes", marked=healed)
    )


def _measured_row(line: SummaryLine, findings: Findings) -> list[str]:
    parent, spread = findings.summary.lines[0], findings.evidence.spread(line.name)
    above = with_interval(line.loss - parent.loss, spread.loss_difference, "{:+.4f}".format)
    return [
        line.name,
        with_interval(line.loss, spread.loss),
        above if line is not parent else "",
        with_interval(line.kl, spread.kl, small),
        with_interval(line.agreement, spread.agreement, share),
        format_count(line.tokens) if line.tokens else "",
        format_seconds(line.seconds) if line.seconds else "",
    ]


def _size_row(line: SummaryLine, parent: Mapping[str, float]) -> list[str]:
    return [
        line.name,
        format_count(line.costs["params"]),
        *(share_of(line.costs[name], parent[name]) for name in SHARES),
        format_bytes(line.costs["bytes_bf16"]),
    ]


def with_interval(
    value: float, interval: Interval | None, form: Callable[[float], str] = "{:.4f}".format
) -> str:
    """A figure, and on a line of its own where its mean lies in 95 of 100 cases."""
    if interval is None:
        return form(value)
    return f"{form(value)}\n{form(interval.low)} … {form(interval.high)}"


def small(value: float) -> str:
    """A KL: four decimals, and three figures where these would say next to nothing."""
    if value == 0 or abs(value) >= SMALL_KL:
        return f"{value:.4f}"
    return f"{value:.3g}" if abs(value) >= SHORTEST else number(value)


def share_of(cost: float, of: float) -> str:
    """A cost as a share of the parent's."""
    return share(cost / of if of else None)


def _summary_note(findings: Findings) -> str:
    text, spread = findings.evidence.text, findings.evidence.spreads
    held_out = ""
    if text is not None:
        pieces = f" in {text.sequences:,} sequences" if text.sequences else ""
        held_out = f"Held-out text: {text.tokens:,} tokens{pieces}. "
    if spread and any(one.loss for one in spread.values()):
        held_out += (
            "Small: 95 % intervals, by bootstrap over these sequences; over parent: paired, on the "
            "same sequences. "
        )
    return held_out + FOOTNOTE


FOOTNOTE = (
    "Loss, and KL from the parent, in nats per held-out token; agree: share of tokens with the "
    "parent’s greedy prediction; tokens: of the healing; time: of the cut, then of the healing. "
    "Trunk, active, routed (parameters of the routed experts that one token uses) and state (of "
    "the Mamba blocks, per sequence): share of the parent. <a href='summary.csv'>summary.csv</a> "
    "and <a href='summary.json'>summary.json</a> hold all figures."
)


def _tiles(findings: Findings) -> str:
    """The last child in a few large numbers."""
    lines = findings.summary.lines
    parent, child = lines[0], lines[-1]
    spread = findings.evidence.spread(child.name)

    def of_parent(cost: str) -> str:
        return share_of(child.costs[cost], parent.costs[cost])

    sizes = f"{format_count(parent.costs['params'])} → {format_count(child.costs['params'])}"
    return tiles(
        [
            ("parameters", of_parent("params"), sizes),
            ("routed capacity", of_parent("active_routed_params"), "per token, of the parent’s"),
            ("Mamba state", of_parent("state_bytes"), "per sequence, of the parent’s"),
            ("same greedy token", share(child.agreement), "as the parent"),
            ("KL to the parent", small(child.kl), _kl_words(spread)),
            ("loss", f"{child.loss:.4f}", f"nats, parent {parent.loss:.4f}"),
        ]
    )


def _kl_words(spread: Spread) -> str:
    if spread.kl is None:
        return "nats per held-out token"
    return f"nats per token, {small(spread.kl.low)} … {small(spread.kl.high)}"


def _samples(samples: Sequence[Sample]) -> str:
    parts = []
    for i, one in enumerate(samples, start=1):
        parts.append(f"<h3>Prompt {i}</h3><p class='prompt'>{escape(one.prompt)}</p>")
        said = {"parent": one.parent, "child": one.child}
        for name, words in said.items():
            equal = ", word for word the same" if one.is_equal and name == "child" else ""
            parts.append(
                f"<blockquote><cite>{name}{equal}</cite><p>{escape(words)}</p></blockquote>"
            )
    return f"<div class='samples'>{''.join(parts)}</div>"


def _rounds_table(rounds: Sequence[RoundFindings]) -> str:
    columns = (
        "round",
        "budget",
        "search",
        "searched",
        "equal",
        "variants",
        "whole choices",
        "healing tokens",
    )
    return table(columns, [_round_row(r) for r in rounds], name="Rounds of this run", num_words=3)


def _round_row(round_: RoundFindings) -> list[str]:
    bounds = (f"{name} ≤ {value}" for name, value in round_.budget.items())
    budget = ", ".join((*bounds, *(f"served: {demand}" for demand in round_.serving)))
    gap = f", gap {round_.gap:.2%}" if round_.gap else ""
    return [
        str(round_.number),
        budget or "none",
        round_.status + gap,
        number(round_.measured("chosen")),
        number(round_.measured("uniform")),
        str(len(round_.scores)),
        agreement(round_),
        f"{round_.evaluations[-1].tokens:,}\nbest at {round_.kept_tokens:,}",
    ]


def _child(findings: Findings) -> str:
    """Where it lies and how to load it."""
    folder = str(findings.summary.child.resolve())
    snippet = opening_snippet(
        folder, needs_code=findings.needs_remote_code, has_tokenizer=findings.has_tokenizer
    )
    note = (
        "Its blocks differ, so the folder brings two short Python files of fretsaw’s; "
        "<code>trust_remote_code=True</code> lets transformers run them."
        if findings.needs_remote_code
        else "All its blocks of a kind are alike: transformers loads it without code of its own."
    )
    code = escape(snippet)
    return f"<p><code>{escape(folder)}</code></p><pre>{code}</pre><p class='note'>{note}</p>"


def _making(findings: Findings) -> str:
    versions = ", ".join(f"{name} {v}" for name, v in findings.versions.items())
    facts = {
        "parent": findings.parent,
        "run folder": str(findings.summary.run),
        "peak memory": _peak(findings.summary),
        "versions": versions,
        **{f"{text.split} text": str(text) for text in findings.summary.text},
    }
    listed_facts = "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    recipe = f"<summary>Recipe, resolved</summary><pre>{escape(findings.recipe)}</pre>"
    return (
        f"{_seconds_table(findings.rounds)}<dl class='facts'>{listed_facts}</dl>"
        f"<details>{recipe}</details>"
    )


def _peak(summary: Summary) -> str:
    if not summary.peak_bytes:
        return "not kept by the version of fretsaw that made this run"
    place = max(summary.peaks, key=summary.peaks.__getitem__)
    return f"{format_bytes(summary.peak_bytes)} resident, {place}"


def _seconds_table(rounds: Sequence[RoundFindings]) -> str:
    stages = list(dict.fromkeys(stage for r in rounds for stage in r.seconds))
    columns = ("stage", *(f"round {r.number}" for r in rounds), "all")
    rows = [_seconds_row(stage, [r.seconds.get(stage, 0.0) for r in rounds]) for stage in stages]
    rows.append(_seconds_row("all", [sum(r.seconds.values()) for r in rounds]))
    return table(columns, rows, name="Time by stage", marked=[len(stages)])


def _seconds_row(name: str, seconds: Sequence[float]) -> list[str]:
    return [name, *(format_seconds(s) for s in (*seconds, sum(seconds)))]
