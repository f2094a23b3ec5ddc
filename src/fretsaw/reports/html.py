"""The parts of a page: one file, no network, light and dark, by touch, keyboard and ear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import count

from fretsaw.reports import svg

SCRIPT = """
for (const chart of document.querySelectorAll('.chart')) {
  const output = chart.querySelector('output');
  const hint = 'Tap a mark for its numbers, or focus the figure and use the arrow keys.';
  let on = null;
  chart.tabIndex = 0;
  chart.setAttribute('role', 'group');
  chart.setAttribute('aria-label', chart.dataset.name + '. ' + hint);
  output.textContent = hint;
  const marks = () => [...chart.querySelectorAll('svg title')].map(t => t.parentNode)
    .filter(mark => mark.getClientRects().length);
  const show = mark => {
    if (on) on.classList.remove('on');
    on = mark;
    if (!mark) return;
    mark.classList.add('on');
    output.textContent = mark.querySelector('title').textContent;
  };
  const nearest = event => {
    let best = null, least = 24 * 24;
    for (const mark of marks()) {
      const box = mark.getBoundingClientRect();
      const inside = event.clientX >= box.left && event.clientX <= box.right
        && event.clientY >= box.top && event.clientY <= box.bottom;
      const dx = event.clientX - (box.left + box.right) / 2;
      const dy = event.clientY - (box.top + box.bottom) / 2;
      const far = inside ? -1 : dx * dx + dy * dy;
      if (far < least) { least = far; best = mark; }
    }
    return best;
  };
  chart.addEventListener('click', event => {
    const mark = event.target.closest('svg') && nearest(event);
    if (mark) show(mark);
  });
  chart.addEventListener('pointermove', event => {
    const mark = event.pointerType === 'mouse' && event.target.closest('svg') && nearest(event);
    if (mark && mark !== on) show(mark);
  });
  chart.addEventListener('keydown', event => {
    const steps = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1};
    const all = marks();
    if (event.target !== chart || !all.length) return;
    const here = all.indexOf(on);
    let next = null;
    if (event.key in steps) next = here < 0 ? 0 : here + steps[event.key];
    else if (event.key === 'Home') next = 0;
    else if (event.key === 'End') next = all.length - 1;
    else if (event.key === 'Escape') { show(null); output.textContent = hint; return; }
    else return;
    event.preventDefault();
    show(all[Math.max(0, Math.min(all.length - 1, next))]);
  });
}
"""
"""Details of a mark on tap, on hovering, and by arrow keys; without it the tables say the same."""

HINT = "The numbers of all marks are in the table below."
"""Of a page whose script does not run."""


def document(title: str, *, kind: str, contents: Iterable[Section], lead: str, foot: str) -> str:
    """A whole page.

    Args:
        title: Plain text.
        kind: What kind of page it is, over the title.
        contents: The sections in order.
        lead: HTML under the title.
        foot: Plain text at the end.
    """
    sections = list(contents)
    links = "".join(f"<li><a href='#{s.key}'>{escape(s.title)}</a></li>" for s in sections)
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)} – {escape(kind)}</title>",
            f"<style>{STYLE}</style></head><body>",
            "<a class='skip' href='#main'>Skip to the content</a>",
            f"<header><p>{escape(kind)}</p><h1>{escape(title)}</h1></header>",
            f"<nav aria-label='Contents'><ul>{links}</ul></nav>",
            f"<main id='main'>{lead}",
            *(s.html for s in sections),
            f"</main><footer>{escape(foot)}</footer><script>{SCRIPT}</script></body></html>\n",
        )
    )


class Section:
    """A part of a page with a heading of its own.

    Args:
        title: Plain text.
        content: HTML.
        note: HTML below it.
        css: A class.
    """

    def __init__(self, title: str, content: str, note: str = "", *, css: str = "") -> None:
        self.title = title
        self.key = "".join(c if c.isalnum() else "-" for c in title.lower()).strip("-")
        below = f"<p class='note'>{note}</p>" if note else ""
        head = f"<h2 id='{self.key}'>{escape(title)}</h2>"
        self.html = (
            f"<section class='{css}' aria-labelledby='{self.key}'>{head}{content}{below}</section>"
        )


def chart(wide: str, narrow: str, *, name: str, table: str = "") -> str:
    """A figure in two widths, the detail of its marks, and its data.

    Args:
        wide: SVG for wide screens.
        narrow: SVG, or HTML, for narrow ones.
        name: What it is, plain text.
        table: The data as a table.
    """
    data = f"<details><summary>Data: {escape(name)}</summary>{table}</details>" if table else ""
    return (
        f"<div class='chart' data-name={quoted(name)}>"
        f"<div class='wide-screen'>{wide}</div><div class='narrow-screen'>{narrow}</div>"
        f"<output>{HINT}</output></div>{data}"
    )


def quoted(text: str) -> str:
    """Text as an attribute's value."""
    return f'"{escape(text, quote=True)}"'


