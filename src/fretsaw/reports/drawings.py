"""Figures as they stand in a page: in two widths, with their data as tables."""

from __future__ import annotations

from html import escape

from fretsaw.reports.figures import KIND_WORDS, additivity_svg, healing_svg
from fretsaw.reports.findings import BlockForm, Findings, RoundFindings
from fretsaw.reports.heatmap import WORDS, Row, choice_svg, depth, shown_rows
from fretsaw.reports.html import chart, scrolling, table
from fretsaw.reports.sensitivity import scores_svg
from fretsaw.reports.svg import NARROW, WIDE, number, share


def healing_chart(findings: Findings) -> str:
    """KL and loss over healing tokens."""
    wide, narrow = (
        healing_svg(findings.rounds, parent_loss=findings.parent_loss, canvas=canvas)
        for canvas in (WIDE, NARROW)
    )
    columns = ("round", "tokens", "KL", "loss", "KL in training", "kept")
    rows = [
        [
            str(r.number),
            f"{e.tokens:,}",
            f"{e.kl:.4f}",
            f"{e.loss:.4f}",
            "–" if e.train_kl is None else f"{e.train_kl:.4f}",
            "kept" if e == r.kept else "",
        ]
        for r in findings.rounds
        for e in r.evaluations
    ]
    return chart(wide, narrow, name="Cut and heal", table=table(columns, rows, name="Evaluations"))


def scores_chart(findings: Findings) -> str:
    """Scores by block."""
    wide, narrow = (
        scores_svg(findings.rounds, findings.blocks, canvas=canvas) for canvas in (WIDE, NARROW)
    )
    columns = ("round", "block", "kind", "chosen", "its score", "variants", "least", "most")
    rows = [row for r in findings.rounds for row in _score_rows(r, findings)]
    data = table(columns, rows, name="Scores by round and block", num_words=4)
    return chart(wide, narrow, name="Where the network is sensitive", table=data)


def _score_rows(round_: RoundFindings, findings: Findings) -> list[list[str]]:
    by_block: dict[int, list[tuple[float, str, bool]]] = {}
    for one in round_.scores:
        by_block.setdefault(one.block, []).append((one.score, one.key, one.is_chosen))
    return [
        [
            str(round_.number),
            str(block),
            WORDS[findings.blocks[block].original.mixer],
            *next(((key, number(s)) for s, key, is_chosen in found if is_chosen), ("", "")),
            str(len(found)),
            number(min(found)[0]),
            number(max(found)[0]),
        ]
        for block, found in sorted(by_block.items())
    ]


def additivity_chart(findings: Findings) -> str:
    """Whole choices, predicted and measured."""
    if not any(r.swapped for r in findings.rounds):
        return "<p>No whole choice was measured.</p>"
    wide, narrow = (additivity_svg(findings.rounds, canvas=canvas) for canvas in (WIDE, NARROW))
    columns = ("round", "choice", "predicted", "measured")
    rows = [
        [str(r.number), KIND_WORDS[s.kind], number(s.predicted), number(s.measured)]
        for r in findings.rounds
        for s in r.swapped
    ]
    data = table(columns, rows, name="Whole choices", num_words=2)
    return chart(wide, narrow, name="Can scores be summed?", table=data)


def choice_chart(findings: Findings) -> str:
    """What each block has kept: a map on wide screens, a line per block on narrow ones."""
    wide = choice_svg(findings.blocks, num_rounds=len(findings.rounds), canvas=WIDE)
    cells = choice_cells(findings)
    figure = chart(wide, "", name="What each block has kept", table=cells)
    return f"<div class='wide-screen'>{figure}</div><div class='narrow-screen'>{cells}</div>"


def choice_cells(findings: Findings) -> str:
    """The heat map as a table, a row per block of the original parent."""
    rows = shown_rows(findings.blocks)
    heads = "".join(f"<th scope='col' class='n'>{escape(row.label)}</th>" for row in rows)
    body = "".join(_block_row(form, rows) for form in findings.blocks)
    name = "What each block has kept, of the original parent"
    return scrolling(
        f"<table><caption>{name}</caption><thead><tr><th scope='col' class='w'>block</th>{heads}"
        f"</tr></thead><tbody>{body}</tbody></table>",
        name=name,
        css="long",
    )


def _block_row(form: BlockForm, rows: list[Row]) -> str:
    kind = WORDS[form.original.mixer]
    head = f"<th scope='row' class='w'>{form.index}<small>{escape(kind)}</small></th>"
    if form.is_gone:
        return f"<tr>{head}<td colspan='{len(rows)}'>gone</td></tr>"
    return f"<tr>{head}{''.join(_block_cell(form, row) for row in rows)}</tr>"


def _block_cell(form: BlockForm, row: Row) -> str:
    if not row.has(form):
        return "<td class='n'>–</td>"
    kept = row.kept(form)
    words = share(kept) if row.is_share else f"{form.current.values[row.names[0]]:,}"
    small = "" if row.is_share else f"<small>{share(kept)}</small>"
    return f"<td class='n kept' style='--depth:{depth(kept):.2f}'><i></i><b>{words}{small}</b></td>"
