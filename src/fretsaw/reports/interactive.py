"""Figures of the page that answer to the pointer; plotly draws them, offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fretsaw.reports.figures import (
    KIND_WORDS,
    PREDICTED,
    agreement,
    log_scale,
    positive,
    quantities,
    y_scale,
)
from fretsaw.reports.findings import BlockForm, RoundFindings, VariantScore, healing_axis
from fretsaw.reports.heatmap import LETTERS, WORDS
from fretsaw.reports.svg import FONT, Scale, number

COLOURS = {"fs-blue": "#2f81d4", "fs-orange": "#d9731f", "fs-muted": "#848d97"}
"""As in the static figures, halfway between light and dark: plotly knows no colour scheme."""

SYMBOLS = {
    "random": ("circle", 7, COLOURS["fs-muted"]),
    "n-best": ("diamond", 10, COLOURS["fs-blue"]),
    "chosen": ("star", 14, COLOURS["fs-orange"]),
}
SCORE_WORDS = {
    "kl": "KL to the round's model,<br>nats per token",
    "loss": "next-token loss,<br>nats per token",
    "hidden": "mean rank of<br>the hidden error",
}
"""Metric -> what a score is."""

LEAST_SHOWN = 1e-4
"""Share of a round's largest score below which a score is noise of an unchanged block."""