def scrolling(content: str, *, name: str, css: str = "") -> str:
    """What may be wider than the screen: it scrolls by itself, by keys too."""
    attributes = f"class='scroll {css}' tabindex='0' role='region' aria-label={quoted(name)}"
    return f"<div {attributes}>{content}</div>"


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    name: str,
    css: str = "",
    num_words: int = 1,
    marked: Iterable[int] = (),
) -> str:
    """A table that scrolls by itself, its first column staying; cells are escaped.

    Args:
        columns: Headings.
        rows: Cells as text; a second line, after a line break, is small.
        name: What it holds, plain text.
        css: A class.
        num_words: How many first columns are words; the others are numbers.
        marked: Rows that count most.
    """
    kinds = ["w"] * num_words + ["n"] * (len(columns) - num_words)
    head = "".join(
        f"<th scope='col' class='{k}'>{escape(c)}</th>" for k, c in zip(kinds, columns, strict=True)
    )
    marks, numbers = set(marked), count()
    body = "".join(_row(row, kinds, is_marked=next(numbers) in marks) for row in rows)
    return scrolling(
        f"<table class='{css}'><caption>{escape(name)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>",
        name=name,
    )


def _row(row: Sequence[str], kinds: Sequence[str], *, is_marked: bool) -> str:
    first, *others = (_cell(c) for c in row)
    cells = "".join(f"<td class='{k}'>{c}</td>" for k, c in zip(kinds[1:], others, strict=True))
    css = " class='marked'" if is_marked else ""
    return f"<tr{css}><th scope='row' class='{kinds[0]}'>{first}</th>{cells}</tr>"


def _cell(text: str) -> str:
    above, _, below = text.partition("\n")
    return escape(above) + (f"<small>{escape(below)}</small>" if below else "")


def listed(items: Iterable[str], *, css: str = "") -> str:
    """Plain texts as a list."""
    return f"<ul class='{css}'>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def tiles(facts: Iterable[tuple[str, str, str]]) -> str:
    """A few large numbers: what, value, and a few words more."""
    return (
        "<dl class='tiles'>"
        + "".join(
            f"<div><dt>{escape(what)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
            for what, value, more in facts
        )
        + "</dl>"
    )


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


