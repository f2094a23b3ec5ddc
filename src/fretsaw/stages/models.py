"""What several stages need: the running model in importance order, token ids, repairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.importance.order import Orders, orders_from_tensors
from fretsaw.recipe.sections import Compute
from fretsaw.runtime.blocks import BlockView, order_model, run_block
from fretsaw.runtime.load import load_model
from fretsaw.runtime.repair import Repairer, RepairSettings
from fretsaw.stages.run import RunRound
from fretsaw.stages.text import calibration_ids

ORDERS = "orders.safetensors"


def open_model(folder: Path, compute: Compute) -> BlockView:
    """A checkpoint as a running model."""
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    checkpoint = Checkpoint(folder)
    dtype = getattr(torch, compute.dtype)
    return BlockView(load_model(checkpoint, dtype=dtype, device=compute.device), checkpoint.shape)


def open_view(round_: RunRound) -> BlockView:
    """The model that a round works around, its units in importance order."""
    view = open_model(round_.model, round_.run.recipe.compute)
    order_model(view, read_orders(round_.result("02-rank")))
    return view


def read_orders(folder: Path) -> Orders:
    """Orders that a finished `rank` wrote."""
    return orders_from_tensors(load_file(folder / ORDERS))


@torch.no_grad()
def walk_blocks(view: BlockView, round_: RunRound) -> Iterator[tuple[int, Tensor]]:
    """Each block's index and its input on the text that repairs are fitted on."""
    hidden = view.embed(calibration_ids(round_)[: round_.settings.library.repair_sequences])
    batch = round_.run.recipe.compute.batch_sequences
    for block in range(view.num_blocks):
        yield block, hidden
        hidden = torch.cat([run_block(view.block(block), h) for h in hidden.split(batch)])


def repairer(view: BlockView, round_: RunRound, *, block: int, hidden: Tensor) -> Repairer:
    """Re-solves the weights of variants of one block, fitted on its input."""
    settings = RepairSettings(
        kind=round_.settings.library.repair,
        batch_sequences=round_.run.recipe.compute.batch_sequences,
    )
    return Repairer(view, block, fit_hidden=hidden, settings=settings)
