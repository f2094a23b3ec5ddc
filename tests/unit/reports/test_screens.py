"""The pages in a real browser: on a telephone and on a desk, by touch, keys and ear."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fretsaw.reports.comparison import ComparedRun, comparison_page
from fretsaw.reports.page import report_page
from tests.browser import Browser, find_chromium
from tests.unit.reports.example import FINDINGS, long_findings

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
PHONE, DESK = 390, 1280

OVERLAPS = """
(() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    if (!svg.getClientRects().length) continue;
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
    const boxes = texts.map(t => t.getBoundingClientRect());
    boxes.forEach((a, i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1)
        found.push(['outside', texts[i].textContent]);
      boxes.slice(i + 1).forEach((b, j) => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 0.5 && high > 3)
          found.push([texts[i].textContent, texts[i + 1 + j].textContent]);
      });
    });
  }
  return found;
})()
"""
OVERFLOWS = """
[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 0.5 && !e.closest('.scroll, pre, svg, .skip');
}).map(e => e.tagName + ' ' + e.className)
"""
SMALLEST = """
Math.min(...[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length)
  .map(t => t.getAttribute('font-size') * t.ownerSVGElement.getBoundingClientRect().width
    / t.ownerSVGElement.viewBox.baseVal.width))
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, folder=tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module", params=["short", "long"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    findings = FINDINGS if request.param == "short" else long_findings()
    file: Path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    file.write_text(report_page(findings), encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=[2, 7])
def comparison(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    others = [
        ComparedRun(f"runs/with-a-name-of-its-own-{i}", long_findings(num_rounds=i), "b")
        for i in range(1, request.param)
    ]
    file: Path = tmp_path_factory.mktemp("page") / "comparison.html"
    page = comparison_page([ComparedRun("<short>", FINDINGS, "a"), *others])
    file.write_text(page, encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [320, PHONE, 700, DESK])
def test_u23_nothing_is_wider_than_the_screen_and_no_words_collide(
    browser: Browser, page: Path, width: int
) -> None:
    assert_it_fits(browser, page, width=width)


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_u23_a_comparison_fits_as_well(browser: Browser, comparison: Path, width: int) -> None:
    assert_it_fits(browser, comparison, width=width)
    assert browser.run("document.querySelectorAll('.chart').length") == 1


def assert_it_fits(browser: Browser, page: Path, *, width: int) -> None:
    browser.open(page, width=width)
    assert browser.run("innerWidth") == width
    assert browser.run(OVERFLOWS) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OVERLAPS) == []
    assert browser.run(SMALLEST) > (7.5 if width == 320 else 8.5)
    assert browser.errors == []
    assert all(url.startswith("file:") for url in browser.requests)


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_u23_keys_reach_every_figure_table_and_mark(
    browser: Browser, page: Path, width: int
) -> None:
    browser.open(page, width=width)
    charts = browser.run(
        "[...document.querySelectorAll('.chart')].filter(c => c.getClientRects().length).length"
    )
    assert charts == (4 if width == DESK else 3)
    reached, seen = set(), set()
    for _ in range(120):
        browser.press("Tab")
        here = browser.run(
            "document.activeElement.tagName + '|' + (document.activeElement.dataset.name || "
            "document.activeElement.textContent.slice(0, 60))"
        )
        if here in seen:
            break
        seen.add(here)
        if browser.run("document.activeElement.classList.contains('chart')"):
            hint = browser.run("document.activeElement.querySelector('output').textContent")
            browser.press("ArrowRight")
            first = browser.run("document.activeElement.querySelector('output').textContent")
            browser.press("End")
            last = browser.run("document.activeElement.querySelector('output').textContent")
            assert len({hint, first, last}) == 3
            reached.add(here)
    assert len(reached) == charts
    assert any(one.startswith("SUMMARY|Data: Cut and heal") for one in seen)
    assert any(one.startswith("A|Skip") for one in seen)


def test_u23_a_tap_on_a_mark_tells_its_numbers(browser: Browser, page: Path) -> None:
    browser.open(page, width=PHONE)
    place = browser.run(
        "(() => { const chart = document.querySelector(\"[data-name='Cut and heal']\");"
        "const mark = [...chart.querySelectorAll('circle title')].map(t => t.parentNode)"
        ".filter(m => m.getClientRects().length).at(-1); mark.scrollIntoView({block: 'center',"
        "behavior: 'instant'}); const b = mark.getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2, mark.textContent]; })()"
    )
    browser.tap(place[0] + 3, place[1] + 3)
    told = browser.run("document.querySelector(\"[data-name='Cut and heal'] output\").textContent")
    assert told == place[2]


def test_u23_who_cannot_see_is_told_every_name(browser: Browser, page: Path) -> None:
    browser.open(page, width=DESK)
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    named = [
        (one["role"]["value"], one.get("name", {}).get("value", ""))
        for one in nodes
        if not one.get("ignored") and "role" in one
    ]
    roles = {role for role, _ in named}
    assert {"banner", "navigation", "main", "contentinfo", "heading", "table"} <= roles
    for role in ("image", "img", "region", "link", "table", "DisclosureTriangle"):
        assert all(name for found, name in named if found == role), role
    images = [name for role, name in named if role in {"image", "img"}]
    assert any("Round 1: KL" in name for name in images)


def test_u23_without_scripts_the_page_says_the_same(browser: Browser, page: Path) -> None:
    shown = []
    for has_script in (True, False):
        browser.open(page, width=PHONE, has_script=has_script)
        root = browser.send("DOM.getDocument")["root"]["nodeId"]
        node = browser.send("DOM.querySelector", nodeId=root, selector="main")["nodeId"]
        html = browser.send("DOM.getOuterHTML", nodeId=node)["outerHTML"]
        hints = re.findall(r"<output>(.*?)</output>", html)
        assert all(("arrow keys" in hint) == has_script for hint in hints)
        shown.append(re.sub(r"<output>.*?</output>|<[^>]+>", " ", html))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("is_dark", [False, True])
def test_u23_pictures_can_be_taken_light_and_dark(
    browser: Browser, page: Path, tmp_path: Path, is_dark: bool
) -> None:
    browser.open(page, width=PHONE, is_dark=is_dark)
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(5, 8, 13)" if is_dark else "rgb(245, 246, 248)")
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000
