"""The page: whole, offline, escaped, and with the right numbers."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fretsaw.reports.evidence import NO_EVIDENCE
from fretsaw.reports.findings import SwappedModel, VariantScore
from fretsaw.reports.page import report_page, small, summary_csv
from fretsaw.reports.summary import RunWarning, ServingLine
from tests.unit.reports.example import EVIDENCE, FINDINGS, ROUNDS, SUMMARY

VOID = {"meta", "br", "link", "img"}
HALF_A_MB = 500_000


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects what readers of all kinds meet."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.stack.append(tag)
        self._note(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        self.tags.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.stack) and data.strip():
            self.text.append(data.strip())

    def of(self, tag: str) -> list[dict[str, str]]:
        """Attributes of all elements of a kind."""
        return [attributes for name, attributes in self.tags if name == tag]


def read_page(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


@pytest.fixture(scope="module")
def page() -> str:
    return report_page(FINDINGS)


@pytest.fixture(scope="module")
def read(page: str) -> Reader:
    return read_page(page)


def test_page_is_whole(page: str, read: Reader) -> None:
    assert page.startswith("<!doctype html>")
    assert read.stack == []
    assert len(page.encode()) < HALF_A_MB


def test_page_needs_no_other_file(page: str, read: Reader) -> None:
    files = {link for link in read.links if not link.startswith("#")}
    assert files == {"summary.csv", "summary.json", "choice.svg", "healing.svg", "additivity.svg"}
    assert {link[1:] for link in read.links if link.startswith("#")} <= set(read.ids)
    assert "@import" not in page
    assert not re.search(r"(src|href)=.https?:", page)


def test_u23_page_has_landmarks_headings_in_order_and_names(read: Reader) -> None:
    names = [name for name, _ in read.tags]
    assert read.of("html")[0]["lang"] == "en"
    for landmark in ("header", "nav", "main", "footer"):
        assert names.count(landmark) == 1
    levels = [int(name[1]) for name in names if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for section in read.of("section"):
        assert section["aria-labelledby"] in read.ids
    drawings = read.of("svg")
    assert len(drawings) == 7
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert len(drawing["aria-label"]) > 60, "its message, not its name alone"
    ids = [one for one in read.ids if one != "fs-hatch"]
    assert len(ids) == len(set(ids))


def test_u23_every_figure_has_its_data_as_a_table(read: Reader) -> None:
    summaries = [t for t in read.text if t.startswith("Data: ")]
    assert len(summaries) == 4
    for cell in ("0.4321", "0.2500", "equal blocks", "top_k=4", "12.5%"):
        assert cell in read.text
    assert all(one.get("scope") for one in read.of("th"))


def test_u23_page_tells_held_out_tokens_and_intervals(read: Reader) -> None:
    assert any("Held-out text: 8,192 tokens in 32 sequences" in text for text in read.text)
    spread = EVIDENCE.spread("round 2 healed")
    assert spread.kl is not None
    assert f"{spread.kl.low:.4f} … {spread.kl.high:.4f}" in read.text
    paired, alone = spread.loss_difference, spread.loss
    assert paired is not None
    assert alone is not None
    assert paired.high - paired.low < (alone.high - alone.low) / 5
    assert f"{paired.low:+.4f} … {paired.high:+.4f}" in read.text


def test_u23_page_shows_what_parent_and_child_say(page: str, read: Reader) -> None:
    assert read.text.count("parent, word for word the same") == 0
    assert "child, word for word the same" in read.text
    assert "is &amp; stays." in page
    assert "Once &lt;upon&gt;" in page


def test_u23_page_tells_speed_and_memory_on_a_stated_card(read: Reader) -> None:
    for text in ("Predicted for L40S: the smallest that holds it.", "1.50×", "0.70×"):
        assert text in read.text
    assert any("requests of 1k/1k tokens" in text for text in read.text)


def test_u23_page_compares_the_search_with_equal_blocks(read: Reader) -> None:
    for text in ("searched", "equal", "0.31", "0.47"):
        assert text in read.text


def test_u23_page_begins_with_warnings_and_what_is_missing() -> None:
    warned = replace(SUMMARY, warnings=(RunWarning("round 1 score", "a <b> is odd"),))
    missing = replace(NO_EVIDENCE, missing=("Not shown: text samples.",))
    unfinished = replace(FINDINGS, summary=warned, evidence=missing, num_planned=3)
    page = report_page(unfinished)
    text = read_page(page).text
    assert "round 1 score: a <b> is odd" in " ".join(text)
    assert "a &lt;b&gt; is odd" in page
    assert "Not shown: text samples." in text
    assert "The run is not finished: 2 of 3 rounds are shown." in text
    for absent in ("In its own words", "Speed and memory"):
        assert absent not in text
    assert "To know first" not in report_page(FINDINGS)


def test_page_shows_the_numbers(read: Reader) -> None:
    for value in ("round 2 healed", "0.1777", "86.6%", "700k", "70.0%", "2 min 41 s"):
        assert value in read.text
    for value in ("moe_params ≤ 75%, state_bytes ≤ 75%", "feasible, gap 1.30%"):
        assert value in read.text
    for value in ("4 choices, Spearman 0.99", "best at 60,000"):
        assert value in read.text


def test_page_escapes_what_it_is_given(page: str) -> None:
    assert "<demo>" not in page
    assert "/runs/&lt;demo&gt;/round-2/08-distill/child" in page
    assert "models/parent &amp; co" in page


def test_page_has_no_nan(page: str) -> None:
    figures = re.sub(r"<pre>.*?</pre>", "", page.partition("<script>")[0], flags=re.DOTALL)
    assert not re.search(r"\b(nan|inf|infinity)\b", figures, re.IGNORECASE)


def test_snippet_is_python_that_trusts_only_if_it_must(read: Reader) -> None:
    (snippet,) = [text for text in read.text if text.startswith("from transformers")]
    compile(snippet, "snippet", "exec")
    assert snippet.count("trust_remote_code=True") == snippet.count("from_pretrained") == 2


def test_snippet_for_equal_blocks_without_tokenizer() -> None:
    text = report_page(replace(FINDINGS, needs_remote_code=False, has_tokenizer=False))
    assert "trust_remote_code" not in text
    assert "AutoTokenizer" not in text


def test_page_without_measured_choices() -> None:
    rounds = tuple(replace(r, swapped=(), spearman=None) for r in FINDINGS.rounds)
    assert "No whole choice was measured" in report_page(replace(FINDINGS, rounds=rounds))


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
    page = report_page(findings)
    told = "asked 1.3x, predicted 1.31x, measured 1.28x (speedup 1.3, &lt;8k&gt;/64k)"
    assert told in page
    assert "served: speedup 1.3" in page
    assert "Served" not in report_page(FINDINGS)


def test_u23_numbers_that_are_none_break_neither_figures_nor_json() -> None:
    odd = (
        *ROUNDS[0].swapped,
        SwappedModel("random", 0.1, math.inf),
        SwappedModel("random", math.nan, 0.2),
    )
    scores = (*ROUNDS[0].scores, VariantScore(4, "ffn=1", math.inf, is_chosen=False))
    first = replace(ROUNDS[0], swapped=odd, scores=scores, spearman=math.nan)
    findings = replace(FINDINGS, rounds=(first, ROUNDS[1]))
    page = report_page(findings)
    assert read_page(page).stack == []
    assert not re.search(r"=.nan|,nan|nan,|inf,|,inf", page)
    data = json.loads(json.dumps(findings.to_json(), allow_nan=False))
    assert data["rounds"][0]["spearman"] is None
    assert data["rounds"][0]["whole_choices"][-2]["measured"] is None


@pytest.mark.parametrize(
    ("kl", "shown"),
    [
        (0.1777, "0.1777"),
        (0.0, "0.0000"),
        (0.0125, "0.0125"),
        (0.0007922, "0.000792"),
        (3e-7, "3·10⁻⁷"),
    ],
)
def test_u23_a_small_kl_keeps_its_figures(kl: float, shown: str) -> None:
    assert small(kl) == shown
