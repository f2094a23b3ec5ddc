"""Which layouts can meet a demand with a model of the library; if none, how far it reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fretsaw.core.hardware import Layout
from fretsaw.core.shape import ModelShape
from fretsaw.core.units import format_count
from fretsaw.errors import InfeasibleError
from fretsaw.serving.alternatives import Alternative, Price
from fretsaw.serving.demand import PricesOf, Target, load_of, most_in_memory
from fretsaw.solver.alternatives import Terms, under
from fretsaw.solver.mip import Problem, cheapest

WHAT_TO_CHANGE = "add smaller sizes to the library, allow `none` for some blocks, or ask for less"


def reachable(
    alternatives: Sequence[Alternative],
    library: Problem,
    *,
    prices: Sequence[Price],
    prices_of: PricesOf,
) -> list[Alternative]:
    """The alternatives of one demand that some model of the library can meet.

    Args:
        alternatives: At least one.
        library: Shape and variants; its scores and budgets are not looked at.
        prices: Of every form under every layout.
        prices_of: To say how far the library reaches where none can.

    Raises:
        InfeasibleError: none; it tells what the library reaches.
    """
    free = replace(library, budgets=(), scores=dict.fromkeys(library.scores, 0.0))
    terms = [one.terms(prices, problem=free) for one in alternatives]
    found = [
        one
        for one, its in zip(alternatives, terms, strict=True)
        if cheapest(under(free, [its]), cost=one.memory_cost) is not None
    ]
    if found:
        return found
    _refuse_energy(alternatives, terms, library=free)
    smallest = [
        (one.layout, _smallest(under(free, [its])))
        for one, its in zip(alternatives, terms, strict=True)
    ]
    raise _unreachable(
        alternatives[0].target, {layout: s for layout, s in smallest if s}, prices_of=prices_of
    )


def _refuse_energy(
    alternatives: Sequence[Alternative], terms: Sequence[Terms], *, library: Problem
) -> None:
    """Check that energy alone is not what no model of the library can do with.

    Raises:
        InfeasibleError: it is.
    """
    demand = alternatives[0].target.demand
    if demand.joules_per_token is None:
        return
    least = []
    for one, its in zip(alternatives, terms, strict=True):
        problem = under(library, [Terms(its.priced, its.budgets[:1])])
        choice = cheapest(problem, cost=one.energy_cost)
        least += [choice.costs[one.energy_cost] / 1e9] if choice else []
    if least and min(least) > demand.joules_per_token:
        raise InfeasibleError(
            f"no choice meets `{demand.text}`: the leanest model in the library takes "
            f"{min(least):.3g} J a token",
            WHAT_TO_CHANGE,
        )


def _smallest(problem: Problem) -> ModelShape | None:
    """The fastest model that memory holds; where only memory counts, the smallest of all."""
    memory, *time = problem.budgets
    kept = replace(problem, budgets=[memory] if time else [])
    choice = cheapest(kept, cost=(time or [memory])[0].cost)
    return choice.child_shape(problem.shape) if choice else None


def _unreachable(
    target: Target, smallest: Mapping[Layout, ModelShape], *, prices_of: PricesOf
) -> InfeasibleError:
    """The error that tells what the library reaches.

    Args:
        target: What was asked.
        smallest: Layout -> the fastest model under it.
        prices_of: Of every layout.
    """
    demand = target.demand
    what = f"no choice meets `{demand.text}`"
    if demand.workload is None:
        held = (most_in_memory(s, demand, layout=layout) for layout, s in smallest.items())
        most = f"{demand.node} holds {max(held, default=0)} of the smallest model in the library"
        return InfeasibleError(f"{what}: {most}", WHAT_TO_CHANGE)
    loads = [
        load_of(s, demand, layout=layout, prices=prices_of(layout))
        for layout, s in smallest.items()
    ]
    best = max(filter(None, loads), key=lambda load: load.server_tokens_per_s, default=None)
    if best is None:
        return InfeasibleError(f"{what}: no model of the library serves so at all", WHAT_TO_CHANGE)
    rate = best.server_tokens_per_s
    times = (
        f", {rate / target.parent.server_tokens_per_s:.3g}x the parent's" if target.parent else ""
    )
    return InfeasibleError(
        f"{what}: the fastest model in the library gives {format_count(rate)} server tokens/s"
        f"{times} ({demand.node} {best.layout}, {format_count(best.in_flight)} in flight)",
        WHAT_TO_CHANGE,
    )
