"""A tiny run: the pico parent, seeded text, a recipe of two rounds, and what its folders hold."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import yaml

from fretsaw.checkpoint.lineage import hash_file
from fretsaw.recipe import Recipe, resolve_recipe
from fretsaw.stages.manifest import MANIFEST
from fretsaw.stages.progress import Reporter
from tests.pico import write_pico_checkpoint

STAGES = (
    "00-describe",
    "01-calibrate",
    "02-rank",
    "03-library",
    "04-score",
    "05-cost",
    "06-search",
    "07-build",
    "08-distill",
)
QUIET = Reporter(is_quiet=True)


def write_text(folder: Path, *, seed: int = 0) -> Path:
    """A data-set folder of random words: train, calibration and validation as JSON lines."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("aehinorst", k=rng.randint(2, 7))) for _ in range(60)]
    folder.mkdir(parents=True)
    for split, documents in {"train": 60, "calibration": 30, "validation": 20}.items():
        lines = (" ".join(rng.choices(words, k=40)) for _ in range(documents))
        rows = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        (folder / f"{split}.jsonl").write_text(rows)
    return folder


def recipe_data(parent: Path, text: Path) -> dict[str, Any]:
    """Two rounds: narrower experts and a smaller state, then fewer experts per token."""
    return {
        "parent": str(parent),
        "data": {"path": str(text)},
        "compute": {"threads": 1, "batch_sequences": 4},
        "calibrate": {"sequences": 8, "sequence_length": 32},
        "rank": {"min_tokens": 8},
        "library": {"granularity": {"ffn": 8, "state": 4}, "repair_sequences": 8},
        "score": {"sequences": 4},
        "build": {"shard_bytes": "40kB"},
        "distill": {
            "tokens": 1024,
            "sequence_length": 32,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "validation_sequences": 4,
            "evaluations": 4,
        },
        "rounds": [
            {
                "library": {"moe": {"ffn": [16, 24]}, "mamba": {"state": [12]}},
                "search": {
                    "budget": {"moe_params": "75%", "state_bytes": "75%"},
                    "random_choices": 3,
                },
            },
            {
                "library": {"moe": {"top_k": [1]}},
                "search": {"budget": {"active_experts": "75%"}},
                "distill": {"learning_rate": "auto"},
            },
        ],
    }


class Setting:
    """A parent, its text and a recipe in one folder, to be spoiled at will."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parent = folder / "parent"
        self.text = folder / "text"
        self.out = folder / "run"
        self.data = recipe_data(self.parent, self.text)

    @classmethod
    def write(cls, folder: Path) -> Setting:
        """A fresh one."""
        setting = cls(folder)
        write_pico_checkpoint(setting.parent, seed=1, num_shards=2)
        write_text(setting.text)
        return setting

    def copy(self, folder: Path) -> Setting:
        """The same parent and text in another folder; the run is not copied."""
        for name in ("parent", "text"):
            shutil.copytree(self.folder / name, folder / name)
        return Setting(folder)

    @property
    def recipe(self) -> Recipe:
        """The recipe, resolved."""
        return resolve_recipe(self.data)

    @property
    def recipe_file(self) -> Path:
        """The recipe as it stands now, as a YAML file."""
        file = self.folder / "recipe.yaml"
        file.write_text(yaml.safe_dump(self.data, sort_keys=False))
        return file

    def changed(self, **sections: Any) -> Recipe:
        """The recipe with other top-level keys."""
        return resolve_recipe(copy.deepcopy(self.data) | sections)


def contents(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every file that the stages below a folder gave as a result."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {str(p.relative_to(folder)): hash_file(p) for p in sorted(files)}


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    """Relative path -> time of change and SHA-256, of every file below a folder."""
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, hash_file(p)) for p in files}
