"""docs/recipe.md names every key of the recipe, every cost, and nothing else."""

import re
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from fretsaw.pricing.memory import COSTS
from fretsaw.recipe.sections import SECTIONS, Compute, Data, Quantize

PAGE = (Path(__file__).parents[2] / "docs" / "recipe.md").read_text(encoding="utf-8")


def keys_of(model: type[BaseModel], prefix: str) -> set[str]:
    keys = set()
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *get_args(field.annotation)) if is_section(t)]
        keys |= keys_of(inner[0], f"{prefix}.{name}") if inner else {f"{prefix}.{name}"}
    is_open = model.model_config.get("extra") == "allow"
    return keys | ({prefix} if is_open else set())


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def test_every_key_is_documented_and_no_other() -> None:
    sections = {**SECTIONS, "data": Data, "compute": Compute, "quantize": Quantize}
    known = set().union(*(keys_of(model, name) for name, model in sections.items()))
    rows = re.findall(r"^\| (`[^|]+) \|", PAGE, flags=re.MULTILINE)
    documented = set()
    for row in rows:
        names = re.findall(r"`([^`]+)`", row)
        stem = names[0].rsplit(".", 1)[0]
        documented |= {stem + name if name.startswith(".") else name for name in names}
    assert documented - {"parent", "seed", "rounds"} == known


def test_every_cost_is_documented() -> None:
    assert [name for name in COSTS if f"`{name}`" not in PAGE] == []
