"""Parent and child in vLLM and llama.cpp on the CPU, against transformers: must say the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from fretsaw.checkpoint.child import write_child
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import preset
from fretsaw.core.variant import Choice, Variant
from fretsaw.errors import RunError
from fretsaw.quant.export import ExportSettings, write_quantized
from fretsaw.quant.plan import plan_export
from fretsaw.quant.reader import open_checkpoint
from fretsaw.serving.engines import llamacpp, vllm
from fretsaw.serving.engines.base import EngineSettings, Generation, Session, engine_python
from fretsaw.serving.engines.registry import engine_named
from fretsaw.serving.engines.transformers import Transformers
from fretsaw.stages.export import rewrite
from fretsaw.stages.progress import Reporter
from tests.pico import write_pico_checkpoint
from tests.unit.quant.test_export import all_peaks

pytestmark = [pytest.mark.engines, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PARENT = ROOT / "recipes" / "demo" / "parent"
LENGTHS = (3, 17, 40, 63, 64, 65, 130, 200)
"""Tokens of the prompts: below, at and above one chunk (64) of the Mamba scan, and several."""

NUM_TOKENS = 32
MODULES = {"vllm": ("vllm", vllm.INSTALL), "llama.cpp": ("xllamacpp", llamacpp.INSTALL)}


def _settings(scratch: Path) -> EngineSettings:
    return EngineSettings(context=256, sequences=4, scratch=scratch)


@pytest.fixture(autouse=True, scope="module")
def _at_root() -> Iterator[None]:
    """Engines are found below the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tied = tmp_path_factory.mktemp("tied")
    write_pico_checkpoint(tied, seed=5, tie_word_embeddings=True, head_dim=32)  # least in vLLM
    _drop_head(tied / "model.safetensors")
    made = {name: tmp_path_factory.mktemp(name) for name in ("child", "child of a tied parent")}
    demo_sizes = [(96, 8), (48, 2), (32, 2), (80, 5), (64, 3), (48, 1), (16, 8)]
    _write_child(made["child"], PARENT, demo_sizes)
    _write_child(made["child of a tied parent"], tied, [(16, 1), (24, 2)])
    return made | {"parent": PARENT}


def _drop_head(file: Path) -> None:
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file(tensors, file, metadata={"format": "pt"})


def _write_child(folder: Path, source: Path, moe_sizes: Iterable[tuple[int, int]]) -> None:
    """A child with a width and top-k of its own in each block, and three quarters of the state."""
    parent = Checkpoint(source)
    sizes = itertools.cycle(moe_sizes)
    variants = []
    for i, block in enumerate(parent.shape.blocks):
        values = {}
        if block.mixer == "moe":
            values = dict(zip(("ffn", "top_k"), next(sizes), strict=True))
        if block.mixer == "mamba":
            values = {"state": block.sizes["state"] * 3 // 4}
        variants.append(Variant(i, values))
    write_child(
        parent,
        Choice(tuple(variants), score=0.0, costs={}),
        folder=folder,
        orders={},
        repaired=lambda block, pattern, bound: None,
        shard_bytes=4_000_000,
    )
    for code in folder.glob("*.py"):
        code.write_text('raise SystemExit("code of the folder was run")')


def _prompts(folder: Path) -> list[list[int]]:
    """Text in the folder's own tokens; the pico tokenizer knows no word of it, but all letters."""
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode((ROOT / "LICENSE").read_text())
    starts = range(0, 8 * 250, 250)
    return [ids.ids[s : s + n] for s, n in zip(starts, LENGTHS, strict=True)]


Opened = Callable[[str, Path], Session]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens engines that live until the end of the test; skips where they are not installed."""
    with ExitStack() as stack:

        def open_(name: str, folder: Path) -> Session:
            settings = _settings(tmp_path)
            module, install = MODULES[name]
            try:
                engine_python(name, module=module, settings=settings, install=install)
            except RunError as error:
                pytest.skip(error.hint)
            return stack.enter_context(engine_named(name).open(folder, settings))

        yield open_


def _reference(folder: Path, prompts: list[list[int]]) -> tuple[Generation, ...]:
    with Transformers().open(folder, _settings(folder)) as session:
        return session.generate(prompts, num_tokens=NUM_TOKENS)


def _largest_difference(said: Generation, expected: Generation) -> float:
    pairs = zip(said.logprobs, expected.logprobs, strict=True)
    return max(abs(a - b) for a, b in pairs if a is not None and b is not None)


@pytest.mark.parametrize("model", ["parent", "child", "child of a tied parent"])
@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_an_engine_says_what_transformers_says(
    engine: str, model: str, folders: dict[str, Path], opened: Opened
) -> None:
    folder = folders[model]
    prompts = _prompts(folder)
    expected = _reference(folder, prompts)

    said = opened(engine, folder).generate(prompts, num_tokens=NUM_TOKENS)

    assert [s.tokens for s in said] == [e.tokens for e in expected]
    assert max(map(_largest_difference, said, expected)) < 1e-4


@pytest.mark.parametrize("name", ["fp8", "nvfp4"])
@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_u1_an_engine_says_of_quantised_weights_what_fretsaw_reads(
    engine: str, name: str, folders: dict[str, Path], opened: Opened, tmp_path: Path
) -> None:
    """Dequantised: by the plug-in in vLLM on a CPU, by `export` and `serve` for llama.cpp."""
    child = Checkpoint(folders["child"])
    packed, plain = tmp_path / "packed", tmp_path / "plain"
    packed.mkdir()
    write_quantized(
        child,
        plan_export(child, preset(name)),
        folder=packed,
        activations=all_peaks(child),
        settings=ExportSettings(),
    )
    prompts = _prompts(packed)
    expected = _reference(packed, prompts)
    if engine == "llama.cpp":
        plain.mkdir()
        rewrite(open_checkpoint(packed), plain, reporter=Reporter(is_quiet=True))

    said = opened(engine, plain if engine == "llama.cpp" else packed).generate(
        prompts, num_tokens=NUM_TOKENS
    )

    assert [s.tokens for s in said] == [e.tokens for e in expected]
    assert max(map(_largest_difference, said, expected)) < 1e-4
