"""fretsaw cuts a trained language model to fit its hardware, and puts back what the cut took.

One function per command; each takes strings, paths, mappings and plain keywords:

    describe(model)               what a model is: parameters, bytes, KV and state
    plan(model, child)            what it serves on given hardware, from its config alone
    compress(recipe, out=)        cut and heal in rounds; go on where an earlier run stopped
    estimate(recipe, out=)        check a recipe and estimate its run, without running it
    quantize(model, out=)         a checkpoint in FP8 or NVFP4
    report(runs)                  a run's page anew, or several runs compared
    serve(model, engine=)         what an engine serves, measured
    verify(model)                 all that is wrong with a checkpoint
    export(model, engine=)        a checkpoint in the form that an engine takes
    load_recipe(recipe)           a recipe, checked
    version()                     the versions that decide a result

and one per stage of a run, with `recipe` and `out=`: calibrate, rank, library, score, cost,
search, build, distill.

    >>> import fretsaw
    >>> fretsaw.plan("@super", "@puzzle", hardware="8xH100", context="1M")  # doctest: +SKIP
    <ServingPlan super, puzzle on 8xH100 with vllm>

``@nano``, ``@puzzle`` and ``@super`` are configs that come with fretsaw. Results print as tables,
show themselves in notebooks, and have ``to_json()``. What the user can mend raises a
`FretsawError` with a message and a hint. Nothing heavy is imported before a function needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fretsaw.api import (
        build,
        calibrate,
        compress,
        cost,
        describe,
        distill,
        estimate,
        export,
        library,
        load_recipe,
        plan,
        quantize,
        rank,
        report,
        score,
        search,
        serve,
        verify,
        version,
    )
    from fretsaw.errors import (
        CheckpointError,
        DataError,
        FretsawError,
        InfeasibleError,
        RecipeError,
        RunError,
        ShapeError,
        UnsupportedModelError,
    )
    from fretsaw.recipe import Recipe
    from fretsaw.reports.comparison import Report
    from fretsaw.reports.description import Description
    from fretsaw.reports.estimate import Estimate
    from fretsaw.reports.outlook import ServingPlan
    from fretsaw.reports.quantized import Quantized
    from fretsaw.reports.served import Served
    from fretsaw.reports.summary import Summary
    from fretsaw.reports.verification import Verified
    from fretsaw.stages.progress import Reporter

__version__ = "0.1.0"

FUNCTIONS = (
    "build",
    "calibrate",
    "compress",
    "cost",
    "describe",
    "distill",
    "estimate",
    "export",
    "library",
    "load_recipe",
    "plan",
    "quantize",
    "rank",
    "report",
    "score",
    "search",
    "serve",
    "verify",
    "version",
)
PLACES = (
    dict.fromkeys(FUNCTIONS, "fretsaw.api")
    | dict.fromkeys(
        (
            "CheckpointError",
            "DataError",
            "FretsawError",
            "InfeasibleError",
            "RecipeError",
            "RunError",
            "ShapeError",
            "UnsupportedModelError",
        ),
        "fretsaw.errors",
    )
    | {
        "Recipe": "fretsaw.recipe",
        "Description": "fretsaw.reports.description",
        "Report": "fretsaw.reports.comparison",
        "Estimate": "fretsaw.reports.estimate",
        "ServingPlan": "fretsaw.reports.outlook",
        "Quantized": "fretsaw.reports.quantized",
        "Served": "fretsaw.reports.served",
        "Summary": "fretsaw.reports.summary",
        "Verified": "fretsaw.reports.verification",
        "Reporter": "fretsaw.stages.progress",
    }
)
"""Name -> module that has it; imported when the name is first used."""

__all__ = [
    "CheckpointError",
    "DataError",
    "Description",
    "Estimate",
    "FretsawError",
    "InfeasibleError",
    "Quantized",
    "Recipe",
    "RecipeError",
    "Report",
    "Reporter",
    "RunError",
    "Served",
    "ServingPlan",
    "ShapeError",
    "Summary",
    "UnsupportedModelError",
    "Verified",
    "build",
    "calibrate",
    "compress",
    "cost",
    "describe",
    "distill",
    "estimate",
    "export",
    "library",
    "load_recipe",
    "plan",
    "quantize",
    "rank",
    "report",
    "score",
    "search",
    "serve",
    "verify",
    "version",
]


if not TYPE_CHECKING:  # whose readers should miss what is not there

    def __getattr__(name: str) -> object:
        if name not in PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415

        found = getattr(import_module(PLACES[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
