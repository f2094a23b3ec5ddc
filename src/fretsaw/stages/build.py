"""The child of a choice, written tensor by tensor from the checkpoint that the round cuts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fretsaw.checkpoint.child import Repaired, plan_child, untied_bytes, write_child
from fretsaw.checkpoint.contents import LINEAGE_NAME
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import write_json
from fretsaw.core.variant import Choice
from fretsaw.errors import RunError
from fretsaw.families.shared_keys import DTYPES
from fretsaw.pricing.memory import model_costs
from fretsaw.runtime.load import running_name
from fretsaw.stages.loaders import write_who_can_load
from fretsaw.stages.manifest import CHILD, read_manifest
from fretsaw.stages.models import open_view, read_orders, repairer, walk_blocks
from fretsaw.stages.run import RunRound, Stage
from fretsaw.stages.search import read_choice
from fretsaw.stages.speedup import measure_speedups, write_speedups
from fretsaw.stages.text import calibration_text

CAST = {"stored": "", **{said: stored for stored, said in DTYPES.items()}}
EXACT_COSTS = ("params", "moe_params", "active_params")


def _body(round_: RunRound, folder: Path) -> None:
    choice = read_choice(round_.result("06-search"))
    if round_.settings.library.repair != "none":
        _write_repairs(round_, choice, folder=folder)
    parent = Checkpoint(round_.model)
    child_folder = folder / CHILD
    _clear(child_folder)
    total = sum(1 for _ in plan_child(parent, choice))
    with round_.run.reporter.progress("tensors", total) as advance:
        child = write_child(
            parent,
            choice,
            folder=child_folder,
            orders=read_orders(round_.result("02-rank")),
            repaired=_repairs_in(folder),
            shard_bytes=round_.settings.build.shard_bytes,
            dtype=CAST[round_.settings.build.dtype],
            on_tensor=advance,
        )
    _verify_costs(child, choice)
    if round_.settings.search.budget.serve:
        write_speedups(folder, measure_speedups(round_, child_folder))
    write_json(child_folder / LINEAGE_NAME, _lineage(round_, choice))
    write_who_can_load(child_folder)
    for file in folder.glob("repair-*.safetensors"):
        file.unlink()


def _clear(folder: Path) -> None:
    """Start the child anew: a killed attempt may have left half a shard."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()


def _write_repairs(round_: RunRound, choice: Choice, *, folder: Path) -> None:
    """Re-solve the weights of each cut block on calibration text; one file per block."""
    todo = {v.block: v for v in choice.variants if not v.is_none}
    todo = {b: v for b, v in todo.items() if not _file(folder, b).exists()}
    if not todo:
        return
    view = open_view(round_)
    with round_.run.reporter.progress("repairs", view.num_blocks) as advance:
        for block, hidden in walk_blocks(view, round_):
            advance(block + 1)
            if block not in todo:
                continue
            small = todo[block].apply(view.shape.blocks[block])
            if small == view.shape.blocks[block]:
                continue
            weights = repairer(view, round_, block=block, hidden=hidden).replaced(small)
            _save(_file(folder, block), weights)


def _file(folder: Path, block: int) -> Path:
    return folder / f"repair-{block:04d}.safetensors"


def _save(file: Path, weights: Mapping[str, Tensor]) -> None:
    partial = file.with_suffix(".new")
    save_file({name: t.detach().contiguous() for name, t in weights.items()}, partial)
    partial.rename(file)


def _repairs_in(folder: Path) -> Repaired:
    @lru_cache(maxsize=1)
    def names(block: int) -> frozenset[str]:
        if not _file(folder, block).exists():
            return frozenset()
        with safe_open(_file(folder, block), framework="pt") as file:
            return frozenset(file.keys())

    def repaired(block: int, pattern: str, bound: Mapping[str, int]) -> Tensor | None:
        name = running_name(pattern)
        if name not in names(block):
            return None
        with safe_open(_file(folder, block), framework="pt") as file:
            whole = file.get_slice(name)
            weights: Tensor = whole[bound["expert"]] if bound else whole[:]
            return weights

    return repaired


def _verify_costs(child: Checkpoint, choice: Choice) -> None:
    written = model_costs(child.shape)
    for name in EXACT_COSTS:
        if name in choice.costs and written[name] != choice.costs[name]:
            raise RunError(
                f"the child has {written[name]} {name}; the choice says {choice.costs[name]}",
                "this is a fault of fretsaw: please report it with the choice",
            )


def _lineage(round_: RunRound, choice: Choice) -> dict[str, object]:
    manifest = read_manifest(round_.result("06-search"))
    return {
        "parent": str(round_.run.parent),
        "parent_sha256": round_.run.parent_digest,
        "cut_from": round_.model_name,
        "round": round_.number,
        "choice": choice.to_json(),
        "recipe": json.loads(round_.run.recipe.to_json()),
        "head_untied_bytes": untied_bytes(Checkpoint(round_.run.parent)),
        "seed": round_.seed,
        "versions": manifest["versions"],
    }


BUILD = Stage(
    "07-build",
    needs=("00-describe", "02-rank", "05-cost", "06-search"),
    settings=("build", "library", "calibrate"),
    body=_body,
    texts=(calibration_text,),
    copies=lambda round_: round_.model,
)