STYLE = f"""
:root{{color-scheme:light dark;--back:#f5f6f8;{_variables(svg.LIGHT)}}}
@media(prefers-color-scheme:dark){{:root{{--back:#05080d;{_variables(svg.DARK)}}}}}
{svg.STYLE}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--back);color:var(--ink);font:15px/1.55 {svg.FONT}}}
header,nav,main,footer{{max-width:1040px;margin:0 auto;padding:0 20px}}
header{{padding-top:32px}} header p{{margin:0;color:var(--muted)}}
h1{{font-size:30px;line-height:1.2;margin:2px 0 10px;letter-spacing:-.01em;overflow-wrap:anywhere}}
h2{{font-size:18px;line-height:1.3;margin:0 0 14px;scroll-margin-top:12px}}
h3{{font-size:14px;margin:18px 0 6px}}
.skip{{position:absolute;left:-999px}} .skip:focus{{left:8px;top:8px;padding:8px 12px;z-index:2;
background:var(--paper);border:1px solid var(--blue);border-radius:6px}}
nav ul{{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:0 0 18px;padding:0;
font-size:13.5px}}
nav a{{display:inline-block;padding:5px 0}}
section{{background:var(--paper);border:1px solid var(--grid);border-radius:10px;
padding:22px 24px;margin:20px 0;min-width:0}}
.note,caption{{color:var(--muted);font-size:13px}} .note{{margin:12px 0 0;max-width:80ch}}
p{{max-width:80ch}} p:first-child{{margin-top:0}}
a{{color:var(--blue)}}
:focus-visible{{outline:2px solid var(--blue);outline-offset:2px}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:0}}
.tiles div{{background:var(--paper);border:1px solid var(--grid);border-radius:10px;
padding:12px 14px;min-width:0}}
.tiles dt{{color:var(--muted);font-size:12.5px}}
.tiles dd{{margin:0;font-size:24px;font-weight:600;line-height:1.3;
font-variant-numeric:tabular-nums}}
.tiles small{{font-size:12px;line-height:1.35}}
small{{display:block;font-size:11.5px;font-weight:400;color:var(--muted);line-height:1.3}}
.warnings li{{margin:4px 0;overflow-wrap:anywhere;max-width:90ch}}
.warnings{{padding-left:18px;margin:0}} .scroll+.warnings,details .warnings{{font-size:13.5px;
margin-top:10px}}
.alert{{border-left:4px solid var(--orange)}}
.chart{{border-radius:6px}} .chart svg{{display:block;width:100%;height:auto}}
.chart output{{display:block;min-height:2.9em;font-size:13px;line-height:1.45;color:var(--muted);
margin-top:8px;overflow-wrap:anywhere}}
.chart .on{{stroke:var(--ink);stroke-width:2.5px;paint-order:stroke}}
.narrow-screen{{display:none}}
.scroll{{overflow:auto;max-width:100%}} .scroll+.scroll,.warnings+.scroll{{margin-top:18px}}
table{{border-collapse:separate;border-spacing:0;width:100%;font-size:13.5px;
font-variant-numeric:tabular-nums}}
caption{{text-align:left;padding:0 0 6px;position:sticky;left:0}}
thead th{{color:var(--muted);font-weight:500;font-size:12.5px}}
th,td{{padding:6px 7px;border-bottom:1px solid var(--grid);white-space:nowrap;font-weight:400;
vertical-align:top}}
.w{{text-align:left}} .n{{text-align:right}}
td.w,.long thead th{{white-space:normal}} td.w{{min-width:11ch}}
th.w:first-child{{padding-left:0;position:sticky;left:0;background:var(--paper);z-index:1}}
th.n:last-child,td.n:last-child{{padding-right:0}}
tbody tr:last-child>*{{border-bottom:0}}
.marked>*{{font-weight:600}}
.long{{max-height:70vh}} .long thead th{{position:sticky;top:0;background:var(--paper);z-index:2}}
.kept{{position:relative}} .kept i{{position:absolute;inset:2px 0;background:var(--blue);
border-radius:3px;opacity:var(--depth)}} .kept b{{position:relative;font-weight:500}}
pre,code{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:13px}}
pre{{background:var(--back);border-radius:8px;padding:14px 16px;overflow-x:auto;margin:0}}
code{{overflow-wrap:anywhere}}
.samples{{display:grid;grid-template-columns:1fr 1fr;gap:10px 20px}}
.samples>*{{min-width:0;margin:0}} .samples h3,.samples .prompt{{grid-column:1/-1}}
.samples h3{{margin:14px 0 0}} .samples h3:first-child{{margin-top:0}}
.samples blockquote{{background:var(--back);border-radius:8px;padding:10px 12px}}
.samples blockquote p,.prompt{{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;font-size:14px}}
.samples cite{{display:block;font-style:normal;font-size:12.5px;color:var(--muted)}}
.facts{{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;margin:20px 0;
font-size:13.5px}}
.facts dt{{color:var(--muted)}} .facts dd{{margin:0;overflow-wrap:anywhere;min-width:0}}
details{{margin-top:12px}} summary{{cursor:pointer;padding:6px 0;font-size:13.5px}}
footer{{color:var(--muted);font-size:13px;padding-bottom:48px}}
@media(max-width:760px){{
header,nav,main,footer{{padding-left:10px;padding-right:10px}}
section{{padding:16px 12px;margin:14px 0}} h1{{font-size:24px}}
.wide-screen{{display:none}} .narrow-screen{{display:block;max-width:520px}}
.tiles{{grid-template-columns:1fr 1fr;gap:8px}} .tiles dd{{font-size:20px}}
.samples{{grid-template-columns:1fr}} .facts{{grid-template-columns:1fr;gap:0}}
tbody th.w{{white-space:normal;min-width:5em}}
.facts dd{{margin-bottom:8px}} nav a{{padding:8px 0}} summary{{padding:10px 0}}
}}
@media(prefers-reduced-motion:no-preference){{html{{scroll-behavior:smooth}}}}
@media print{{nav,.skip,.chart output{{display:none}} section{{break-inside:avoid}}}}
"""
