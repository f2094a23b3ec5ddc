"""Serve models with a real engine under a closed-loop load, parent and child in turn."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from fretsaw.checkpoint.random_weights import write_random_checkpoint
from fretsaw.checkpoint.reader import read_config
from fretsaw.core.hardware import ONE_GPU, Hardware, Node, hardware_named, parse_workload
from fretsaw.core.precision import preset
from fretsaw.core.shape import ModelShape
from fretsaw.errors import RecipeError, RunError
from fretsaw.families import family_of
from fretsaw.pricing.footprint import footprint
from fretsaw.pricing.provider import pricers
from fretsaw.pricing.step import Pricer
from fretsaw.quant.reader import QuantizedCheckpoint, open_checkpoint
from fretsaw.reports.served import Served, ServedModel, served_svg
from fretsaw.runtime.machine import measure_machine
from fretsaw.serving.calibrated import calibrated_pricer
from fretsaw.serving.engines.base import EngineSettings, Session
from fretsaw.serving.engines.registry import engine_named
from fretsaw.serving.frontier import Point, point
from fretsaw.serving.load import Load, Loaded, match, measure
from fretsaw.stages.export import GGUF_ENGINE, rewrite
from fretsaw.stages.folders import find_parent
from fretsaw.stages.progress import Reporter
from fretsaw.stages.run import MARKER

FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
SPARE_CONTEXT = 8
"""Tokens that an engine is given beyond a request: some stop a token before the last."""


@dataclass(frozen=True)
class ServeOptions:
    """What the command line asks for.

    Attributes:
        engine: By name.
        workload: Such as "512/128".
        concurrency: Such as "1,4,16,64".
        against: The parent; of a run folder its own parent, unless given.
        repeats: Of everything.
        requests_per_user: In each repeat.
        random_weights: Whether to make the weights up, from the configs alone.
        threads: CPU threads that compute.
        dtype: Of weights and activations.
        hardware: That speeds are predicted for; this machine when None.
        engine_python: Python of the engine's environment.
        engine_arguments: For the engine's own command line.
        seed: Of prompts and random weights.
    """

    engine: str
    workload: str
    concurrency: str = "1,4,16,64"
    against: Path | None = None
    repeats: int = 5
    requests_per_user: int = 2
    random_weights: bool = False
    threads: int = 1
    dtype: str = "float32"
    hardware: str | None = None
    engine_python: Path | None = None
    engine_arguments: tuple[str, ...] = ()
    seed: int = 0


def serve(source: Path | str, *, options: ServeOptions, reporter: Reporter | None = None) -> Served:
    """Measure what an engine serves of a model, and of its parent beside it.

    Both are loaded at once and asked in turn, so that whatever else the machine does meets both.

    Args:
        source: Checkpoint folder in Hugging Face layout, a run folder (its last child), or with
            `random_weights` a config.json.
        options: What to measure.
        reporter: Where progress goes; stderr by default.

    Raises:
        RecipeError: an option makes no sense.
        CheckpointError: a model is missing or damaged.
        RunError: the engine is not installed, or does not take a model.
    """
    reporter = reporter or Reporter()
    engine = engine_named(options.engine)
    sources = find_models(Path(source), against=options.against)
    shapes = {name: _shape(path) for name, path in sources.items()}
    load = _load(options, shapes)
    _check(options, sources)
    torch.set_num_threads(options.threads)
    hardware = _hardware(options)
    with _scratch() as scratch, ExitStack() as stack:
        sessions: dict[str, Session] = {}
        for name, path in sources.items():
            reporter.say(f"{engine.name} loads {name}: {path}")
            settings = _settings(options, load, scratch=scratch / name)
            folder = _folder(path, settings, options=options)
            sessions[name] = stack.enter_context(engine.open(folder, settings))
        loaded = measure(sessions, load, on_load=reporter.say)
        peaks = {name: session.peak_bytes() for name, session in sessions.items()}
        accepted = {name: session.acceptance_length() for name, session in sessions.items()}
    prediction = _prediction(options, hardware, shapes=shapes, loaded=loaded, load=load)
    models = tuple(
        ServedModel(
            name,
            str(path),
            loaded[name],
            prediction.points(shapes[name]),
            *prediction.memory(shapes[name]),
            peaks[name],
            accepted[name],
        )
        for name, path in sources.items()
    )
    matched = match(loaded["parent"], loaded["child"]) if len(loaded) > 1 else ()
    return Served(
        engine.name,
        load,
        models,
        matched,
        hardware.name,
        None if options.hardware else next(iter(sources)),
        {"threads": options.threads, "dtype": options.dtype},
        options.random_weights,
    )


def find_models(source: Path, *, against: Path | None) -> dict[str, Path]:
    """Parent and child, or one model, by name.

    Raises:
        RunError: a run without a finished child, or whose parent is not where its recipe says.
    """
    if (source / MARKER).is_file():
        children = sorted(source.glob("round-*/08-distill/child"), key=_round_of)
        if not children:
            raise RunError(f"{source} has no finished child", "run `fretsaw compress` first")
        return {"parent": against or find_parent(source), "child": children[-1]}
    if against is not None:
        return {"parent": against, "child": source}
    return {source.name: source}


def _check(options: ServeOptions, sources: Mapping[str, Path]) -> None:
    if options.dtype not in FORMATS:
        raise RecipeError(f"dtype {options.dtype!r} is unknown", f"take {', '.join(FORMATS)}")
    for path in sources.values():
        if not (path.is_dir() or options.random_weights):
            raise RecipeError(
                f"{path} is no checkpoint folder", "with --random-weights a config.json will do"
            )


def _round_of(child: Path) -> int:
    return int(child.parents[1].name.removeprefix("round-"))


def _shape(path: Path) -> ModelShape:
    config = read_config(path)
    return family_of(config).read_config(config)


def _load(options: ServeOptions, shapes: Mapping[str, ModelShape]) -> Load:
    words = options.concurrency.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise RecipeError(
            f"concurrency {options.concurrency!r} is no list of numbers above 0",
            'write it like "1,4,16,64"',
        )
    if options.repeats < 1 or options.requests_per_user < 1:
        raise RecipeError("repeats and requests per user must be at least 1", "give 1 or more")
    return Load(
        parse_workload(options.workload),
        tuple(sorted({int(word) for word in words})),
        vocab=min(shape.sizes["vocab"] for shape in shapes.values()),
        repeats=options.repeats,
        requests_per_user=options.requests_per_user,
        seed=options.seed,
    )


def _settings(options: ServeOptions, load: Load, *, scratch: Path) -> EngineSettings:
    scratch.mkdir()
    return EngineSettings(
        context=load.workload.peak_context + SPARE_CONTEXT,
        sequences=max(load.concurrencies),
        scratch=scratch,
        threads=options.threads,
        dtype=options.dtype,
        python=options.engine_python,
        arguments=options.engine_arguments,
    )


def _folder(path: Path, settings: EngineSettings, *, options: ServeOptions) -> Path:
    """The checkpoint to load: as it is, dequantised, or one of its shape with random weights."""
    if options.random_weights:
        folder = settings.scratch / "random"
        folder.mkdir()
        write_random_checkpoint(path, folder=folder, seed=options.seed)
        return folder
    source = open_checkpoint(path)
    is_gguf = engine_named(options.engine).name == GGUF_ENGINE
    if is_gguf and isinstance(source, QuantizedCheckpoint):
        folder = settings.scratch / "dequantised"
        folder.mkdir()
        return rewrite(source, folder, reporter=Reporter(is_quiet=True)).folder
    return path


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for converted weights and logs; after an error its logs stay, to be read."""
    folder = Path(tempfile.mkdtemp(prefix="fretsaw-serve-"))
    try:
        yield folder
    except BaseException:
        for file in folder.rglob("*"):
            if file.is_file() and file.suffix != ".log":
                file.unlink()
        if not any(folder.rglob("*.log")):
            shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def _hardware(options: ServeOptions) -> Hardware:
    return hardware_named(options.hardware) if options.hardware else measure_machine().hardware


