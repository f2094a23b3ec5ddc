from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest

from fretsaw.core.hardware import Layout
from fretsaw.core.precision import preset
from fretsaw.core.shape import Block
from fretsaw.errors import RecipeError
from fretsaw.pricing.blocks import block_kernels
from fretsaw.pricing.kernels import Kernel, Step, Timing, gemm
from fretsaw.pricing.lookup import BEST_FIRST, TableTimer, backends, best_timer, load_tables

HARDWARE = [(name, backend) for name in BEST_FIRST for backend in BEST_FIRST[name]]
WITH_FFN_1344 = [
    ("b200_sxm", "sglang", "nvfp4", 0.03, 0.16),
    ("h100_sxm", "trtllm", "fp8", 0.02, 0.09),
    ("h200_sxm", "trtllm", "fp8", 0.03, 0.09),
]
SUPER = (
    Block(
        "mamba",
        {
            "hidden": 4096,
            "mamba_head": 128,
            "mamba_dim": 64,
            "group": 8,
            "state": 128,
            "kernel": 4,
        },
    ),
    Block(
        "moe",
        {"hidden": 4096, "latent": 1024, "ffn": 2688, "expert": 512, "shared_ffn": 5376},
        {"top_k": 22},
    ),
    Block("attention", {"hidden": 4096, "kv_head": 2, "q_per_kv": 16, "head_dim": 128}),
)


@dataclass
class Elsewhere:
    """A timer that can be told from a table."""

    asked: list[str] = field(default_factory=list)

    def time(self, kernel: Kernel) -> Timing:
        self.asked.append(kernel.operation)
        return Timing(1.0, "compute", "roofline")


def timer(hardware: str = "b200_sxm", backend: str = "sglang") -> TableTimer:
    return TableTimer(load_tables(hardware, backend=backend), fallback=Elsewhere())


def experts(fmt: str = "nvfp4", **sizes: float) -> Kernel:
    known = {"tokens": 16, "top_k": 22, "expert": 512, "experts": 512, "hidden": 1024, "ffn": 2688}
    return Kernel("experts", "experts", number_format=fmt, sizes=known | sizes)


def attention(**sizes: float) -> Kernel:
    known = {"sequences": 8, "tokens": 1, "context": 8191, "heads": 32, "kv_heads": 2}
    return Kernel(
        "attention", "attention", number_format="fp8", sizes=known | {"head_dim": 128} | sizes
    )


@pytest.mark.parametrize(
    ("kernel", "microseconds"),
    [
        # Rows of aiconfigurator-core 0.12.0: b200_sxm, sglang 0.5.14.
        (experts(tokens=1), 25.1),
        (experts(), 127.7),
        (experts(tokens=1024), 354.5),
        (experts(ffn=1344, tokens=128), 139.6),
        (experts(expert=64, tokens=16), 40.2),
        (attention(heads=16, kv_heads=1, sequences=64), 37.5),
    ],
)
def test_measured_rows_come_back(kernel, microseconds):
    timing = timer().time(kernel)
    assert timing.provider == "table"
    assert timing.seconds * 1e6 == pytest.approx(microseconds, rel=2e-3)


