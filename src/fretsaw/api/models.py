"""Models as they are: described, planned, measured, verified, exported and quantised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fretsaw.api.given import (
    ModelLike,
    checkpoint_path,
    keywords,
    model_of,
    model_path,
    optional_path,
    some_path,
)

if TYPE_CHECKING:
    from fretsaw.reports.description import Description
    from fretsaw.reports.outlook import ServingPlan
    from fretsaw.reports.served import Served
    from fretsaw.reports.verification import Verified
    from fretsaw.stages.progress import Reporter

R = TypeVar("R")


@keywords
def describe(model: ModelLike) -> Description:
    """Show what a model is: parameters, active parameters, bytes, KV and state per sequence.

    Args:
        model: Checkpoint folder (tensors are checked by their headers), config.json, config as a
            mapping, or one that comes with fretsaw, such as ``@super``.

    Raises:
        CheckpointError: missing or damaged, or tensors disagree with the config.
        UnsupportedModelError: unknown architecture.
    """
    found = model_of(model)
    from fretsaw.stages.describe import describe as run  # noqa: PLC0415

    return run(found)


@keywords
def plan(
    model: ModelLike,
    child: ModelLike | None = None,
    *,
    hardware: str,
    workload: str | None = None,
    context: str | int | None = None,
    user_tokens_per_s: float | None = None,
    to: str = "bf16",
    kv_dtype: str | None = None,
    state_dtype: str | None = None,
    weights_bytes: Sequence[str | int] | None = None,
    memory: str | int | None = None,
    memory_fraction: float = 0.9,
    headroom: str | int = "0",
    layout: str | None = None,
    engine: str = "vllm",
    acceptance_length: float = 1.0,
    mtp: bool = False,
    verbosity: float = 1.0,
    require: str | None = None,
    picture: str | Path | None = None,
) -> ServingPlan:
    """Say what a model serves on given hardware: speed, requests at once, what binds and helps.

    Args:
        model: Checkpoint folder, config.json, config as a mapping, or one that comes with fretsaw,
            such as ``@super``.
        child: Another, to compare.
        hardware: Accelerators, such as ``8xB200`` or ``H100``.
        workload: Input and output tokens of a request, such as ``8k/64k``.
        context: Tokens of each request at its end; the workload's if not given.
        user_tokens_per_s: Speed of each user.
        to: Number format of the weights.
        kv_dtype: Format of the KV cache; the number format's if not given.
        state_dtype: Format of the Mamba state; the number format's if not given.
        weights_bytes: Weights on one accelerator, once per model, instead of what `to` gives.
        memory: Of one accelerator, instead of its data sheet's.
        memory_fraction: Share of it that the engine may use.
        headroom: Memory kept free beside weights and requests.
        layout: Only this parallel layout, such as ``tp2 ep2``.
        engine: Whose kernels and limits.
        acceptance_length: Tokens that a decode step gives.
        mtp: Whether the prediction head is loaded.
        verbosity: Tokens that the child says for one of the parent's.
        require: Such as ``2x server tokens/s``.
        picture: SVG file to draw the frontier in; must not be there yet.

    Raises:
        CheckpointError: no readable config.
        UnsupportedModelError: unknown architecture.
        RecipeError: an option that makes no sense, or a layout or context the model cannot have.
    """
    models = [model_of(one) for one in (model, child) if one is not None]
    from fretsaw.core.engines import engine_key, engine_names  # noqa: PLC0415
    from fretsaw.stages.plan import PlanOptions, write_picture  # noqa: PLC0415
    from fretsaw.stages.plan import plan as run  # noqa: PLC0415

    options = PlanOptions(
        hardware=hardware,
        workload=workload,
        user_tokens_per_s=user_tokens_per_s,
        number_format=to,
        context=None if context is None else str(context),
        memory_fraction=memory_fraction,
        memory=None if memory is None else str(memory),
        headroom=str(headroom),
        state_dtype=state_dtype,
        kv_dtype=kv_dtype,
        weights_bytes=[str(size) for size in weights_bytes or ()] or None,
        layout=layout,
        engine=engine_key(engine, engine_names()),
        acceptance_length=acceptance_length,
        has_mtp=mtp,
        verbosity=verbosity,
        require=require,
    )
    return _drawn(run(*models, options=options), write_picture, picture=picture)


@keywords
def serve(
    model: str | Path,
    *,
    engine: str,
    workload: str,
    against: str | Path | None = None,
    concurrency: str = "1,4,16,64",
    repeats: int = 5,
    requests_per_user: int = 2,
    random_weights: bool = False,
    threads: int = 1,
    dtype: str = "float32",
    hardware: str | None = None,
    engine_python: str | Path | None = None,
    engine_arg: Sequence[str] | None = None,
    seed: int = 0,
    picture: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Served:
    """Measure what an engine serves: user speed against server rate, parent and child in turn.

    Args:
        model: Run folder (its last child), checkpoint folder, or with `random_weights` a
            config.json or one that comes with fretsaw, such as ``@nano``.
        engine: vllm, llama.cpp or transformers.
        workload: Input and output tokens of a request, such as ``512/128``.
        against: Parent to measure beside it; a run's own if not given.
        concurrency: Requests at a time, such as ``1,4,16``.
        repeats: Of everything; medians count.
        requests_per_user: In each repeat.
        random_weights: Whether to make weights up; speed does not depend on them.
        threads: CPU threads of the engine.
        dtype: Of weights and activations.
        hardware: Speeds are predicted for it; for this machine if not given.
        engine_python: Python of the engine's environment; found by itself if not given.
        engine_arg: Arguments for the engine's own command line.
        seed: Of prompts and random weights.
        picture: SVG file to draw the frontier in; must not be there yet.
        reporter: Where progress goes; stderr by default.

    Raises:
        RecipeError: an option makes no sense.
        CheckpointError: a model is missing or damaged.
        RunError: the engine is not installed, or does not take a model.
    """
    found, parent = model_path(model), None if against is None else model_path(against)
    from fretsaw.stages.serve import ServeOptions, write_picture  # noqa: PLC0415
    from fretsaw.stages.serve import serve as run  # noqa: PLC0415

    options = ServeOptions(
        engine=engine,
        workload=workload,
        concurrency=concurrency,
        against=parent,
        repeats=repeats,
        requests_per_user=requests_per_user,
        random_weights=random_weights,
        threads=threads,
        dtype=dtype,
        hardware=hardware,
        engine_python=optional_path(engine_python),
        engine_arguments=tuple(engine_arg or ()),
        seed=seed,
    )
    served = run(found, options=options, reporter=reporter)
    return _drawn(served, write_picture, picture=picture)


@keywords
def verify(
    model: str | Path, *, generate: bool = True, allow_remote_code: bool = False
) -> Verified:
    """Look for all that is wrong with a checkpoint; exit code 2 if there is anything.

    Args:
        model: Checkpoint folder in Hugging Face layout, anybody's.
        generate: Whether to continue eight prompts greedily through transformers.
        allow_remote_code: Whether code in the folder may run for that.

    Raises:
        CheckpointError: there is no such folder.
    """
    found = checkpoint_path(model)
    from fretsaw.reports.verification import Verified  # noqa: PLC0415
    from fretsaw.stages.verify import verify as run  # noqa: PLC0415

    return Verified.of(run(found, generate=generate, allow_remote_code=allow_remote_code))


@keywords
def export(
    model: str | Path,
    *,
    engine: str,
    out: str | Path,
    engine_python: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Path:
    """Write a checkpoint in the form that an engine takes; for llama.cpp a GGUF file.

    Args:
        model: Checkpoint folder in 16 or 32 bits.
        engine: vllm, llama.cpp, transformers and others by name.
        out: New folder.
        engine_python: Python of llama.cpp's environment; found by itself if not given.
        reporter: Where progress goes; stderr by default.

    Returns:
        The new folder.

    Raises:
        CheckpointError: the checkpoint is damaged or quantised.
        RecipeError: no such engine.
        RunError: `out` is there, or llama.cpp is not, or does not take it.
        UnsupportedModelError: the engine cannot load such a model, by what is known of it.
    """
    found, python = checkpoint_path(model), optional_path(engine_python)
    from fretsaw.stages.export import export as run  # noqa: PLC0415

    return run(found, to=engine, out=some_path(out, "out"), python=python, reporter=reporter)


def _drawn(found: R, draw: Callable[[R, Path], None], *, picture: str | Path | None) -> R:
    """A result, with its picture drawn where one is asked for."""
    if picture is not None:
        draw(found, Path(picture))
    return found
