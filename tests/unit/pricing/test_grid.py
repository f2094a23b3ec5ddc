import numpy as np
import pytest

from fretsaw.pricing.grid import Grid


def grid_of(seconds: list[list[float]], **keywords: object) -> Grid:
    cells = np.array(seconds)
    modelled = np.zeros(cells.shape, dtype=bool)
    axes = {"width": [10.0, 20.0], "tokens": [1.0, 4.0, 16.0]}
    return Grid(axes, cells, modelled, **keywords)  # type: ignore[arg-type]


MEASURED = [[1.0, 2.0, 4.0], [3.0, 6.0, 12.0]]


def test_nodes_come_back_as_they_are():
    grid = grid_of(MEASURED, log_axes=["tokens"])
    for row, width in zip(MEASURED, (10, 20), strict=True):
        for seconds, tokens in zip(row, (1, 4, 16), strict=True):
            answer = grid.at(width, tokens)
            assert answer is not None
            assert answer.seconds == seconds
            assert answer.is_measured


def test_a_power_law_along_a_log_axis_is_met_exactly():
    grid = grid_of(MEASURED, log_axes=["tokens"])
    answer = grid.at(10, 9)
    assert answer is not None
    assert answer.seconds == pytest.approx(9**0.5)


def test_an_affine_axis_is_met_exactly():
    answer = grid_of(MEASURED).at(12.5, 4)
    assert answer is not None
    assert answer.seconds == pytest.approx(3.0)


@pytest.mark.parametrize("point", [(9.9, 4), (20.1, 4), (10, 0.5), (10, 16.1)])
def test_nothing_is_said_outside_the_hull(point):
    assert grid_of(MEASURED).at(*point) is None


def test_a_floored_axis_stays_at_its_first_node_below_it():
    answer = grid_of(MEASURED, floored_axes=["tokens"]).at(20, 0.01)
    assert answer is not None
    assert answer.seconds == 3.0


def test_a_cell_that_is_not_known_is_needed_only_off_its_neighbours():
    grid = grid_of([[1.0, 2.0, np.nan], MEASURED[1]])
    assert grid.at(10, 8) is None
    assert grid.at(15, 16) is None
    assert grid.at(10, 4) is not None
    assert grid.at(20, 16) is not None


def test_a_modelled_cell_marks_what_is_made_of_it():
    grid = grid_of(MEASURED)
    grid.modelled[1, 2] = True
    between, beside = grid.at(15, 8), grid.at(15, 3)
    assert between is not None
    assert beside is not None
    assert not between.is_measured
    assert beside.is_measured


def test_the_floor_is_the_least_time():
    assert grid_of([[1.0, 0.5, np.nan], MEASURED[1]]).floor == 0.5
