"""The Python interface: one function per command, and what the command line itself calls."""

from __future__ import annotations

from pathlib import Path

from fretsaw.checkpoint.verify import Verification
from fretsaw.recipe import Recipe, load_recipe
from fretsaw.reports.description import Description
from fretsaw.reports.estimate import Estimate
from fretsaw.reports.quantized import Quantized
from fretsaw.reports.served import Served
from fretsaw.reports.summary import Summary
from fretsaw.stages.compress import compress as _compress
from fretsaw.stages.compress import run_one
from fretsaw.stages.describe import describe
from fretsaw.stages.estimate import estimate_run
from fretsaw.stages.export import export
from fretsaw.stages.plan import PlanOptions, plan
from fretsaw.stages.progress import Reporter
from fretsaw.stages.quantize import quantize
from fretsaw.stages.quantize_options import QuantizeOptions
from fretsaw.stages.serve import ServeOptions, serve
from fretsaw.stages.verify import verify

RecipeLike = Recipe | Path | str
"""A recipe, or the path of one."""

__all__ = [
    "Description",
    "Estimate",
    "PlanOptions",
    "QuantizeOptions",
    "Quantized",
    "Recipe",
    "Reporter",
    "ServeOptions",
    "Served",
    "Summary",
    "Verification",
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
    "score",
    "search",
    "serve",
    "verify",
]


def compress(recipe: RecipeLike, *, out: Path | str, reporter: Reporter | None = None) -> Summary:
    """Compress the recipe's parent in rounds; skips what is done, resumes what was killed.

    Args:
        recipe: What to do.
        out: Run folder: new, or one that an earlier run has left.
        reporter: Where progress goes; stderr by default.

    Returns:
        Parent and every round before and after healing, in figures, and where the child lies.

    Raises:
        FretsawError: something that the user can mend; all that can be checked is checked first.
    """
    return _compress(_loaded(recipe), out=Path(out), reporter=reporter)


def estimate(recipe: RecipeLike, *, out: Path | str) -> Estimate:
    """Check everything that needs no weights, and estimate minutes and disk (``--dry-run``).

    Raises:
        FretsawError: whatever would stop the run before its first weight is read.
    """
    return estimate_run(_loaded(recipe), out=Path(out))


def calibrate(
    recipe: RecipeLike, *, out: Path | str, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """Gather the statistics of every unit over calibration text; returns the stage's folder.

    Raises:
        FretsawError: as `compress`; RunError where an earlier stage is missing.
    """
    return _one("calibrate", recipe, out=out, round_number=round_number, reporter=reporter)


def rank(
    recipe: RecipeLike, *, out: Path | str, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """Put the units of every block into order of importance; raises and returns as `calibrate`."""
    return _one("rank", recipe, out=out, round_number=round_number, reporter=reporter)


def library(
    recipe: RecipeLike, *, out: Path | str, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """List the variants of every block; raises and returns as `calibrate`."""
    return _one("library", recipe, out=out, round_number=round_number, reporter=reporter)


def score(
    recipe: RecipeLike, *, out: Path | str, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """Replace one block at a time and measure the loss; raises and returns as `calibrate`."""
    return _one("score", recipe, out=out, round_number=round_number, reporter=reporter)


def cost(
    recipe: RecipeLike, *, out: Path | str, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """Price every variant, in serving terms too; raises and returns as `calibrate`.

    Raises:
        InfeasibleError: no model of the library meets a serving budget.
    """
    return _one("cost", recipe, out=out, round_number=round_number, reporter=reporter)


def search(
    recipe: RecipeLike, *, out: Path | str, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """Choose one variant per block under the budgets; raises and returns as `calibrate`.

    Raises:
        InfeasibleError: no choice meets the budgets.
    """
    return _one("search", recipe, out=out, round_number=round_number, reporter=reporter)


def build(
    recipe: RecipeLike, *, out: Path | str, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """Write the child of the choice; raises and returns as `calibrate`."""
    return _one("build", recipe, out=out, round_number=round_number, reporter=reporter)


def distill(
    recipe: RecipeLike, *, out: Path | str, round_number: int = 1, reporter: Reporter | None = None
) -> Path:
    """Heal the child by distillation from the parent; raises and returns as `calibrate`."""
    return _one("distill", recipe, out=out, round_number=round_number, reporter=reporter)


def _one(
    word: str, recipe: RecipeLike, *, out: Path | str, round_number: int, reporter: Reporter | None
) -> Path:
    return run_one(
        word, _loaded(recipe), out=Path(out), round_number=round_number, reporter=reporter
    )


def _loaded(recipe: RecipeLike) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else load_recipe(Path(recipe))
