"""Verify a checkpoint: its files without any doubt, then eight prompts through transformers."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fretsaw.checkpoint.header import Fault
from fretsaw.checkpoint.listing import list_tensors
from fretsaw.checkpoint.reader import read_config
from fretsaw.checkpoint.verify import Check, Verification, is_quantised, verify_files
from fretsaw.core.units import format_bytes
from fretsaw.errors import CheckpointError
from fretsaw.quant.reader import open_checkpoint
from fretsaw.quant.verify import quantised_checks
from fretsaw.reports.loaders import loader_in_words
from fretsaw.runtime.reopen import (
    Reopened,
    greedy,
    has_our_code,
    is_native,
    reopen,
    reopen_with_our_code,
    reopen_without_code,
    without_chatter,
)
from fretsaw.stages.loaders import loaders_of
from fretsaw.train.packing import load_tokenizer

PROMPTS = (
    "The history of the city begins",
    "A function that sorts a list",
    "In the year 1900,",
    "def main():",
    "The most important property of water is",
    "1 2 3 4 5",
    "She opened the door and",
    "To install the package, run",
)
NUM_TOKENS = 16
NAME = "greedy text"
FLOAT32_BYTES = 4
NO_HINDRANCE = ("no code", "names", "dtypes")
"""Checks whose faults do not keep transformers from opening the folder."""

PACKED = "U8"
"""Dtype of which a byte holds two numbers."""

FAULTS_FIRST = "the faults above come first"


def verify(
    folder: Path | str, *, generate: bool = True, allow_remote_code: bool = False
) -> Verification:
    """Verify anybody's checkpoint: all that is wrong with it, not only the first thing.

    Args:
        folder: In Hugging Face layout.
        generate: Whether to continue eight prompts greedily through transformers.
        allow_remote_code: Whether code in the folder may run for that.

    Raises:
        CheckpointError: there is no such folder.
    """
    path = Path(folder)
    result = _with_loaders(_with_formats(verify_files(path)))
    if not generate:
        return result.with_check(Check(NAME, not_run="not asked for"))
    reason = _reason_against(path, result, allow_code=allow_remote_code)
    if reason:
        return result.with_check(Check(NAME, not_run=reason))
    with without_chatter():
        return _with_text(result, allow_code=allow_remote_code)


def _with_formats(result: Verification) -> Verification:
    """With what a quantised checkpoint of a known family says about itself."""
    if result.family and is_quantised(result.folder, read_config(result.folder)):
        if _is_hindered(result):
            return result.with_check(Check("number formats", not_run=FAULTS_FIRST))
        for check in quantised_checks(result.folder):
            result = result.with_check(check)
    return result


def _with_loaders(result: Verification) -> Verification:
    """With what is known of each engine about such a checkpoint, plain transformers included."""
    if not result.family or _is_hindered(result):
        return result
    rows = loaders_of(open_checkpoint(result.folder))
    answer = "\n".join(map(loader_in_words, rows))
    return result.with_check(Check("who can load", "fretsaw's tables of engines", answer=answer))


def _is_hindered(result: Verification) -> bool:
    """Whether a fault so far keeps the folder from being opened."""
    return any(check.faults for check in result.checks if check.name not in NO_HINDRANCE)


def _reason_against(path: Path, result: Verification, *, allow_code: bool) -> str:
    """Why no text can be generated; empty if it can."""
    if _is_hindered(result):
        return FAULTS_FIRST
    config = read_config(path)
    if is_quantised(path, config) and not result.family:
        return "quantised: try an engine that runs these number formats"
    if not (is_native(config) or allow_code or result.family):
        return f"{config.get('model_type')} needs the folder's own code: --allow-remote-code"
    numbers = sum(
        torch.Size(place.shape).numel() * (2 if place.dtype == PACKED else 1)
        for place in list_tensors(path).stored
    )
    copies = 2 if is_quantised(path, config) else 1  # what is dequantised, and the model
    needed, free = (
        numbers * FLOAT32_BYTES * copies,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"),
    )
    if needed > free:
        return f"needs {format_bytes(needed)} of memory in float32; {format_bytes(free)} are free"
    return ""


def _with_text(result: Verification, *, allow_code: bool) -> Verification:
    try:
        opened = _open(result, allow_code=allow_code)
    except Exception as error:  # a stranger's folder: whatever its loader says is the finding
        message = f"transformers cannot open it: {type(error).__name__}: {error}"
        return result.with_check(Check(NAME, faults=(Fault(message, "see the message"),)))
    try:
        tokenizer = load_tokenizer(result.folder)
    except CheckpointError as error:
        return result.with_check(Check(NAME, opened.how, (Fault(error.message, error.hint),)))
    texts, broken = [], []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        new, is_finite = greedy(opened.model, ids, num_tokens=NUM_TOKENS)
        texts.append((prompt, str(tokenizer.decode(new))))
        broken += [] if is_finite else [prompt]
    faults = list(opened.faults)
    if broken:
        message = f"logits are not finite after {len(broken)} of {len(PROMPTS)} prompts"
        faults.append(Fault(message, "a weight is damaged, or overflows in float32"))
    check = Check(
        NAME, f"{len(PROMPTS)} prompts × {NUM_TOKENS} tokens, {opened.how}", tuple(faults)
    )
    return result.with_check(check, texts)


def _open(result: Verification, *, allow_code: bool) -> Reopened:
    """As a stranger opens it, where that needs no code but transformers' and ours."""
    config = read_config(result.folder)
    is_plain = not is_quantised(result.folder, config)
    if config.get("auto_map") and has_our_code(result.folder):
        return reopen_with_our_code(result.folder)
    if (is_plain and is_native(config)) or allow_code:
        return reopen(result.folder, allow_code=allow_code)
    return reopen_without_code(result.folder)
