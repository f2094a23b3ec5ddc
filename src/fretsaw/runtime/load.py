"""Any checkpoint as a transformers model, equal blocks or not; and a trained model back to disk.

Unequal blocks are built by handing each block its own layer config. No code from the checkpoint's
folder is ever run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import NemotronHConfig, NemotronHForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock, NemotronHMamba2Mixer

from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.checkpoint.writer import Planned, write_weights
from fretsaw.core.axes import Axis, TensorAxes
from fretsaw.core.shape import Block, ModelShape
from fretsaw.families import Row, family_named
from fretsaw.families.nemotron_h import layer_values
from fretsaw.quant.reader import dequantized
from fretsaw.runtime.scan import use_fast_scan

ALWAYS_FLOAT32 = ("gate.weight", "A_log", "D", "dt_bias", "e_score_correction_bias")
EXPERTS_IMPLEMENTATION = "grouped_mm"


def load_model(
    checkpoint: Checkpoint, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> NemotronHForCausalLM:
    """The checkpoint's trunk as a transformers model, in evaluation mode; dequantised if need be.

    Args:
        checkpoint: Opened folder; the multi-token-prediction head is left on disk.
        dtype: Of all weights but those that are computed in float32 whatever happens (router,
            A_log, D, dt_bias).
        device: Where the weights go.

    Raises:
        CheckpointError: a tensor is missing or damaged.
    """
    checkpoint = dequantized(checkpoint)
    model = empty_model(checkpoint.shape, checkpoint.config)
    state = {
        name: read_running(checkpoint, row, dtype=dtype, device=device)
        for name, _, row in running_tensors(checkpoint.shape)
    }
    model.load_state_dict(state, strict=True, assign=True)
    if checkpoint.shape.is_tied:
        model.lm_head.weight = model.model.embeddings.weight
    model.eval()
    return model


def empty_model(shape: ModelShape, config: Mapping[str, Any]) -> NemotronHForCausalLM:
    """The model on the meta device: right shapes, no weights."""
    known = family_named(shape.family).write_config(shape, config)
    plain = {k: v for k, v in known.items() if k in _config_fields()}
    plain |= {"layers_block_type": [b.mixer for b in shape.blocks], "tie_word_embeddings": False}
    with torch.device("meta"):
        running_config = NemotronHConfig(**plain)
        running_config._experts_implementation = EXPERTS_IMPLEMENTATION
        model = NemotronHForCausalLM(running_config)
    for i, block in enumerate(shape.blocks):
        model.model.layers[i] = empty_block(model.config, block=block, index=i)
    return model


def _config_fields() -> set[str]:
    skipped = {"num_hidden_layers", "time_step_limit", "dtype"}
    return set(NemotronHConfig.__dataclass_fields__) - skipped


def empty_block(config: NemotronHConfig, *, block: Block, index: int) -> NemotronHBlock:
    """One residual block on the meta device, with this block's own sizes."""
    own = copy.copy(config)
    for key, value in layer_values(block).items():
        setattr(own, key, value)
    with torch.device("meta"):
        module = NemotronHBlock(own, layer_idx=index)
    undo_time_step_clamp(module)
    if isinstance(module.mixer, NemotronHMamba2Mixer):
        use_fast_scan(module)
    return module.eval()


def undo_time_step_clamp(model: nn.Module) -> None:
    """Undo the time-step clamp that transformers 5.15 to 5.24 put on prefill alone."""
    for module in model.modules():
        if isinstance(module, NemotronHMamba2Mixer):
            module.time_step_limit = (0.0, float("inf"))


def running_tensors(shape: ModelShape) -> Iterator[tuple[str, str, Row]]:
    """Name in the running model, canonical name pattern, and row of each trunk tensor."""
    for row in family_named(shape.family).rows(shape):
        if row.part == "mtp":
            continue
        prefix = "" if row.part == "head" else "model."
        yield prefix + running_name(row.tensor.name), row.tensor.name, row
    if shape.is_tied:
        row = next(r for r in family_named(shape.family).rows(shape) if r.part == "embedding")
        yield "lm_head.weight", row.tensor.name, row


def running_name(pattern: str) -> str:
    """Name of a tensor in the running module: experts are fused into one tensor there."""
    if "{expert}" not in pattern:
        return pattern
    return pattern.replace(".{expert}", "").removesuffix(".weight")


def running_axes(row: TensorAxes) -> tuple[Axis, ...]:
    """Axes of a tensor in the running module: dimensions of the name come first."""
    return tuple(Axis(((dim,),)) for dim in row.name_dims) + row.axes


def read_running(
    checkpoint: Checkpoint, row: Row, *, dtype: torch.dtype, device: str = "cpu"
) -> Tensor:
    """A tensor as the running model holds it, experts fused; at most one expert beside it."""
    kept = torch.float32 if row.tensor.name.endswith(ALWAYS_FLOAT32) else dtype
    if "{expert}" not in row.tensor.name:
        return checkpoint.read(row.tensor.name).to(device=device, dtype=kept)
    shape = (row.sizes["expert"], *row.tensor.shape(row.sizes))
    fused = torch.empty(shape, dtype=kept, device=device)
    for i, (name, _) in enumerate(row.names()):
        fused[i] = checkpoint.read(name)
    return fused


def load_block(
    checkpoint: Checkpoint,
    index: int,
    *,
    config: NemotronHConfig,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> NemotronHBlock:
    """One residual block of the trunk alone: a model larger than memory is run block by block.

    Args:
        checkpoint: Opened folder.
        index: Which block.
        config: Of an `empty_model`.
        dtype: As `load_model`.
        device: Where the weights go.
    """
    block = empty_block(config, block=checkpoint.shape.blocks[index], index=index)
    state = {
        running_name(row.local): read_running(checkpoint, row, dtype=dtype, device=device)
        for row in checkpoint.rows
        if row.part == "block" and row.block == index
    }
    block.load_state_dict(state, strict=True, assign=True)
    return block.requires_grad_(False)


def save_weights(
    model: NemotronHForCausalLM,
    like: Checkpoint,
    *,
    folder: Path,
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Write a trained model's weights under the names and dtypes of a checkpoint of its shape.

    Tensors that the running model does not have (the prediction head) are copied bit for bit.
    """
    state = model.state_dict()
    place: dict[str, tuple[str, int | None]] = {}
    for running, _, row in running_tensors(like.shape):
        for i, (name, bound) in enumerate(row.names()):
            place[name] = (running, i if bound else None)
    keys = {stored.key: name for name, stored in like.stored.items()}
    planned = [
        Planned(key, like.stored[name].dtype, like.stored[name].shape) for key, name in keys.items()
    ]

    def read(key: str) -> Tensor:
        name = keys[key]
        if name not in place:
            return like.read(name)
        running, index = place[name]
        tensor: Tensor = state[running]
        return tensor if index is None else tensor[index]

    write_weights(folder, planned, read=read, shard_bytes=shard_bytes)
