"""A checkpoint in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fretsaw.api.given import checkpoint_path, keywords, optional_path, some_path

if TYPE_CHECKING:
    from fretsaw.reports.quantized import Quantized
    from fretsaw.stages.progress import Reporter


@keywords
def quantize(
    model: str | Path,
    *,
    out: str | Path,
    to: str = "nvfp4",
    bits: float | None = None,
    text: str | Path | None = None,
    sequences: int = 256,
    sequence_length: int = 4096,
    method: Literal["max", "mse", "lsq"] = "max",
    percentile: float | None = None,
    kv_dtype: str | None = None,
    power_of_two_kv: bool = False,
    file_layout: Literal["modelopt", "compressed-tensors"] = "modelopt",
    shard_bytes: str | int = "5GB",
    dtype: Literal["float32", "bfloat16"] = "float32",
    teacher: str | Path | None = None,
    heal_tokens: int | None = None,
    learning_rate: float | None = None,
    evaluate: bool = True,
    reporter: Reporter | None = None,
) -> Quantized:
    """Write a checkpoint in FP8 or NVFP4, as vLLM, SGLang and TensorRT-LLM read it.

    A killed call goes on where it was when it is made again.

    Args:
        model: Checkpoint folder in 16 or 32 bits.
        out: New folder.
        to: Number format of the weights; ``auto`` chooses for each block at `bits`.
        bits: Average per weight, for ``auto``, such as 4.75.
        text: Text on which scales of activations are found: file, folder or data set.
        sequences: Of that text, at most.
        sequence_length: Tokens in each.
        method: Scales of weights: of the largest magnitude, of least error, or learned (with a
            teacher) from those of least error.
        percentile: Share of magnitudes, in percent, that scales cover; all if not given.
        kv_dtype: Format of the KV cache; the number format's if not given.
        power_of_two_kv: Whether KV scales are rounded up to powers of two.
        file_layout: Whose names and keys the files carry.
        shard_bytes: Size of a file.
        dtype: Of the running blocks.
        teacher: Checkpoint that the weights learn from under rounding, before they are written.
        heal_tokens: Of that learning; 1,000,000 if not given.
        learning_rate: Its peak; found by a probe if not given.
        evaluate: Whether loss and divergence are measured on held-out text, if there is text.
        reporter: Where progress goes; stderr by default.

    Raises:
        CheckpointError: the checkpoint is damaged, or quantised already.
        DataError: the text is missing or too short.
        RecipeError: an option makes no sense, or the format does not fit the model.
        RunError: `out` is there, another process writes it, or the disk is too small.
    """
    found = checkpoint_path(model)
    from fretsaw.stages.quantize import quantize as run  # noqa: PLC0415
    from fretsaw.stages.quantize_options import QuantizeOptions  # noqa: PLC0415

    options = QuantizeOptions(
        to=to,
        bits=bits,
        text=optional_path(text),
        method=method,
        layout=file_layout,
        kv=kv_dtype,
        is_power_of_two_cache=power_of_two_kv,
        sequences=sequences,
        sequence_length=sequence_length,
        percentile=percentile,
        dtype=dtype,
        shard_bytes=shard_bytes,
        teacher=None if teacher is None else checkpoint_path(teacher),
        heal_tokens=heal_tokens,
        learning_rate=learning_rate,
        is_evaluated=evaluate,
    )
    return run(found, out=some_path(out, "out"), options=options, reporter=reporter)