@pytest.mark.parametrize(("hardware", "backend"), HARDWARE)
def test_every_measured_cell_comes_back_exactly(hardware, backend):
    grids = load_tables(hardware, backend=backend).grids
    assert len(grids) > 8
    for grid in grids.values():
        nodes = [list(axis) for axis in grid.axes.values()]
        cells = np.argwhere(np.isfinite(grid.seconds))
        for cell in cells[:: max(1, len(cells) // 50)]:
            answer = grid.at(*(axis[at] for axis, at in zip(nodes, cell, strict=True)))
            assert answer is not None
            assert answer.seconds == grid.seconds[tuple(cell)]
            assert answer.is_measured != grid.modelled[tuple(cell)]


@pytest.mark.parametrize(("hardware", "backend"), HARDWARE)
def test_less_work_of_experts_never_takes_longer(hardware, backend):
    experts_tables = load_tables(hardware, backend=backend).experts.values()
    grids = [grid for kinds in experts_tables for kind in kinds for grid in kind.grids]
    assert len(grids) > 2
    for grid in grids:
        for axis in range(grid.seconds.ndim):
            steps = np.diff(grid.seconds, axis=axis)
            assert steps[np.isfinite(steps)].min() >= -1e-12


@pytest.mark.parametrize(("hardware", "backend", "fmt", "median", "worst"), WITH_FFN_1344)
def test_a_left_out_width_is_met_by_its_neighbours(hardware, backend, fmt, median, worst):
    """The row of ffn 1344 from those of 672 and 2688: what interpolation in ffn is worth."""
    kinds = load_tables(hardware, backend=backend).experts[fmt]
    kind = next(kind for kind in kinds if kind.top_k == 22)
    grid = kind.grids[kind.hidden.index(1024)]
    at = list(grid.axes["ffn"]).index(1344.0)
    axes = dict(grid.axes) | {"ffn": [n for n in grid.axes["ffn"] if n != 1344.0]}
    rest = replace(
        grid,
        axes=axes,
        seconds=np.delete(grid.seconds, at, axis=0),
        modelled=np.delete(grid.modelled, at, axis=0),
    )
    errors = []
    for token, tokens in enumerate(grid.axes["tokens"][:-1]):
        answer = rest.at(1344.0, 512.0, tokens)
        assert answer is not None
        errors.append(abs(answer.seconds / grid.seconds[at, -1, token] - 1))
    assert np.median(errors) < median
    assert max(errors) < worst


def test_time_grows_with_tokens():
    times = [timer().time(experts(tokens=2.0**n, ffn=1280)).seconds for n in range(15)]
    assert all(later >= sooner for sooner, later in pairwise(times))
    assert times[-1] > 20 * times[0]


def test_fewer_experts_per_token_are_a_model_and_cost_less():
    whole, half = timer().time(experts()), timer().time(experts(top_k=11))
    assert whole.provider == "table"
    assert half.provider == "table+model"
    assert half.seconds == timer().time(experts(tokens=8)).seconds < whole.seconds


def test_one_token_with_few_experts_stays_above_the_floor():
    times = [timer().time(experts(tokens=1, top_k=k)).seconds for k in (1, 4, 11, 22)]
    assert times == sorted(times)
    assert 14e-6 < times[0] < times[-1]


def test_fewer_experts_get_more_tokens_each():
    fewer = timer().time(experts(expert=256, experts=256, tokens=64))
    # With expert parallelism 256 of 512 experts meet half of the pairs of twice as many tokens.
    assert fewer.seconds == timer().time(experts(expert=256, tokens=128)).seconds
    assert fewer.provider == "table+model"


def test_between_two_hidden_widths_seconds_lie_between():
    times = [timer().time(experts(hidden=hidden)).seconds for hidden in (1024, 1536, 2048)]
    assert times[0] < times[1] < times[2]


def test_a_hidden_width_below_the_table_counts_by_its_area():
    latent = timer().time(experts(hidden=768))
    assert latent.provider == "table+model"
    assert latent.seconds == timer().time(experts(ffn=2688 * 3 / 4)).seconds


def test_a_width_below_the_table_is_a_model():
    timing = timer("h100_sxm", "trtllm").time(experts("fp8", ffn=336))
    assert timing.provider == "table+model"
    assert timing.seconds < timer("h100_sxm", "trtllm").time(experts("fp8", ffn=672)).seconds


def test_drafted_tokens_share_the_cache():
    one = timer().time(attention())
    four = timer().time(attention(tokens=4, context=8188))
    eight = timer().time(attention(tokens=8, context=8184))
    assert four.provider == "table+model"
    assert four.seconds == one.seconds
    assert eight.seconds == pytest.approx(2 * one.seconds)


def test_caches_beyond_the_measured_ones_are_read_at_no_more_than_the_bandwidth():
    within = timer().time(attention(sequences=32, context=8191))
    beyond = timer().time(attention(sequences=64, context=39999))
    cache_bytes = 64 * 40000 * 2 * 2 * 128
    assert within.provider == "table"
    assert beyond.provider == "table+model"
    assert 0.7 < cache_bytes / 8e12 / beyond.seconds < 1.0


def test_a_prompt_after_a_context_is_the_rest_of_the_whole():
    sizes = {"sequences": 1, "heads": 32, "kv_heads": 2, "head_dim": 128}
    parts = [
        timer().time(
            Kernel(
                "prefill_attention",
                "attention",
                number_format="fp8",
                sizes=sizes | {"tokens": tokens, "context": context},
            )
        )
        for tokens, context in ((8192, 0), (4096, 0), (4096, 4096))
    ]
    assert [part.provider for part in parts] == ["table", "table", "table+model"]
    assert parts[1].seconds + parts[2].seconds == pytest.approx(parts[0].seconds)


@pytest.mark.parametrize(
    "kernel",
    [
        experts("mxfp4"),
        experts(ffn=20000),
        experts(hidden=512),
        gemm(8, outputs=131072, inputs=4096, fmt="bf16", group="head"),
        attention(kv_heads=16),
        Kernel("state_update", "state", sizes={"sequences": 1}),
        Kernel("scan", "state", sizes={"sequences": 1}),
        Kernel("stream", "norm", sizes={"tokens": 1, "width": 4096}),
    ],
)
def test_what_was_not_measured_is_asked_of_the_fall_back(kernel):
    fallback = Elsewhere()
    timing = TableTimer(load_tables("b200_sxm", backend="sglang"), fallback=fallback).time(kernel)
    assert fallback.asked == [kernel.operation]
    assert timing.provider == "roofline"


def test_messages_are_counted_in_bytes():
    """1 GiB over 8 B200: no link carries 1.75 GB in less than 1.9 ms at 900 GB/s."""
    kernel = Kernel("all_reduce", "link", sizes={"bytes": 2.0**30, "gpus": 8})
    timing = timer().time(kernel)
    assert (timing.provider, timing.bound) == ("table", "link")
    assert 1.9e-3 < timing.seconds < 3e-3


@pytest.mark.parametrize(
    ("kernel", "bound"),
    [
        (gemm(1, outputs=64, inputs=64, fmt="bf16", group="router"), "launch"),
        (gemm(4, outputs=16384, inputs=16384, fmt="bf16", group="head"), "weights"),
        (gemm(8192, outputs=16384, inputs=16384, fmt="bf16", group="head"), "compute"),
        (replace(attention(sequences=32), cache_bytes=1e9), "KV"),
    ],
)
def test_the_bound_is_named(kernel, bound):
    assert timer().time(kernel).bound == bound


def test_the_best_engine_that_has_a_kernel_is_asked():
    fallback = Elsewhere()
    best = best_timer("b200_sxm", fallback=fallback)
    assert best.time(experts()) == timer("b200_sxm", "sglang").time(experts())
    assert best.time(experts("fp8")) == timer("b200_sxm", "vllm").time(experts("fp8"))
    assert best.time(Kernel("stream", "norm")).provider == "roofline"


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2), Layout(dp=4, ep=4)])
@pytest.mark.parametrize("step", [Step(64, 1, 8192.0), Step(0.5, 1, 100.0), Step(1, 8192)])
def test_blocks_of_nemotron_3_super_are_priced_from_tables(layout, step):
    """All but the state of Mamba and element-wise kernels."""
    fallback = Elsewhere()
    best = best_timer("b200_sxm", fallback=fallback)
    for block in SUPER:
        kernels = block_kernels(block, step=step, layout=layout, precision=preset("nvfp4"))
        assert all(best.time(kernel).seconds > 0 for kernel in kernels)
    assert set(fallback.asked) == {"stream", "scan" if step.is_prefill else "state_update"}


def test_unknown_tables_are_refused_with_what_there_is():
    with pytest.raises(RecipeError, match="b100_sxm"):
        backends("b100_sxm")
    with pytest.raises(RecipeError, match="llama") as error:
        load_tables("b200_sxm", backend="llama")
    assert "sglang" in str(error.value.hint)
