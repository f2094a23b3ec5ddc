"""What is cited can be read by whoever has this repository: public pages, or pages that ship."""

import re
import subprocess
from pathlib import Path

import pytest

from fretsaw.core.engines import engine_named, engine_names

ROOT = Path(__file__).parents[2]
HIDDEN = re.compile(r"\b(facts|shared|cases)/[\w./-]*\.(md|csv)|/[s]hared/|\bcases? R\d\d")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, IsADirectoryError, FileNotFoundError):
        return ""


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_u9_no_file_cites_a_page_that_does_not_ship() -> None:
    citing = [str(path.relative_to(ROOT)) for path in tracked() if HIDDEN.search(text_of(path))]
    assert citing == []


@pytest.mark.parametrize(
    ("text", "is_hidden"),
    [
        ("see facts" + "/engines.md §2", True),
        ("cases" + " R31 (64 and 128)", True),
        ("../share" + "d/fact" + "s/serving-points.csv", True),
        ("mixer.shared_experts.up_proj", False),
        ("docs/engines.md, vLLM", False),
        ("facts about cases and shared experts", False),
    ],
)
def test_u9_what_counts_as_hidden(text: str, is_hidden: bool) -> None:
    assert bool(HIDDEN.search(text)) is is_hidden


@pytest.mark.parametrize("engine", engine_names())
def test_u9_every_source_of_an_engine_can_be_opened(engine: str) -> None:
    sheet = (ROOT / "src/fretsaw/data/engines" / f"{engine_named(engine).name}.toml").name
    known = {p.name.lower(): p for p in (ROOT / "src/fretsaw/data/engines").glob("*.toml")}
    text = known[sheet.lower()].read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (.*)$", (ROOT / "docs/engines.md").read_text(), re.MULTILINE))
    sources = re.findall(r'^\w*source = "(.*)"$', text, flags=re.MULTILINE)
    assert sources
    for source in sources:
        sections = re.findall(r"docs/engines\.md, ([\w.-]+(?: of Mamba)?)", source)
        assert sections or "https://" in source, source
        assert set(sections) <= headings, source
