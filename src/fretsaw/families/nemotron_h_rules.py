"""Rules of a Nemotron-H config: one value for one thing, and sizes that go together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fretsaw.errors import CheckpointError, UnsupportedModelError
from fretsaw.families.base import Config
from fretsaw.families.nemotron_h_keys import DEFAULTS, KINDS, MUST_BE, OLD_KEYS, SHARED_EXPERTS
from fretsaw.families.nemotron_h_names import MOE_KEYS

ONE_THING = (("layer_norm_epsilon", "rms_norm_eps", "norm_eps"), ("dtype", "torch_dtype"))
"""Keys under which different engines look for the same thing."""

STEP_LIMIT = "time_step_limit"
"""transformers up to 5.14 clamps the time step to it; vLLM, SGLang and fretsaw to (0, inf)."""

LARGEST_FINITE_LIMIT = 1e6
"""A time step that no model reaches: Ultra's config writes 1e308 for infinity."""

ENTRY_KEYS = {
    "mamba": frozenset[str](),
    "attention": frozenset({"num_key_value_heads", "num_attention_heads"}),
    "mlp": frozenset({"intermediate_size"}),
    "moe": frozenset(MOE_KEYS.values()),
}
"""Keys that a block may have its own value of."""

GROUP_BEST = 2
"""Scores per group that the group's own score is made of."""

SHOWN = 60
"""Characters of a value in a message."""


def renamed(config: Config) -> dict[str, Any]:
    """The config with old keys under their present names.

    Raises:
        CheckpointError: both names are given and differ.
    """
    result = dict(config)
    for old, new in OLD_KEYS.items():
        if old in result:
            result[new] = _agreed(result, (new, old))
            del result[old]
    for keys in ONE_THING:
        _agreed(result, keys)
    return result


def _agreed(config: Config, keys: Iterable[str]) -> Any:
    """The one value of several keys.

    Raises:
        CheckpointError: two of them differ.
    """
    given = {key: config[key] for key in keys if config.get(key) is not None}
    for key, value in given.items():
        first = next(iter(given))
        if value != given[first]:
            raise CheckpointError(
                f"config has {first}={shown(given[first])} and {key}={shown(value)}, which say "
                "the same thing differently: engines read one or the other",
                "keep the one that is right",
            )
    return next(iter(given.values()), None)


def check_values(config: Config) -> None:
    """Check each key's value by itself; null is a missing value.

    Raises:
        CheckpointError: a value of the wrong type or size, or one that engines disagree on.
        UnsupportedModelError: a value that has no tensor table.
    """
    for key, value in config.items():
        _check_kind(key, value)
    for key, wanted in MUST_BE.items():
        value = config.get(key)
        is_same = value == wanted and type(value) is type(wanted)
        if value is not None and value != {} and not is_same:
            raise UnsupportedModelError(
                f"config has {key}={shown(value)}; fretsaw knows the tensors and the sums of "
                f"{key}={wanted} alone",
                "fretsaw cannot cut this checkpoint",
            )
    _check_agreed(config)


def _check_kind(key: str, value: object, place: str = "") -> None:
    kind = KINDS.get(key)
    if kind is not None and value is not None and not kind.holds(value):
        raise CheckpointError(
            f"config key {place}{key} is {shown(value)}; {kind.words} was expected",
            "repair config.json",
        )


def _check_agreed(config: Config) -> None:
    """Refuse values of which engines make different models."""
    count = config.get(SHARED_EXPERTS, 1)
    if count is True or count != 1:
        raise CheckpointError(
            f"config has {SHARED_EXPERTS}={shown(count)}; vLLM multiplies the width of the shared "
            "experts by it, transformers does not: only 1 means the same model to both",
            f"write {SHARED_EXPERTS} 1 and the width as it is stored in {MOE_KEYS['shared_ffn']}",
        )
    limit = config.get(STEP_LIMIT)
    if limit is not None and not _is_no_limit(limit):
        raise CheckpointError(
            f"config has {STEP_LIMIT}={shown(limit)}; engines that read it clamp the time step, "
            "vLLM and SGLang do not: only 0 to infinity means the same model to all",
            f"remove {STEP_LIMIT} from config.json, if the model was trained without a clamp",
        )


