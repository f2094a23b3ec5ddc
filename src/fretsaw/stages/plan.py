"""Plan: a model on a hardware in serving terms, from its config alone and without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fretsaw.checkpoint.reader import read_config
from fretsaw.core.compatibility import findings
from fretsaw.core.deployment import Deployment, deploy
from fretsaw.core.engines import Engine, engine_named
from fretsaw.core.hardware import (
    Layout,
    Node,
    Workload,
    parse_layout,
    parse_node,
    parse_workload,
    with_memory,
)
from fretsaw.core.precision import Precision, preset
from fretsaw.core.shape import ModelShape
from fretsaw.core.units import format_bytes, parse_count, parse_memory
from fretsaw.errors import RecipeError
from fretsaw.families import family_of
from fretsaw.families.base import ContextLimit
from fretsaw.pricing.blocks import check_layout
from fretsaw.pricing.provider import EngineModel, energy_models, engine_model, pricers_of
from fretsaw.reports.outlook import NamedOutlook, ServingPlan, plan_svg
from fretsaw.serving.capacity import MEMORY_FRACTION, Assumptions
from fretsaw.serving.frontier import layouts_of, replica_layouts
from fretsaw.serving.planner import Setting, most_sequences, outlook
from fretsaw.serving.requirement import Requirement, judge, parse_requirement

MOST_MODELS = 2


@dataclass(frozen=True)
class PlanOptions:
    """What `fretsaw plan` is asked, as text where people write units.

    Attributes:
        hardware: Node, such as ``8xB200``.
        workload: ``input/output`` tokens, such as ``8k/64k``.
        user_tokens_per_s: Speed of each user.
        number_format: Preset of `fretsaw.core.precision`.
        context: Tokens of each sequence for the most concurrent ones; the workload's by default.
        memory_fraction: Share of each GPU that the engine may use.
        memory: Instead of the data sheet's memory of one accelerator.
        headroom: Kept free beside weights and sequences.
        state_dtype: Instead of the preset's SSM state format.
        kv_dtype: Instead of the preset's KV format.
        weights_bytes: Weights on one accelerator, per model, instead of what the format gives.
        layout: Only this one, such as ``tp2 ep2``.
        engine: Whose constants.
        acceptance_length: Tokens per decode step, of every model.
        has_mtp: Whether the prediction head is loaded.
        verbosity: Tokens that the child says for one of the parent.
        require: Such as ``2x server tokens/s``.
    """

    hardware: str
    workload: str | None = None
    user_tokens_per_s: float | None = None
    number_format: str = "bf16"
    context: str | None = None
    memory_fraction: float = MEMORY_FRACTION
    memory: str | None = None
    headroom: str = "0"
    state_dtype: str | None = None
    kv_dtype: str | None = None
    weights_bytes: Sequence[str] | None = None
    layout: str | None = None
    engine: str = "vllm"
    acceptance_length: float = 1.0
    has_mtp: bool = False
    verbosity: float = 1.0
    require: str | None = None


ModelConfig = Path | str | Mapping[str, Any]
"""A config file, a checkpoint folder, or a config as a mapping."""


def plan(
    model: ModelConfig, child: ModelConfig | None = None, *, options: PlanOptions
) -> ServingPlan:
    """Speed, concurrency and what binds, of a model or of a parent and its child.

    Args:
        model: Config file, checkpoint folder or config.
        child: Another, to compare.
        options: Hardware, workload and assumptions.

    Raises:
        CheckpointError: no readable config.
        UnsupportedModelError: unknown architecture.
        RecipeError: an option that makes no sense, or a layout or context the model cannot have.
    """
    names = [_name(model, "model"), *([_name(child, "child")] if child is not None else [])]
    read = [_read(given) for given in (model, child) if given is not None]
    requirement = _check(options, models=len(read))
    engine = engine_named(options.engine)
    node, deployed = _node(options), _deployments(options, [shape for shape, _ in read])
    workload = _workload(options)
    context = _context(
        options, workload, limit=min((one for _, one in read), key=lambda one: one.served)
    )
    prices = engine_model(node.hardware, options.engine)
    terms = Terms(options, node, workload, context, prices)
    outlooks = []
    for index, (name, (shape, _)) in enumerate(zip(names, read, strict=True)):
        setting = terms.setting(shape, deployed[index].precision, index=index)
        outlooks.append(NamedOutlook(name, outlook(shape, setting), setting))
    first = outlooks[0]
    verdict = (
        judge(first.outlook.shape, first.setting, requirement=requirement) if requirement else None
    )
    return ServingPlan(
        tuple(outlooks),
        options.engine,
        _constants(prices),
        prices.is_calibrated,
        options.verbosity,
        options.require,
        verdict,
        (
            *_misfits(outlooks),
            *_draft_notes(options),
            *dict.fromkeys(note for one in deployed for note in one.notes),
            *_page_notes(engine, outlooks=outlooks),
            *_calibration_notes(node, prices, workload=workload),
            *_context_notes([limit for _, limit in read], context=context),
            *_limits(engine, outlooks=outlooks),
        ),
    )


@dataclass(frozen=True)
class Terms:
    """What is asked of every model of a plan."""

    options: PlanOptions
    node: Node
    workload: Workload | None
    context: int
    prices: EngineModel

    def setting(self, shape: ModelShape, precision: Precision, *, index: int) -> Setting:
        """All that the answer for one model rests on."""
        hardware = self.node.hardware
        return Setting(
            self.node,
            self.workload,
            self.context,
            self.options.user_tokens_per_s,
            precision,
            _assumptions(self.options, index=index),
            _layouts(shape, self.node, text=self.options.layout),
            pricers_of(hardware, self.prices, precision=precision),
            energy_models(hardware, self.prices, precision=precision),
        )


def _constants(model: EngineModel) -> dict[str, dict[str, object]]:
    """Every constant with its value and source."""
    return {
        name: {"value": value, "source": model.sources.get(name, "")}
        for name, value in vars(model.constants).items()
    } | {"tables": {"value": list(model.tables), "source": "data/gpu_tables"}}


def _misfits(outlooks: Sequence[NamedOutlook]) -> Iterator[str]:
    """Models whose weights, or whose first request beside them, memory does not hold."""
    for one in outlooks:
        held, layout = one.outlook.capacity, one.outlook.capacity_layout
        if held.max_concurrency:
            continue
        weights = format_bytes(held.footprint.weights_bytes)
        usable = format_bytes(held.usable_bytes)
        text = f"{one.name}: with {layout} each GPU has {weights} of weights in {usable} of memory"
        if held.fits:
            text += f", which leaves no room for a request of {held.context:,} tokens"
        yield text


def _draft_notes(options: PlanOptions) -> Iterator[str]:
    if options.acceptance_length == 1:
        return
    yield (
        "drafted tokens cost nothing here: a step takes as long as without them, as in the "
        "paper's scaled curves"
    )
    if not options.has_mtp:
        yield "no prediction head is counted in memory: give --mtp if the drafts come from one"


def _calibration_notes(
    node: Node, model: EngineModel, *, workload: Workload | None
) -> Iterator[str]:
    if workload is not None and not model.is_calibrated:
        yield (
            f"no constant was fitted to {node.hardware.name} with this engine; speeds rest on the "
            f"{f'constants of {model.like}' if model.like else 'default constants'}"
        )


def _context_notes(limits: Sequence[ContextLimit], *, context: int) -> Iterator[str]:
    stated = min(limit.stated for limit in limits)
    if context > stated:
        yield (
            f"the config states {stated:,} positions; the model has no position embedding, and "
            "engines serve it longer when told so"
        )


def _page_notes(engine: Engine, *, outlooks: Sequence[NamedOutlook]) -> Iterator[str]:
    """How the engine keeps what requests need, and what caching prefixes adds to it."""
    rule = engine.cache
    if not rule.source:
        yield f"in what pages {engine.name} keeps a request is not known here: counted by the byte"
    if rule.states_with_prefix_cache == rule.states:
        return
    caching = replace(rule, states=rule.states_with_prefix_cache)
    for one in outlooks:
        if not one.outlook.shape.indices("mamba"):
            continue
        assumed = replace(one.setting.assumptions, cache=caching)
        held, _ = most_sequences(one.outlook.shape, replace(one.setting, assumptions=assumed))
        yield (
            f"{one.name}: with prefix caching {engine.name} keeps {caching.states} Mamba states of "
            f"a request instead of {rule.states}: then {held.max_concurrency:,} of "
            f"{held.context:,} tokens fit"
        )


def _limits(engine: Engine, *, outlooks: Sequence[NamedOutlook]) -> Iterator[str]:
    """What the engine is known to do badly or not at all; with whom, if not with all."""
    said: dict[str, list[str]] = {}
    for one in outlooks:
        found = findings(
            one.outlook.shape,
            engine=engine,
            precision=one.setting.precision,
            hardware=one.setting.node.hardware,
        )
        for finding in found:
            said.setdefault(str(finding), []).append(one.name)
    for text, names in said.items():
        yield text if len(names) == len(outlooks) else f"{', '.join(names)}: {text}"


def write_picture(found: ServingPlan, path: Path) -> None:
    """Write the frontier as SVG; a file that is there is not touched.

    Raises:
        RecipeError: the file is there, or the plan has no workload and so no frontier.
    """
    if path.exists():
        raise RecipeError(f"{path} is there already", "give another name")
    if not any(one.outlook.frontier for one in found.models):
        raise RecipeError("there is no frontier to draw", "give --workload, and a model that fits")
    path.write_text(plan_svg(found), encoding="utf-8")


def _read(given: ModelConfig) -> tuple[ModelShape, ContextLimit]:
    config = given if isinstance(given, Mapping) else read_config(Path(given))
    family = family_of(config)
    return family.read_config(config), ContextLimit(*family.context_limits(config))


def _name(given: ModelConfig, role: str) -> str:
    """What a model is called in tables: its folder's name, its file's, or its role."""
    if isinstance(given, Mapping):
        return role
    path = Path(given).absolute()
    if path.name == "config.json":
        return path.parent.name
    return path.stem if path.is_file() else path.name


def _check(options: PlanOptions, *, models: int) -> Requirement | None:
    """Refuse options that make no sense, alone or together; gives back what is required."""
    if options.workload is None and options.context is None:
        raise RecipeError(
            "neither a workload nor a context is given",
            "give --workload 8k/64k for speed, --context 128k for concurrency",
        )
    for name in ("user_tokens_per_s", "verbosity"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise RecipeError(f"--{name.replace('_', '-')} is {value:g}", "give a number above 0")
    if not 1 <= options.acceptance_length < math.inf:
        raise RecipeError(
            f"an acceptance length of {options.acceptance_length:g} is not 1 or more",
            "it is 1 without speculative decoding, and above with it",
        )
    if options.workload is None and options.user_tokens_per_s is not None:
        raise RecipeError(
            "a user speed is given, but no workload", "give --workload, such as 8k/64k"
        )
    if options.weights_bytes and len(options.weights_bytes) != models:
        raise RecipeError(
            f"--weights-bytes is given {len(options.weights_bytes)} times for {models} models",
            "give it once per model, in their order",
        )
    required = parse_requirement(options.require) if options.require is not None else None
    is_rate = required is not None and required.measure == "server tokens/s"
    if is_rate and options.user_tokens_per_s is None:
        raise RecipeError(
            "--require asks for server tokens/s, but at no user speed",
            "give --workload and --user-tokens-per-s",
        )
    return required


def _node(options: PlanOptions) -> Node:
    node = parse_node(options.hardware)
    if options.memory is None:
        return node
    return with_memory(node, memory_bytes=parse_memory(options.memory))


def _deployments(options: PlanOptions, shapes: Sequence[ModelShape]) -> list[Deployment]:
    """Number formats as the engine runs them on the hardware, of each model."""
    asked = preset(options.number_format).with_caches(
        kv=options.kv_dtype, state=options.state_dtype
    )
    hardware = parse_node(options.hardware).hardware
    engine = engine_named(options.engine)
    return [deploy(asked, shape, engine=engine, hardware=hardware) for shape in shapes]


def _workload(options: PlanOptions) -> Workload | None:
    if options.workload is None:
        return None
    asked = parse_workload(options.workload)
    return Workload(asked.input_tokens, asked.output_tokens, options.acceptance_length)


def _context(options: PlanOptions, workload: Workload | None, *, limit: ContextLimit) -> int:
    context = parse_count(options.context) if options.context is not None else None
    if context == 0:
        raise RecipeError("a context of 0 tokens is below 1", "give tokens, such as 128k")
    longest = max(context or 0, workload.peak_context if workload else 0)
    if longest > limit.served:
        raise RecipeError(
            f"a context of {longest:,} tokens is longer than the model's {limit.served:,}",
            limit.hint,
        )
    return context or longest


def _assumptions(options: PlanOptions, *, index: int) -> Assumptions:
    sizes = [parse_memory(text) for text in options.weights_bytes or ()]
    return Assumptions(
        options.memory_fraction,
        parse_memory(options.headroom),
        options.has_mtp,
        sizes[index] if sizes else None,
        engine_named(options.engine).cache,
    )


def _layouts(shape: ModelShape, node: Node, *, text: str | None) -> list[Layout]:
    """Equal replicas; "all" adds those that share experts."""
    if text is None:
        return replica_layouts(shape, node)
    if text == "all":
        return layouts_of(shape, node)
    layout = parse_layout(text)
    check_layout(shape, layout, gpus=node.count)
    return [layout]
