"""docs/cost-model.md says what the data say."""

import re
from pathlib import Path

import pytest

from fretsaw.core.hardware import hardware_named, hardware_names
from fretsaw.pricing.provider import engine_model

PAGE = (Path(__file__).parents[2] / "docs" / "cost-model.md").read_text(encoding="utf-8")


def rows(first: str) -> list[list[str]]:
    """Cells of the lines whose first cell matches."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("|")]
    return [cells for cells in lines if re.fullmatch(first, cells[0])]


@pytest.mark.parametrize("hardware", hardware_names())
def test_every_constant_stands_with_its_value_and_source(hardware: str) -> None:
    model = engine_model(hardware_named(hardware), "vllm")
    own = {cells[0]: cells for cells in rows("`.*`") if cells[1] == f"{hardware}, vllm"}
    general = {cells[0]: cells for cells in rows("`.*`") if cells[1] == "any"}
    for name, value in vars(model.constants).items():
        _, _, stated, source = (own if model.is_calibrated else {}).get(
            f"`{name}`", general[f"`{name}`"]
        )
        if hardware in {"H200", "GB200"} and value != float(stated):
            continue  # theirs are those of H100 and B200, as the page says below the table
        assert float(stated) == value, name
        assert source == model.sources[name]


@pytest.mark.parametrize("hardware", hardware_names())
def test_every_data_sheet_stands_there(hardware: str) -> None:
    known = hardware_named(hardware)
    ((_, memory, bandwidth, rates, link, board),) = rows(hardware)
    assert float(memory) == pytest.approx(known.memory_bytes / 2**30, abs=0.01)
    assert float(bandwidth) * 1e12 == pytest.approx(known.memory_bytes_per_s)
    assert float(link) * 1e9 == pytest.approx(known.link_bytes_per_s)
    assert float(board) == known.board_power_w
    stated = dict(word.split() for word in rates.split(", "))
    assert {fmt: float(rate) for fmt, rate in stated.items()} == pytest.approx(
        {fmt: rate / 1e12 for fmt, rate in known.flops_per_s.items()}, rel=1e-3
    )
