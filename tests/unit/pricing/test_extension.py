import numpy as np
import pytest

from fretsaw.pricing.extension import LONGEST, extended


def test_a_table_without_a_model_stays_as_it_is():
    axes = {"outputs": [1.0, 2.0]}
    new_axes, seconds, modelled = extended("gemm fp8", axes=axes, seconds=np.array([1.0, np.nan]))
    assert new_axes == axes
    assert np.isnan(seconds[1])
    assert not modelled.any()


def test_experts_go_on_along_lines_and_say_so():
    axes = {"ffn": [200.0, 400.0], "expert": [8.0], "tokens": [1.0, 8.0, 16.0]}
    cells = np.array([[[5.0, 6.0, 7.0]], [[6.0, 8.0, 10.0]]])
    new_axes, seconds, modelled = extended("experts fp8 64 2 8", axes=axes, seconds=cells)
    assert new_axes["ffn"] == [25.0, 200.0, 400.0]
    assert new_axes["tokens"] == [1.0, 8.0, 16.0, 64.0]
    assert np.array_equal(seconds[1:, :, :3], cells)
    assert not modelled[1:, :, :3].any()
    assert modelled[0].all()
    assert modelled[..., 3].all()
    assert seconds[1, 0, 3] == pytest.approx(7.0 + 48 * (7.0 - 6.0) / 8)


def test_a_narrower_expert_is_on_the_line_of_the_two_above_or_at_the_floor():
    axes = {"ffn": [200.0, 400.0], "expert": [8.0], "tokens": [1.0, 8.0, 16.0]}
    cells = np.array([[[5.0, 6.0, 27.0]], [[6.0, 8.0, 35.0]]])
    _, seconds, _ = extended("experts fp8 64 2 8", axes=axes, seconds=cells)
    assert seconds[0, 0].tolist()[:2] == [5.0, 5.0]  # 4.1 and 4.25 by the lines
    assert seconds[0, 0, 2] == pytest.approx(27 - 8 * 175 / 200)


def test_longer_contexts_take_what_more_sequences_take():
    axes = {
        "q_per_kv": [1.0],
        "kv_heads": [1.0],
        "kept": [2.0**16, 2.0**17],
        "sequences": [1.0, 2.0, 4.0, 8.0, 16.0],
    }
    cells = np.array([[[[1.0, 2.0, 4.0, np.nan, np.nan], [2.1, 4.2, np.nan, np.nan, np.nan]]]])
    new_axes, seconds, modelled = extended("attention fp8 128", axes=axes, seconds=cells)
    assert new_axes["kept"][-1] == LONGEST
    assert np.isnan(cells[0, 0, 1, 2])
    assert seconds[0, 0, 1, 2] == pytest.approx(8.4)
    assert seconds[0, 0, 2, 0] == 4.2
    assert seconds[0, 0, 2, 1] == pytest.approx(8.4)
    assert np.isfinite(seconds).all()
    assert modelled.sum() == modelled.size - 5


def test_a_spike_is_cut_to_the_time_of_more_work_and_marked():
    axes = {"ffn": [200.0, 400.0], "expert": [8.0], "tokens": [1.0, 2.0, 4.0]}
    cells = np.array([[[9.0, 2.02, 2.0]], [[3.0, np.nan, 4.0]]])
    _, seconds, modelled = extended("experts fp8 64 2 8", axes=axes, seconds=cells)
    assert seconds[1, 0, :3].tolist() == [2.0, 2.0, 2.0]
    assert seconds[2, 0, 0] == 3.0
    assert np.isnan(seconds[2, 0, 1])
    assert modelled[1, 0, :3].tolist() == [True, False, False]
    assert not modelled[2, 0, :3].any()
