"""A checkpoint in the form that an engine takes, and the page that says which engines do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fretsaw.checkpoint.child import plan_child, untied_bytes, write_child
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.compatibility import findings
from fretsaw.core.engines import Engine, engine_named, has_equal_blocks
from fretsaw.core.precision import preset
from fretsaw.core.variant import Choice, Variant
from fretsaw.errors import RunError, UnsupportedModelError
from fretsaw.quant.reader import QuantizedCheckpoint, dequantized, precision_of
from fretsaw.serving.engines.base import EngineSettings, engine_python
from fretsaw.serving.engines.llamacpp import GGUF, INSTALL, convert
from fretsaw.stages.folders import keep_apart
from fretsaw.stages.loaders import PAGE, write_who_can_load
from fretsaw.stages.progress import Reporter

GGUF_ENGINE = "llama.cpp"

UNPREFIXED = ("head", "mtp")
SHARD_BYTES = 5 * 10**9


def export(
    folder: Path | str,
    *,
    to: str,
    out: Path | str,
    python: Path | None = None,
    reporter: Reporter | None = None,
) -> Path:
    """Write a checkpoint in the form that an engine takes.

    For llama.cpp that is one float32 GGUF file, written by its own converter. All other
    engines take the directory that `build` writes: this rewrites anybody's checkpoint in that form
    (one tensor per expert, the prefix and the layer words that every engine reads, a head of its
    own, our two files where blocks differ). A quantised checkpoint is dequantised: to float32 in a
    GGUF file, else to bfloat16.

    Args:
        folder: Checkpoint of a family that fretsaw knows, quantised or not.
        to: An engine by name.
        out: Folder that is not there yet.
        python: Of llama.cpp's environment; found by itself if it is not given.
        reporter: Where progress goes; stderr by default.

    Returns:
        The folder.

    Raises:
        CheckpointError: the checkpoint is damaged, or quantised in a way that is not known.
        RecipeError: no such engine.
        RunError: `out` is there, or llama.cpp is not, or does not take it.
        UnsupportedModelError: the engine cannot load such a model, by what is known of it.
    """
    engine, target = engine_named(to), Path(out)
    is_gguf = engine.key == GGUF_ENGINE
    source = dequantized(Checkpoint(Path(folder)), read_as="F32" if is_gguf else "BF16")
    source.check()
    check_engine(source, engine)
    if target.exists():
        raise RunError(f"{target} is there already", "give another --out, or remove it")
    keep_apart(target, {"the checkpoint": source.folder})
    with _private_folder(target) as private:
        if is_gguf:
            _write_gguf(source, private, python=python, reporter=reporter or Reporter())
        else:
            rewrite(source, private, reporter=reporter or Reporter())
            write_who_can_load(private, untied_bytes=untied_bytes(source))
    return target


def check_engine(source: Checkpoint, engine: Engine) -> None:
    """Refuse a model that an engine does not take, by all that is known against it.

    Raises:
        UnsupportedModelError: with every reason.
    """
    is_packed = isinstance(source, QuantizedCheckpoint)
    precision = preset("bf16") if is_packed else precision_of(source)
    found = findings(source.shape, engine=engine, precision=precision)
    refused = [str(finding) for finding in found if finding.severity == "refuse"]
    if refused:
        raise UnsupportedModelError(
            f"{source.folder} does not load there: {'; '.join(refused)}",
            f"see {PAGE} beside the checkpoint, or keep to these limits in the recipe's library",
        )


def rewrite(source: Checkpoint, folder: Path, *, reporter: Reporter) -> Checkpoint:
    """Write a checkpoint into an empty folder in the form that `build` writes; nothing is cut."""
    same = Choice(tuple(map(Variant, range(source.shape.num_blocks))), score=0.0, costs={})
    total = sum(1 for _ in plan_child(source, same))
    with reporter.progress("tensors", total) as advance:
        return write_child(
            source,
            same,
            folder=folder,
            orders={},
            repaired=_unrepaired,
            shard_bytes=SHARD_BYTES,
            on_tensor=advance,
        )


def _unrepaired(*_: object) -> None:
    """Every weight is taken as it is."""


def _write_gguf(
    source: Checkpoint, folder: Path, *, python: Path | None, reporter: Reporter
) -> None:
    """Convert the folder itself where llama.cpp finds every tensor, else a rewritten copy."""
    settings = EngineSettings(context=0, sequences=0, scratch=folder, python=python)
    found = engine_python("llama.cpp", module="xllamacpp", settings=settings, install=INSTALL)
    file = folder / GGUF
    if not isinstance(source, QuantizedCheckpoint) and _is_taken(source):
        convert(source.folder, file, python=found)
    else:
        copy = folder / "rewritten"
        copy.mkdir()
        convert(rewrite(source, copy, reporter=reporter).folder, file, python=found)
        shutil.rmtree(copy)
    file.with_suffix(".log").unlink()


def _is_taken(source: Checkpoint) -> bool:
    """Whether llama.cpp's converter finds every tensor under its stored name."""
    (naming,) = (n for n in source.family.namings if n.engine == GGUF_ENGINE)
    is_equal = has_equal_blocks(source.shape)
    trunk = [p.key for n, p in source.stored.items() if source.family.part_of(n) not in UNPREFIXED]
    return all(naming.finds(key, is_equal=is_equal) for key in trunk)


@contextmanager
def _private_folder(target: Path) -> Iterator[Path]:
    """A folder that takes its name when all went well, and is gone otherwise."""
    partial = target.with_name(target.name + ".partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
