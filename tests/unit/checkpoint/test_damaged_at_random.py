"""Seeded damage to a checkpoint's config, index, headers and tokenizer: an error of ours, or none.

`FRETSAW_DAMAGES` sets the number of mutations for a longer run by hand.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fretsaw.checkpoint.contents import INDEX_NAME
from fretsaw.checkpoint.lineage import hash_checkpoint
from fretsaw.checkpoint.reader import Checkpoint
from fretsaw.core.precision import precision_from
from fretsaw.errors import FretsawError
from fretsaw.quant.export import ExportSettings, write_quantized
from fretsaw.quant.plan import plan_export
from fretsaw.quant.reader import open_checkpoint
from fretsaw.stages.describe import describe
from fretsaw.stages.verify import verify
from tests.pico import write_pico_checkpoint

NUMBER = int(os.environ.get("FRETSAW_DAMAGES", "240"))
SLICES = 4
SHARDS = "model-00001-*.safetensors"
LEGACY = "hf_quant_config.json"
JSON_FILES = (
    "config.json",
    "config.json",
    INDEX_NAME,
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
)
KEYS = (
    "sliding_window",
    "n_group",
    "topk_group",
    "head_dim",
    "auto_map",
    "quantization_config",
    "per_layer_config",
    "layer_types",
    "hybrid_override_pattern",
    "time_step_limit",
    "torch_dtype",
    "added_tokens_decoder",
    "x",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    7,
    2**31,
    10**40,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "bfloat16",
    "../x",
    "\ud800",
    [],
    [None],
    [[]],
    ["moe"],
    {},
    {"a": None},
    [{"block_type": "moe"}],
    {"quant_method": "modelopt", "quant_algo": "FP8"},
    {"AutoModel": ["a--b.C", None]},
    "ME*E/*E",
    [0.0, "inf"],
)


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pico")
    write_pico_checkpoint(folder / "equal", seed=5, num_shards=2)
    write_pico_checkpoint(folder / "unequal", seed=5, num_shards=2, heterogeneous=True)
    (folder / "quantised").mkdir()
    source = Checkpoint(folder / "equal")
    size = sum(file.stat().st_size for file in (folder / "equal").glob("*.safetensors"))
    write_quantized(
        source,
        plan_export(source, precision_from({"experts": "nvfp4", "weight_only": ["experts"]})),
        folder=folder / "quantised",
        activations=None,
        settings=ExportSettings(shard_bytes=size // 2),
    )
    return [folder / "equal", folder / "unequal", folder / "quantised"]


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in JSON data, the first few of long lists and objects."""
    found = [path] if path else []
    if isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for key, value in list(items)[:60]:
            found += _places(value, (*path, key))
    return found


def _mutate(data: Any, rng: random.Random) -> Any:
    places = _places(data)
    if not places or rng.random() < 0.03:
        return rng.choice(VALUES)
    *way, last = rng.choice(places)
    inside = data
    for key in way:
        inside = inside[key]
    match rng.randrange(4):
        case 0:
            del inside[last]
        case 1 if isinstance(inside, dict):
            inside[rng.choice(KEYS)] = rng.choice(VALUES)
        case 2 if isinstance(inside[last], int) and not isinstance(inside[last], bool):
            inside[last] = inside[last] * rng.choice((-1, 2, 3, 1.5)) + rng.choice((0, 1))
        case _:
            inside[last] = rng.choice(VALUES)
    return data


def _shard(folder: Path) -> Path:
    return next(folder.glob(SHARDS))


def _in_json(folder: Path, rng: random.Random) -> str:
    names = (*JSON_FILES, LEGACY) if (folder / LEGACY).is_file() else JSON_FILES
    name = rng.choice(names)
    data = _mutate(json.loads((folder / name).read_text()), rng)
    (folder / name).write_text(json.dumps(data))
    return name


def _in_header(folder: Path, rng: random.Random) -> str:
    shard = _shard(folder)
    data = shard.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(_mutate(json.loads(data[8 : 8 + length]), rng)).encode()
    shard.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    return "header"


def _in_bytes(folder: Path, rng: random.Random) -> str:
    name = rng.choice((*JSON_FILES, _shard(folder).name))
    data = bytearray((folder / name).read_bytes())
    start = rng.randrange(min(len(data), 200))
    match rng.randrange(3):
        case 0:
            del data[start:]
        case 1:
            data[start] ^= 1 << rng.randrange(8)
        case _:
            data[start:start] = rng.randbytes(3)
    (folder / name).write_bytes(data)
    return f"bytes of {name}"


def _in_folder(folder: Path, rng: random.Random) -> str:
    name = rng.choice((*JSON_FILES, _shard(folder).name))
    (folder / name).unlink()
    match rng.randrange(4):
        case 0:
            (folder / name).mkdir()
        case 1:
            (folder / name).symlink_to("gone")
        case 2:
            os.mkfifo(folder / name)
        case _:
            pass
    return f"no file {name}"


DAMAGES: tuple[Callable[[Path, random.Random], str], ...] = (
    _in_json,
    _in_json,
    _in_json,
    _in_header,
    _in_bytes,
    _in_folder,
)


def _opened(folder: Path) -> None:
    open_checkpoint(folder).check()


@pytest.mark.parametrize("part", range(SLICES))
def test_f4_f7_u19_whatever_is_damaged_is_an_error_or_a_fault(
    parents: list[Path], tmp_path: Path, part: int
) -> None:
    refused = 0
    for number in range(part, NUMBER, SLICES):
        rng = random.Random(number)
        folder = tmp_path / "damaged"
        shutil.copytree(rng.choice(parents), folder)
        what = rng.choice(DAMAGES)(folder, rng)
        said = []
        for look in (describe, hash_checkpoint, _opened):
            try:
                look(folder)
            except FretsawError as error:
                said.append(error)
            except Exception as error:
                raise AssertionError(f"damage {number} ({what})") from error
        try:
            faults = verify(folder, generate=False).faults
        except Exception as error:
            raise AssertionError(f"damage {number} ({what}): verify") from error
        assert all(error.hint for error in said), (number, what, said)
        refused += bool(said or faults)
        shutil.rmtree(folder)
    assert refused > NUMBER / SLICES / 2
