"""The measured table: rows, resume, interpolation, refusal, and the points worth measuring."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from fretsaw.core.shape import Block, ModelShape
from fretsaw.errors import RunError
from fretsaw.pricing.kernels import Step
from fretsaw.pricing.measure import (
    Conditions,
    MeasuredRow,
    MeasuredTable,
    Part,
    append_measurement,
    points_to_measure,
)

HERE = Conditions("a cpu", 1, "float32", 1000, "2.13", "5.24")
MOE = Block("moe", {"hidden": 8, "expert": 16, "ffn": 32}, {"top_k": 4})


def bilinear(block: Block, step: Step) -> float:
    """Seconds that multilinear interpolation must give back exactly, with products of axes."""
    ffn, top_k = block.values["ffn"], block.values["top_k"]
    return 1e-3 + 1e-4 * step.sequences * (1 + ffn) * top_k + 1e-6 * step.context * step.sequences


def row(block: Block, step: Step, *, seconds: float | None = None) -> MeasuredRow:
    value = bilinear(block, step) if seconds is None else seconds
    return MeasuredRow(Part.of_block(block), step, HERE, value, 0.0)


def table_over(
    *, ffns: tuple[int, ...], top_ks: tuple[int, ...], sequences: tuple[int, ...] = (1, 8)
) -> MeasuredTable:
    grid = product(ffns, top_ks, sequences, (0.0, 100.0))
    return MeasuredTable(
        [
            row(MOE.with_values({"ffn": f, "top_k": k}), Step(n, 1, context))
            for f, k, n, context in grid
        ],
        HERE,
    )


@pytest.mark.parametrize(
    ("ffn", "top_k", "sequences", "context"),
    [(16, 2, 1, 0), (24, 3, 4.5, 50), (32, 4, 8, 100), (17, 4, 1, 99)],
)
def test_between_measured_points_it_is_multilinear(
    ffn: int, top_k: int, sequences: float, context: float
) -> None:
    table = table_over(ffns=(16, 32), top_ks=(2, 4))
    block = MOE.with_values({"ffn": ffn, "top_k": top_k})
    step = Step(sequences, 1, context)
    assert table.block_seconds(block, step=step) == pytest.approx(bilinear(block, step))


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ({"ffn": 8}, Step(1, 1, 0)),
        ({"ffn": 33}, Step(1, 1, 0)),
        ({"top_k": 5}, Step(1, 1, 0)),
        ({"hidden": 9}, Step(1, 1, 0)),
        ({}, Step(9, 1, 0)),
        ({}, Step(1, 1, 101)),
        ({}, Step(1, 128, 0)),
    ],
)
def test_outside_the_measured_points_it_refuses(values: dict[str, int], step: Step) -> None:
    table = table_over(ffns=(16, 32), top_ks=(2, 4))
    with pytest.raises(RunError, match="no measured time for moe"):
        table.block_seconds(MOE.with_values(values), step=step)


def test_the_refusal_says_what_was_measured() -> None:
    table = table_over(ffns=(16, 32), top_ks=(2, 4))
    with pytest.raises(RunError, match=r"16 points .*sequences 1, 8"):
        table.block_seconds(MOE, step=Step(64, 1, 0))
    with pytest.raises(RunError, match="nothing of its kind"):
        table.block_seconds(Block("mamba", {"hidden": 8}), step=Step(1, 1, 0))


def test_prefill_and_decode_are_never_mixed() -> None:
    rows = [row(MOE, Step(1, 1, 0)), row(MOE, Step(1, 128, 0))]
    with pytest.raises(RunError, match="no measured time"):
        MeasuredTable(rows, HERE).block_seconds(MOE, step=Step(1, 64, 0))


def test_a_point_of_another_grid_leaves_no_hole() -> None:
    grid = table_over(ffns=(16, 32), top_ks=(2, 4))
    lone = row(MOE.with_values({"ffn": 24, "top_k": 4}), Step(1, 1, 0))
    table = MeasuredTable([*grid.rows, lone], HERE)
    block = MOE.with_values({"ffn": 24, "top_k": 3})
    assert table.block_seconds(block, step=Step(4, 1, 0)) == pytest.approx(
        bilinear(block, Step(4, 1, 0))
    )


def test_of_several_measurements_the_steadiest_counts() -> None:
    step = Step(1, 1, 0)
    rows = [
        replace(row(MOE, step, seconds=seconds), spread_s=spread_s)
        for seconds, spread_s in ((1.0, 3.0), (90.0, 40.0), (2.0, 0.5), (2.5, 0.6))
    ]
    table = MeasuredTable(rows, HERE)
    assert table.block_seconds(MOE, step=step) == 2.0
    assert table.times_measured(Part.of_block(MOE), step=step) == 4


def test_a_model_is_the_sum_of_its_parts() -> None:
    step = Step(1, 1, 0)
    shape = ModelShape("nemotron_h", {"hidden": 8, "vocab": 64}, (MOE, Block("none"), MOE))
    rest = MeasuredRow(Part.of_rest(shape), step, HERE, 5.0, 0.0)
    table = MeasuredTable([row(MOE, step, seconds=1.5), rest], HERE)
    assert table.step_seconds(shape, step=step) == 5.0 + 2 * 1.5
    with pytest.raises(RunError, match="fixed"):
        table.fixed_seconds(replace(shape, sizes={"hidden": 8, "vocab": 65}), step=step)


def test_rows_come_back_and_a_torn_line_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "measured.jsonl"
    assert MeasuredTable.read(file, HERE).rows == []
    first, second = row(MOE, Step(1, 1, 0)), row(MOE, Step(8, 1, 0))
    append_measurement(file, first)
    append_measurement(file, second)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    assert MeasuredTable.read(file, HERE).rows == [first]
    append_measurement(file, second)
    assert file.read_bytes() == whole
    assert MeasuredTable.read(file, HERE).rows == [first, second]


@pytest.mark.parametrize(
    "other",
    [
        replace(HERE, threads=2),
        replace(HERE, cpu="another"),
        replace(HERE, torch="2.14"),
        replace(HERE, transformers="5.25"),
        replace(HERE, dtype="bfloat16"),
        replace(HERE, working_set_bytes=1),
    ],
)
def test_other_conditions_see_nothing(tmp_path: Path, other: Conditions) -> None:
    file = tmp_path / "measured.jsonl"
    append_measurement(file, row(MOE, Step(1, 1, 0)))
    assert MeasuredTable.read(file, other).rows == []


@pytest.mark.parametrize("damage", ['"seconds": 0.0', '"seconds": NaN', '"time": 1.0'])
def test_a_damaged_row_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "measured.jsonl"
    append_measurement(file, row(MOE, Step(1, 1, 0), seconds=0.5))
    file.write_text(file.read_text().replace('"seconds": 0.5', damage))
    with pytest.raises(RunError, match="line 1 is damaged"):
        MeasuredTable.read(file, HERE)


def test_few_points_enclose_a_library() -> None:
    library = [
        MOE.with_values({"ffn": ffn, "top_k": top_k})
        for ffn in (16, 20, 24, 28, 32)
        for top_k in (1, 2, 3, 4)
    ]
    points = points_to_measure([*library, Block("none"), *library])
    assert len(points) == 3 * 3
    assert {(p.values["ffn"], p.values["top_k"]) for p in points} == set(
        product((16, 24, 32), (1, 2, 4))
    )
    step = Step(1, 1, 0)
    table = MeasuredTable([row(point, step) for point in points], HERE)
    for block in library:
        assert table.block_seconds(block, step=step) == pytest.approx(bilinear(block, step))


def test_few_blocks_are_measured_themselves() -> None:
    mamba = Block("mamba", {"hidden": 8, "state": 16})
    diagonal = [MOE.with_values({"ffn": 8 * n, "top_k": n}) for n in (1, 2, 3)]
    assert points_to_measure([*diagonal, mamba, mamba]) == [*diagonal, mamba]


def test_no_impossible_point_is_measured() -> None:
    blocks = [
        MOE.with_values({"expert": expert, "top_k": top_k, "ffn": ffn})
        for expert in (2, 4, 8, 16)
        for top_k in (1, 2, 3, 4)
        for ffn in (8, 16, 24, 32)
        if top_k <= expert
    ]
    points = points_to_measure(blocks, nodes=2)
    assert {(p.values["expert"], p.values["top_k"]) for p in points} == {(2, 1), (16, 1), (16, 4)}
