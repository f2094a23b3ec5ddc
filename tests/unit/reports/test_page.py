"""The page: whole, offline, escaped, and with the right numbers."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fretsaw.reports.heatmap import choice_svg
from fretsaw.reports.page import report_page, summary_csv
from fretsaw.reports.summary import ServingLine
from tests.unit.reports.example import BLOCKS, FINDINGS, SUMMARY

VOID = {"meta", "br", "link", "img"}
FIVE_MB = 5_000_000


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects links and text outside of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.stack.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]
        self.ids += [v or "" for k, v in attrs if k == "id"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.stack) and data.strip():
            self.text.append(data.strip())


@pytest.fixture(scope="module")
def page() -> str:
    return report_page(FINDINGS, choice=choice_svg(BLOCKS, num_rounds=2))


@pytest.fixture(scope="module")
def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def test_page_is_whole(page: str, read: Reader) -> None:
    assert page.startswith("<!doctype html>")
    assert read.stack == []
    assert len(read.ids) == len(set(read.ids))
    assert len(page.encode()) < FIVE_MB


def test_page_needs_no_other_file(page: str, read: Reader) -> None:
    assert set(read.links) == {
        "summary.csv",
        "summary.json",
        "choice.svg",
        "healing.svg",
        "additivity.svg",
    }
    assert page.count("plotly.js v") == 1
    assert "@import" not in page


def test_page_shows_the_numbers(read: Reader) -> None:
    for value in (
        "round 2 healed",
        "0.1777",
        "86.6%",
        "700k",
        "70.0%",
        "2 min 41 s",
        "1.4 GiB resident, of the last process",
    ):
        assert value in read.text
    for value in ("moe_params ≤ 75%, state_bytes ≤ 75%", "feasible, gap 1.30%"):
        assert value in read.text
    for value in ("4 choices, Spearman 0.99", "120,000, best at 60,000"):
        assert value in read.text


def test_page_escapes_what_it_is_given(page: str) -> None:
    assert "<demo>" not in page
    assert "/runs/&lt;demo&gt;/round-2/08-distill/child" in page
    assert "models/parent &amp; co" in page


def test_page_has_no_nan(page: str) -> None:
    figures = page.split("</script>", 1)[1]
    assert not re.search(r"\b(nan|infinity)\b", figures, re.IGNORECASE)


def test_page_draws_its_figures(page: str) -> None:
    for name in ("healing", "scores", "additivity"):
        assert f'id="figure-{name}"' in page
    assert "block 2, experts (MoE)" in page


def test_snippet_is_python_that_trusts_only_if_it_must(read: Reader) -> None:
    (snippet,) = [text for text in read.text if text.startswith("from transformers")]
    compile(snippet, "snippet", "exec")
    assert snippet.count("trust_remote_code=True") == snippet.count("from_pretrained") == 2


def test_snippet_for_equal_blocks_without_tokenizer() -> None:
    plain = replace(FINDINGS, needs_remote_code=False, has_tokenizer=False)
    text = report_page(plain, choice="").split("</script>", 1)[1]
    assert "trust_remote_code" not in text
    assert "AutoTokenizer" not in text


def test_page_without_measured_choices() -> None:
    rounds = tuple(replace(r, swapped=(), spearman=None) for r in FINDINGS.rounds)
    assert "No whole choice was measured" in report_page(
        replace(FINDINGS, rounds=rounds), choice=""
    )


def test_csv_has_every_figure_in_full() -> None:
    rows = list(csv.DictReader(io.StringIO(summary_csv(SUMMARY))))
    assert [row["name"] for row in rows] == [line.name for line in SUMMARY.lines]
    assert float(rows[-1]["kl"]) == 0.1777
    assert float(rows[-1]["state_bytes"]) == 24576


def test_speeds_that_were_asked_for_stand_on_the_page() -> None:
    line = ServingLine("speedup 1.3, <8k>/64k", 1.3, 1.31, 1.28)
    findings = replace(
        FINDINGS,
        summary=replace(SUMMARY, serving=(line,)),
        rounds=tuple(replace(r, serving=("speedup 1.3",)) for r in FINDINGS.rounds),
    )
    page = report_page(findings, choice=choice_svg(BLOCKS, num_rounds=2))
    told = "asked 1.3x, predicted 1.31x, measured 1.28x (speedup 1.3, &lt;8k&gt;/64k)"
    assert told in page
    assert "served: speedup 1.3" in page
    assert "Served" not in report_page(FINDINGS, choice=choice_svg(BLOCKS, num_rounds=2))
