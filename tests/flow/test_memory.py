"""Memory: flat over the variants of a scoring, one tensor at a time in a build (R1, R21)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from fretsaw.checkpoint.child import write_child
from fretsaw.checkpoint.header import DTYPE_BYTES
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.variant import Choice, Variant
from fretsaw.families import family_of
from fretsaw.stages.compress import run_one
from fretsaw.stages.progress import Advance, Reporter
from tests.flow.pico_run import QUIET, Setting, write_text
from tests.pico import pico_config, write_pico_checkpoint

MIB = 2**20


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


class Watching(Reporter):
    """Notes the resident memory at every step of every progress."""

    seen: list[int] = []  # noqa: RUF012 - a frozen dataclass: filled, never replaced

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Advance]:
        def advance(done: int, text: str = "") -> None:
            self.seen.append(_resident())

        yield advance


def test_scoring_many_variants_takes_no_more_memory_than_scoring_few(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    write_pico_checkpoint(
        setting.parent,
        seed=1,
        moe_intermediate_size=256,
        moe_latent_size=64,
        n_routed_experts=8,
        num_experts_per_tok=4,
    )
    write_text(setting.text)
    setting.data |= {
        "calibrate": {"sequences": 8, "sequence_length": 64},
        "score": {"sequences": 8, "variants_per_pass": 3},
        "library": {
            "moe": {"ffn": list(range(96, 256, 8)), "top_k": [1, 2]},
            "granularity": {"ffn": 8, "state": 4},
            "repair_sequences": 8,
        },
        "rounds": [{}],
    }
    for word in ("calibrate", "rank", "library"):
        run_one(word, setting.recipe, out=setting.out, reporter=QUIET)
    Watching.seen.clear()

    run_one("score", setting.recipe, out=setting.out, reporter=Watching(is_quiet=True))

    seen = Watching.seen
    assert len(seen) > 120
    assert max(seen[12:]) - max(seen[:12]) < 6 * MIB, "one variant kept alive is 0.2 MiB"


def _write_sparse_checkpoint(folder: Path, **overrides: object) -> int:
    """A checkpoint of zeros that takes no room on the disk; gives its size."""
    config = pico_config(**overrides)
    family = family_of(config)
    shape = family.read_config(config)
    header: dict[str, object] = {}
    end = 0
    for row in family.rows(shape):
        dtype = "F32" if row.tensor.dtype == "float32" else "BF16"
        length = math.prod(row.tensor.shape(row.sizes)) * DTYPE_BYTES[dtype]
        for name, _ in row.names():
            header[family.stored(name, config)] = {
                "dtype": dtype,
                "shape": row.tensor.shape(row.sizes),
                "data_offsets": [end, end + length],
            }
            end += length
    encoded = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        stream.truncate(8 + len(encoded) + end)
    return end


def test_a_build_holds_one_tensor_however_large_the_checkpoint(tmp_path: Path) -> None:
    size = _write_sparse_checkpoint(
        tmp_path / "parent",
        moe_intermediate_size=1024,
        moe_latent_size=256,
        hidden_size=256,
        n_routed_experts=64,
    )
    assert size > 190 * MIB
    parent = Checkpoint(tmp_path / "parent")
    parent.check()
    values = {1: {"ffn": 896}, 3: {"ffn": 768, "top_k": 1}}
    variants = tuple(Variant(i, values.get(i, {})) for i in range(parent.shape.num_blocks))
    (tmp_path / "child").mkdir()
    before = _resident()
    seen: list[int] = []

    child = write_child(
        parent,
        Choice(variants, score=0.0, costs={}),
        folder=tmp_path / "child",
        orders={},
        repaired=lambda block, pattern, bound: None,
        shard_bytes=50 * MIB,
        on_tensor=lambda done: seen.append(_resident()),
    )

    written = sum(f.stat().st_size for f in child.folder.glob("*.safetensors"))
    assert written > 160 * MIB
    assert len(seen) == len(child.stored)
    assert max(seen) - before < 8 * MIB