@dataclass(frozen=True)
class Prediction:
    """What the cost model says of the same load.

    Attributes:
        pricer: Of known hardware, or calibrated on the first model that was measured here.
        hardware: To predict for.
        load: Workload and concurrencies.
    """

    pricer: Pricer
    hardware: Hardware
    load: Load

    def points(self, shape: ModelShape) -> tuple[Point, ...]:
        """A point for each concurrency."""
        workload, node = self.load.workload, Node(self.hardware)
        return tuple(
            point(shape, node, workload=workload, pricer=self.pricer, sequences=concurrency)
            for concurrency in self.load.concurrencies
        )

    def memory(self, shape: ModelShape) -> tuple[int, float]:
        """Bytes of the weights, and of one request at its end."""
        whole = footprint(shape, self.pricer.precision)
        return whole.weights_bytes, whole.sequence_bytes(self.load.workload.peak_context)


def _prediction(
    options: ServeOptions,
    hardware: Hardware,
    *,
    shapes: Mapping[str, ModelShape],
    loaded: Mapping[str, tuple[Loaded, ...]],
    load: Load,
) -> Prediction:
    precision = preset(FORMATS[options.dtype])
    if options.hardware:
        pricer = pricers(hardware, engine=options.engine, precision=precision)(ONE_GPU)
    else:
        name, shape = next(iter(shapes.items()))
        pricer = calibrated_pricer(
            shape,
            loaded[name],
            workload=load.workload,
            hardware=hardware,
            precision=precision,
        )
    return Prediction(pricer, hardware, load)


def write_picture(served: Served, path: Path) -> None:
    """Write the measured and predicted frontiers as SVG; a file that is there is not touched.

    Raises:
        RecipeError: the file is there.
    """
    if path.exists():
        raise RecipeError(f"{path} is there already", "give another name")
    path.write_text(served_svg(served), encoding="utf-8")