def _is_no_limit(limit: object) -> bool:
    """Whether a pair says 0 to infinity; transformers writes infinity as an object."""
    if not isinstance(limit, list | tuple) or len(limit) != 2:  # noqa: PLR2004 - least, most
        return False
    least, most = limit
    if isinstance(most, dict):
        most = most.get("__float__")
    if isinstance(most, str):
        most = math.inf if most.lower().lstrip("+") in ("inf", "infinity") else None
    is_number = isinstance(most, int | float) and not isinstance(most, bool)
    return least == 0 and least is not False and is_number and most >= LARGEST_FINITE_LIMIT


def check_mamba(config: Config) -> None:
    """Check that sizes of the Mamba blocks go together.

    Raises:
        CheckpointError: they do not.
    """
    heads, groups = config["mamba_num_heads"], config["n_groups"]
    if heads % groups:
        raise CheckpointError(
            f"mamba_num_heads={heads} is no multiple of n_groups={groups}: each group serves "
            "equally many heads",
            "repair config.json",
        )


def check_routing(config: Config, *, experts: int, top_k: int) -> None:
    """Check that experts, top-k and the groups that routing is limited to go together.

    Args:
        config: Of the whole model.
        experts: Of the block.
        top_k: Of the block.

    Raises:
        CheckpointError: they do not.
    """
    groups = config.get("n_group") or DEFAULTS["n_group"]
    chosen = config.get("topk_group") or DEFAULTS["topk_group"]
    said = f"n_group={groups}"
    if top_k > experts:
        raise CheckpointError(
            f"config asks for top-k {top_k} of {experts} experts",
            "num_experts_per_tok must not exceed n_routed_experts",
        )
    if experts % groups:
        _impossible(f"n_routed_experts={experts} is no multiple of {said}")
    if chosen > groups:
        _impossible(f"topk_group={chosen} exceeds {said}")
    if groups > 1 and experts // groups < GROUP_BEST:
        _impossible(f"{said} leaves {experts // groups} expert a group; routing compares two")
    if top_k > chosen * (experts // groups):
        _impossible(
            f"num_experts_per_tok={top_k} exceeds the {chosen * (experts // groups)} experts of "
            f"topk_group={chosen} of {said} groups of {experts}"
        )


def _impossible(message: str) -> None:
    raise CheckpointError(message, "repair config.json")


def check_entries(config: Config, key: str, *, mixers: Iterable[str]) -> None:
    """Check the own values of each block, and that no reader ignores them.

    Args:
        config: Of the whole model.
        key: `block_configs`, or the prediction head's.
        mixers: One per entry.

    Raises:
        CheckpointError: a value is wrong, or a plain `nemotron_h` has values of its own per block.
        UnsupportedModelError: a block has its own value of something that fretsaw keeps global.
    """
    sizes = frozenset[str]().union(*ENTRY_KEYS.values())
    for i, (entry, mixer) in enumerate(zip(config.get(key) or (), mixers, strict=False)):
        place = f"{key}[{i}]."
        for name, value in entry.items():
            if name == "block_type" or value is None:
                continue
            _check_kind(name, value, place)
            if name in ENTRY_KEYS[mixer]:
                _check_is_read(config, place + name, name=name, value=value)
            elif name not in sizes and value != config.get(name, DEFAULTS.get(name)):
                raise UnsupportedModelError(
                    f"config has {place}{name}={shown(value)}, the whole model "
                    f"{name}={shown(config.get(name, DEFAULTS.get(name)))}; fretsaw knows one "
                    "value for all blocks",
                    "fretsaw cannot cut this checkpoint",
                )


def _check_is_read(config: Config, place: str, *, name: str, value: object) -> None:
    """A plain `nemotron_h` is built from the global keys alone."""
    if config.get("model_type") == "nemotron_h" and value != config.get(name, value):
        raise CheckpointError(
            f"config has {place}={shown(value)} and {name}={shown(config[name])}, and engines read "
            "the second where model_type is nemotron_h",
            "say nemotron_h_puzzle if blocks differ; else remove block_configs",
        )


def differing(lists: Mapping[str, list[Any]]) -> tuple[str, str, int] | None:
    """Two keys whose lists differ, and where first; None if all agree."""
    (first, wanted), *others = lists.items()
    for key, found in others:
        if found != wanted:
            pairs = enumerate(zip(wanted, found, strict=False))
            place = (i for i, (a, b) in pairs if a != b)
            return first, key, next(place, min(len(wanted), len(found)))
    return None


def shown(value: object) -> str:
    """A value in a message: not longer than a line."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
