"""A checkpoint folder as a stranger opens it: through transformers' own loader, and greedy text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    NemotronHConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from fretsaw.checkpoint.assets import remote_code
from fretsaw.checkpoint.contents import REMOTE_CODE
from fretsaw.checkpoint.header import Fault
from fretsaw.checkpoint.reader import read_config, several
from fretsaw.quant.reader import QuantizedCheckpoint, open_checkpoint
from fretsaw.runtime.load import load_model, undo_time_step_clamp


@dataclass(frozen=True)
class Reopened:
    """A model as it was opened.

    Attributes:
        model: In float32 and evaluation mode.
        how: By what.
        faults: What the loader has said against the checkpoint.
    """

    model: PreTrainedModel
    how: str
    faults: tuple[Fault, ...] = ()


@contextmanager
def without_chatter() -> Iterator[None]:
    """While open, transformers neither draws progress bars nor tells of missing kernels."""
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def is_native(config: Mapping[str, Any]) -> bool:
    """Whether transformers knows the model type by itself."""
    return config.get("model_type") in CONFIG_MAPPING


def reopen(folder: Path, *, allow_code: bool) -> Reopened:
    """Open with transformers' AutoModelForCausalLM, in float32.

    Args:
        folder: The checkpoint.
        allow_code: Whether code in the folder may run; a model type that transformers knows needs
            none.

    Raises:
        Exception: whatever the loader raises: it is a stranger's folder.
    """
    loader: Any = AutoModelForCausalLM  # its annotation knows nothing of the second result
    model, info = loader.from_pretrained(
        folder,
        dtype=torch.float32,
        trust_remote_code=allow_code,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    undo_time_step_clamp(model)
    how = "plain transformers" + (", with the folder's code" if allow_code else "")
    return Reopened(model.eval(), how, tuple(_loading_faults(info)))


def has_our_code(folder: Path) -> bool:
    """Whether the code that a folder brings is what fretsaw writes, byte for byte."""
    found = {file.name: file.read_bytes() for file in folder.glob("*.py")}
    ours = {name: remote_code(name) for name in REMOTE_CODE}
    return found == ours


def reopen_with_our_code(folder: Path) -> Reopened:
    """Open as transformers does with ``trust_remote_code=True``, where the folder's code is ours.

    It is the package's own copy that runs.

    Args:
        folder: One that `has_our_code`.

    Raises:
        Exception: as `reopen`.
    """
    module: Any = import_module(f"fretsaw.data.remote_code.{Path(REMOTE_CODE[1]).stem}")
    auto: Any = NemotronHConfig if is_native(read_config(folder)) else module.NemotronHPuzzleConfig
    config = auto.from_pretrained(folder, local_files_only=True)
    model, info = module.NemotronHPuzzleForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    how = "plain transformers and trust_remote_code=True (the folder's code is fretsaw's)"
    return Reopened(model.eval(), how, tuple(_loading_faults(info)))


def reopen_without_code(folder: Path) -> Reopened:
    """Open with fretsaw's own reader: transformers' modules, none of the folder's code.

    Unequal blocks are built one by one; packed weights are dequantised.

    Raises:
        CheckpointError, UnsupportedModelError: as `open_checkpoint` and `load_model`.
    """
    checkpoint = open_checkpoint(folder)
    packed = isinstance(checkpoint, QuantizedCheckpoint)
    how = "fretsaw's reader" + (", which dequantises" if packed else "")
    return Reopened(load_model(checkpoint), f"{how}, not plain transformers")


def _loading_faults(info: Mapping[str, Any]) -> list[Fault]:
    faults = []
    if missing := sorted(info["missing_keys"]):
        faults.append(
            Fault(
                f"transformers finds no weights for {several(missing)} ({len(missing)}) and leaves "
                "them random",
                "the folder lacks these tensors, or transformers ties none of them",
            )
        )
    if unexpected := sorted(info["unexpected_keys"]):
        faults.append(
            Fault(
                f"transformers leaves {len(unexpected)} tensors aside: {several(unexpected)}",
                "remove them, or correct config.json",
            )
        )
    return faults


@torch.no_grad()
def greedy(model: PreTrainedModel, ids: Tensor, *, num_tokens: int) -> tuple[Tensor, bool]:
    """Greedy continuation through the cache, and whether every logit of it was finite.

    Args:
        model: In evaluation mode.
        ids: Prompt, (1, tokens).
        num_tokens: Most tokens to add.

    Returns:
        New token ids, (tokens,), and whether all logits were finite.
    """
    result: Any = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=GenerationConfig(
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        ),
    )
    is_finite = all(bool(step.isfinite().all()) for step in result.logits)
    return result.sequences[0, ids.shape[1] :], is_finite