def healing_html(rounds: Sequence[RoundFindings], *, parent_loss: float) -> str:
    """KL and loss over the healing tokens of all rounds, with the training KL beside."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.09)
    axis = healing_axis(rounds)
    for row, quantity in enumerate(quantities(parent_loss), start=1):
        colour = COLOURS[quantity.css]
        for stretch in axis:
            evaluations = stretch.round.evaluations
            figure.add_scatter(
                x=[stretch.start + e.tokens for e in evaluations],
                y=[quantity.of(e) for e in evaluations],
                name=f"round {stretch.round.number}",
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"size": 6},
                hovertemplate="%{y:.4f} after %{x:,} tokens",
                showlegend=False,
                row=row,
                col=1,
            )
            figure.add_vline(x=stretch.start, line=_rule("dot"), row=row, col=1)
        figure.add_hline(y=quantity.parent, line=_rule("dash"), row=row, col=1)
        scale, label = (
            y_scale(quantity, axis, start=0, end=1),
            quantity.label.replace(", ", ",<br>"),
        )
        figure.update_yaxes(range=[scale.low, scale.high], title_text=label, row=row, col=1)
    _add_training_kl(figure, rounds)
    figure.update_xaxes(title_text="healing tokens, all rounds", row=2, col=1)
    _legend_above(figure)
    return _html(figure, name="healing", height=500)


def _add_training_kl(figure: go.Figure, rounds: Sequence[RoundFindings]) -> None:
    points = [
        (stretch.start + e.tokens, e.train_kl)
        for stretch in healing_axis(rounds)
        for e in stretch.round.evaluations
    ]
    if not any(kl for _, kl in points):
        return
    figure.add_scatter(
        x=[tokens for tokens, _ in points],
        y=[kl for _, kl in points],
        name="on training text",
        mode="lines",
        line={"color": COLOURS["fs-muted"], "width": 1.5},
        hovertemplate="%{y:.4f} in training",
        row=1,
        col=1,
    )


def _rule(dash: str) -> dict[str, str | float]:
    return {"color": COLOURS["fs-muted"], "width": 1, "dash": dash}


def scores_html(rounds: Sequence[RoundFindings], blocks: Sequence[BlockForm]) -> str:
    """Score of every variant by block, a row of axes per round: where the network is sensitive."""
    titles = [f"round {r.number}" for r in rounds]
    figure = make_subplots(
        rows=len(rounds), cols=1, shared_xaxes=True, vertical_spacing=0.06, subplot_titles=titles
    )
    for row, round_ in enumerate(rounds, start=1):
        least = LEAST_SHOWN * max((s.score for s in round_.scores), default=0.0)
        shown = [s for s in round_.scores if s.score > least]
        _add_spans(figure, shown, row=row)
        chosen = [s for s in shown if s.is_chosen]
        others = [s for s in shown if not s.is_chosen]
        for scores, name, kind in ((others, "variant", "random"), (chosen, "chosen", "chosen")):
            symbol, size, colour = SYMBOLS[kind]
            figure.add_scatter(
                x=[s.block for s in scores],
                y=[s.score for s in scores],
                text=[
                    f"block {s.block}, {WORDS[blocks[s.block].original.mixer]}<br>{s.key}"
                    for s in scores
                ],
                name=name,
                mode="markers",
                marker={"symbol": symbol, "size": size, "color": colour},
                hovertemplate="%{text}<br>%{y:.4g}<extra></extra>",
                showlegend=row == 1,
                row=row,
                col=1,
            )
        scale = log_scale([s.score for s in shown] or [1.0], start=0, end=1, room=1.4)
        figure.update_yaxes(_log_axis(scale), title_text=SCORE_WORDS[round_.metric], row=row, col=1)
    figure.update_xaxes(
        tickvals=[form.index for form in blocks],
        ticktext=[f"{LETTERS[form.original.mixer]}<br>{form.index}" for form in blocks],
        range=[-0.7, len(blocks) - 0.3],
        showgrid=False,
        tickangle=0,
    )
    figure.update_xaxes(title_text="block of the original parent", row=len(rounds), col=1)
    _legend_above(figure)
    return _html(figure, name="scores", height=100 + 210 * len(rounds))


def _add_spans(figure: go.Figure, scores: Sequence[VariantScore], *, row: int) -> None:
    x: list[int | None] = []
    y: list[float | None] = []
    for block in sorted({s.block for s in scores}):
        values = [s.score for s in scores if s.block == block]
        x += [block, block, None]
        y += [min(values), max(values), None]
    line = {"color": COLOURS["fs-muted"], "width": 1.5}
    figure.add_scatter(
        x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, row=row, col=1
    )


def additivity_html(rounds: Sequence[RoundFindings]) -> str:
    """Predicted and measured KL of whole choices, a panel per round; empty if none was measured."""
    shown = [r for r in rounds if positive(r.swapped)]
    if not shown:
        return ""
    titles = [f"round {r.number}<br>{agreement(r)}" for r in shown]
    figure = make_subplots(rows=1, cols=len(shown), subplot_titles=titles, horizontal_spacing=0.1)
    for col, round_ in enumerate(shown, start=1):
        for kind, (symbol, size, colour) in SYMBOLS.items():
            points = [s for s in positive(round_.swapped) if s.kind == kind]
            figure.add_scatter(
                x=[s.predicted for s in points],
                y=[s.measured for s in points],
                name=KIND_WORDS[kind],
                legendgroup=kind,
                showlegend=col == 1,
                mode="markers",
                marker={"symbol": symbol, "size": size, "color": colour},
                hovertemplate="predicted %{x:.4g}<br>measured %{y:.4g}",
                row=1,
                col=col,
            )
        _scale_panel(figure, round_, col=col)
    figure.update_yaxes(title_text="measured KL, nats per token", row=1, col=1)
    figure.update_layout(legend={"x": 0, "xanchor": "left", "y": -0.2, "yanchor": "top"})
    return _html(figure, name="additivity", height=460, top=52)


def _scale_panel(figure: go.Figure, round_: RoundFindings, *, col: int) -> None:
    """Axes as in the static figure; where both have one unit, one range and an identity line."""
    points = positive(round_.swapped)
    predicted, measured = [s.predicted for s in points], [s.measured for s in points]
    if round_.metric == "kl":
        predicted = measured = predicted + measured
    x, y = (log_scale(values, start=0, end=1) for values in (predicted, measured))
    figure.update_xaxes(_log_axis(x), title_text=PREDICTED[round_.metric], row=1, col=col)
    figure.update_yaxes(_log_axis(y), row=1, col=col)
    if round_.metric == "kl":
        figure.add_scatter(
            x=[x.low, x.high],
            y=[x.low, x.high],
            mode="lines",
            line=_rule("dash"),
            name="measured as predicted",
            hoverinfo="skip",
            showlegend=col == 1,
            row=1,
            col=col,
        )


def _log_axis(scale: Scale) -> dict[str, Any]:
    ticks = scale.ticks(3)
    return {
        "type": "log",
        "range": [math.log10(scale.low), math.log10(scale.high)],
        "tickvals": ticks,
        "ticktext": [number(tick) for tick in ticks],
        "tickangle": 0,
    }


def _legend_above(figure: go.Figure) -> None:
    figure.update_layout(legend={"x": 1, "xanchor": "right", "y": 1.01, "yanchor": "bottom"})


def _html(figure: go.Figure, *, name: str, height: int, top: int = 40) -> str:
    faint = "rgba(132,141,151,0.22)"
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 76, "r": 16, "t": top, "b": 52},
        font={"family": FONT, "size": 12, "color": COLOURS["fs-muted"]},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h"},
        hoverlabel={"bgcolor": "#1f2328", "font": {"color": "#ffffff", "family": FONT}},
    )
    figure.update_annotations(font_size=12, yshift=4)
    axes = {"gridcolor": faint, "zeroline": False, "linecolor": COLOURS["fs-muted"]}
    figure.update_xaxes(**axes, title_font_size=12, title_standoff=10)
    figure.update_yaxes(**axes, title_font_size=12)
    return str(
        figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"figure-{name}",
            config={"displayModeBar": False, "responsive": True},
        )
    )
