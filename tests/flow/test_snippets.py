"""Every Python snippet of the pages that a run writes, run as it stands, with nobody to ask."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from fretsaw.stages.quantize import QuantizeOptions, quantize
from tests.flow.conftest import Finished
from tests.flow.pico_run import QUIET, write_text
from tests.pico import write_pico_checkpoint

RUNNER = """
import json, os, sys
import torch, transformers
failed = 0
for place, code in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        os.chdir(place)
        exec(compile(code, place, "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
sys.exit(failed)
"""
"""Imports once, then a process for each snippet, in the folder of its page."""


def snippets(page: Path) -> Iterator[str]:
    """Blocks of Python in a Markdown or HTML page."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        yield from re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        return
    blocks = (unescape(b) for b in re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL))
    yield from (b for b in blocks if re.search(r"^(from|import) ", b, re.MULTILINE))


@pytest.fixture(scope="module")
def pages(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of a run (unequal blocks), of its child in 4 bits, and of a plain parent in 8."""
    folder = tmp_path_factory.mktemp("quantised")
    write_pico_checkpoint(folder / "parent", seed=1)
    few = {"sequences": 4, "sequence_length": 32, "min_tokens": 1}
    options = QuantizeOptions(text=write_text(folder / "text"), to="fp8", **few)
    for name, source in {"unequal": finished.summary.child, "equal": folder / "parent"}.items():
        quantize(source, out=folder / name, options=options, reporter=QUIET)
    return [
        finished.out / "report" / "index.html",
        finished.summary.child / "WHO_CAN_LOAD.md",
        folder / "unequal" / "WHO_CAN_LOAD.md",
        folder / "equal" / "WHO_CAN_LOAD.md",
    ]


def test_u2_every_snippet_of_a_page_runs_and_asks_nobody(pages: list[Path], tmp_path: Path) -> None:
    found = [(str(page.parent), code) for page in pages for code in snippets(page)]
    assert len(found) == len(pages), "one in each"
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "HF_HOME"}}
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUNNER, json.dumps(found)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=kept | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[y/N]" not in done.stdout + done.stderr
    assert len([line for line in done.stdout.splitlines() if "history" in line]) == len(pages)
