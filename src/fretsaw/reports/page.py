"""The page of a run: one HTML file that opens offline, light and dark."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from plotly.offline import get_plotlyjs

from fretsaw.core.units import format_bytes, format_count, format_seconds
from fretsaw.reports.figures import agreement
from fretsaw.reports.findings import Findings, RoundFindings
from fretsaw.reports.interactive import additivity_html, healing_html, scores_html
from fretsaw.reports.loaders import opening_snippet
from fretsaw.reports.summary import Summary, SummaryLine
from fretsaw.reports.svg import DARK, FONT, LIGHT

COLUMNS = (
    "model",
    "params",
    "trunk",
    "active",
    "routed",
    "state",
    "BF16",
    "loss",
    "KL",
    "agree",
    "tokens",
    "time",
)
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


def report_page(findings: Findings, *, choice: str) -> str:
    """The whole page.

    Args:
        findings: A finished run.
        choice: The heat map, SVG; it stands in the page as it is.

    Returns:
        An HTML document that needs no other file.
    """
    name = findings.summary.run.name
    healing = healing_html(findings.rounds, parent_loss=findings.parent_loss)
    sections = (
        _section("What was lost and what came back", _summary_table(findings.summary), FOOTNOTE),
        _served(findings.summary),
        _section("Rounds", _rounds_table(findings.rounds), ROUNDS_NOTE),
        _drawing(choice, CHOICE_NOTE),
        _section("Cut and heal", healing, HEALING_NOTE),
        _section(
            "Where the network is sensitive",
            scores_html(findings.rounds, findings.blocks),
            SCORES_NOTE,
        ),
        _section(
            "Can scores be summed?", additivity_html(findings.rounds) or NO_CHOICES, ADDITIVITY_NOTE
        ),
        _section("The child", _child(findings)),
        _section("How it was made", _making(findings)),
    )
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(name)} – fretsaw report</title>",
            f"<style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body><main>",
            f"<header><p>fretsaw report</p><h1>{escape(name)}</h1>{_tiles(findings)}</header>",
            *sections,
            f"<footer>finished {escape(findings.finished)}</footer></main></body></html>\n",
        )
    )


FOOTNOTE = (
    "Trunk, active, routed (parameters of the routed experts that one token uses) and state (of "
    "the Mamba blocks, per sequence): share of the parent. Loss, and KL from the parent, in nats "
    "per held-out token; agree: share of tokens with the parent’s greedy prediction; time: of the "
    "cut, then of the healing. <a href='summary.csv'>summary.csv</a> and "
    "<a href='summary.json'>summary.json</a> hold all figures."
)
SERVED_NOTE = (
    "Demands of the last round. Speed-ups are over the original parent in the same terms; "
    "measured: parent and child of the last cut in turn, on the machine of the run."
)
ROUNDS_NOTE = "Budgets are upper bounds on the whole model; percentages are of the original parent."
CHOICE_NOTE = "Rest the pointer on a cell for its numbers. <a href='choice.svg'>choice.svg</a>"
HEALING_NOTE = (
    "Held-out text, the teacher is always the original parent (dashed). A dotted line is a cut; "
    "training goes on from the best weights of the round before. "
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
NO_CHOICES = "<p>No whole choice was measured.</p>"


def _section(title: str, content: str, note: str = "") -> str:
    below = f"<p class='note'>{note}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{content}{below}</section>"


def _drawing(svg: str, note: str) -> str:
    return f"<section class='drawing'>{svg}<p class='note'>{note}</p></section>"


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, css: str = "", num_words: int = 1
) -> str:
    """A table whose first columns are words, the others numbers; cells are escaped."""
    kinds = ["w"] * num_words + ["n"] * (len(columns) - num_words)
    head = "".join(
        f"<th scope='col' class='{k}'>{escape(c)}</th>" for k, c in zip(kinds, columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td class='{k}'>{escape(c)}</td>" for k, c in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f"<div class='wide'><table class='{css}'><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _summary_table(summary: Summary) -> str:
    parent = summary.lines[0].costs
    return _table(COLUMNS, [_summary_row(line, parent) for line in summary.lines], css="models")


def _summary_row(line: SummaryLine, parent: Mapping[str, float]) -> list[str]:
    return [
        line.name,
        format_count(line.costs["params"]),
        *(_share(line.costs[name], parent[name]) for name in SHARES),
        format_bytes(line.costs["bytes_bf16"]),
        f"{line.loss:.4f}",
        f"{line.kl:.4f}",
        f"{line.agreement:.1%}",
        format_count(line.tokens) if line.tokens else "",
        format_seconds(line.seconds) if line.seconds else "",
    ]


def _served(summary: Summary) -> str:
    """Speeds that were asked for, predicted and measured; nothing where none was asked for."""
    if not summary.serving:
        return ""
    lines = "".join(f"<li>{escape(line.told())}</li>" for line in summary.serving)
    return _section("Served", f"<ul>{lines}</ul>", SERVED_NOTE)


def _share(cost: float, of: float) -> str:
    return f"{cost / of:.1%}" if of else "–"


def _tiles(findings: Findings) -> str:
    """The last child in a few large numbers."""
    lines = findings.summary.lines
    parent, child = lines[0], lines[-1]

    def share(cost: str) -> str:
        return _share(child.costs[cost], parent.costs[cost])

    sizes = f"{format_count(parent.costs['params'])} → {format_count(child.costs['params'])}"
    tiles = [
        ("parameters", share("params"), sizes),
        ("routed capacity", share("active_routed_params"), "per token"),
        ("Mamba state", share("state_bytes"), "per sequence"),
        ("same greedy token", f"{child.agreement:.1%}", "as the parent"),
        ("KL to the parent", f"{child.kl:.3f}", "nats per held-out token"),
        ("loss", f"{child.loss:.3f}", f"nats, parent {parent.loss:.3f}"),
    ]
    return (
        "<dl class='tiles'>"
        + "".join(
            f"<div><dt>{escape(what)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
            for what, value, more in tiles
        )
        + "</dl>"
    )


def _rounds_table(rounds: Sequence[RoundFindings]) -> str:
    columns = ("round", "budget", "search", "variants", "whole choices", "healing tokens")
    return _table(columns, [_round_row(r) for r in rounds], num_words=3)


def _round_row(round_: RoundFindings) -> list[str]:
    bounds = (f"{name} ≤ {value}" for name, value in round_.budget.items())
    budget = ", ".join((*bounds, *(f"served: {demand}" for demand in round_.serving)))
    gap = f", gap {round_.gap:.2%}" if round_.gap else ""
    return [
        str(round_.number),
        budget or "none",
        round_.status + gap,
        str(len(round_.scores)),
        agreement(round_),
        f"{round_.evaluations[-1].tokens:,}, best at {round_.kept_tokens:,}",
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
    peak = format_bytes(findings.summary.peak_bytes)
    versions = ", ".join(f"{name} {v}" for name, v in findings.versions.items())
    facts = (
        ("parent", findings.parent),
        ("run folder", str(findings.summary.run)),
        ("peak memory", f"{peak} resident, of the last process"),
        ("versions", versions),
    )
    listed = "".join(f"<dt>{what}</dt><dd>{escape(value)}</dd>" for what, value in facts)
    recipe = f"<summary>Recipe, resolved</summary><pre>{escape(findings.recipe)}</pre>"
    return (
        f"{_seconds_table(findings.rounds)}<dl class='facts'>{listed}</dl>"
        f"<details>{recipe}</details>"
    )


def _seconds_table(rounds: Sequence[RoundFindings]) -> str:
    stages = list(dict.fromkeys(stage for r in rounds for stage in r.seconds))
    columns = ("stage", *(f"round {r.number}" for r in rounds), "all")
    rows = [_seconds_row(stage, [r.seconds.get(stage, 0.0) for r in rounds]) for stage in stages]
    rows.append(_seconds_row("all", [sum(r.seconds.values()) for r in rounds]))
    return _table(columns, rows, css="seconds")


def _seconds_row(name: str, seconds: Sequence[float]) -> list[str]:
    return [name, *(format_seconds(s) for s in (*seconds, sum(seconds)))]


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


STYLE = f"""
:root{{color-scheme:light dark;--back:#f5f6f8;{_variables(LIGHT)}}}
@media(prefers-color-scheme:dark){{:root{{--back:#05080d;{_variables(DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--back);color:var(--ink);font:15px/1.55 {FONT}}}
main{{max-width:1040px;margin:0 auto;padding:40px 20px 64px}}
header p{{margin:0;color:var(--muted)}}
h1{{font-size:30px;line-height:1.2;margin:2px 0 20px;letter-spacing:-.01em}}
h2{{font-size:18px;margin:0 0 14px}}
section{{background:var(--paper);border:1px solid var(--grid);border-radius:10px;
padding:22px 24px;margin:20px 0}}
.drawing svg{{display:block;width:100%;height:auto}}
.drawing{{padding:8px 8px 22px}} .drawing .note{{margin:4px 16px 0}}
.note{{color:var(--muted);font-size:13px;margin:12px 0 0;max-width:80ch}}
a{{color:var(--blue)}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:0}}
.tiles div{{background:var(--paper);border:1px solid var(--grid);border-radius:10px;
padding:12px 14px}}
.tiles dt{{color:var(--muted);font-size:12.5px}}
.tiles dd{{margin:0;font-size:24px;font-weight:600;line-height:1.3;
font-variant-numeric:tabular-nums}}
.tiles small{{display:block;font-size:12px;font-weight:400;color:var(--muted);line-height:1.35}}
.wide{{overflow-x:auto}}
table{{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}}
th{{color:var(--muted);font-weight:500;font-size:12.5px}}
th,td{{padding:6px 7px;border-bottom:1px solid var(--grid);white-space:nowrap}}
.w{{text-align:left}} .n{{text-align:right}} th.w:first-child,td.w:first-child{{padding-left:0}}
th.n:last-child,td.n:last-child{{padding-right:0}}
tbody tr:last-child td{{border-bottom:0}}
.models tbody tr:nth-child(2n+1) td,.seconds tbody tr:last-child td{{font-weight:600}}
pre,code{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:13px}}
pre{{background:var(--back);border-radius:8px;padding:14px 16px;overflow-x:auto;margin:0}}
code{{overflow-wrap:anywhere}}
.facts{{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;margin:20px 0;
font-size:13.5px}}
.facts dt{{color:var(--muted)}} .facts dd{{margin:0;overflow-wrap:anywhere}}
details summary{{cursor:pointer;margin-bottom:10px}}
footer{{color:var(--muted);font-size:13px}}
.js-plotly-plot .infolayer text{{fill:var(--ink)!important}}
"""
