"""Runs of a recipe: the whole loop, its estimate, and one stage at a time."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fretsaw.api.given import Overrides, RecipeLike, keywords, optional_path, recipe_of, some_path

if TYPE_CHECKING:
    from fretsaw.recipe import Recipe
    from fretsaw.reports.comparison import Report
    from fretsaw.reports.estimate import Estimate
    from fretsaw.reports.summary import Summary
    from fretsaw.stages.progress import Reporter

DECISIVE = ("fretsaw", "torch", "transformers", "scipy")
"""Packages whose versions decide a result."""


@keywords
def load_recipe(recipe: RecipeLike, overrides: Overrides = ()) -> Recipe:
    """Read and check a recipe, without looking at anything it names.

    Args:
        recipe: Path of a YAML file, or its keys as a mapping.
        overrides: ``{"distill.tokens": "10M"}`` or ``["distill.tokens=10M"]``.

    Raises:
        RecipeError: missing or unreadable file, unknown key, or a value that does not fit.
    """
    return recipe_of(recipe, overrides)


@keywords
def version() -> dict[str, str]:
    """Print the versions that decide a result."""
    return {name: version_of(name) for name in DECISIVE}


@keywords
def compress(
    recipe: RecipeLike,
    *,
    out: str | Path,
    overrides: Overrides = (),
    reporter: Reporter | None = None,
) -> Summary:
    """Cut and heal the recipe's parent in rounds; go on where an earlier run stopped.

    Args:
        recipe: What to do.
        out: Run folder: new, or one that an earlier run has left.
        overrides: Keys of the recipe to replace.
        reporter: Where progress goes; stderr by default.

    Returns:
        Parent and every round before and after healing, in figures, and where the child lies.

    Raises:
        FretsawError: something that the user can mend; all that can be checked is checked first.
    """
    loaded = recipe_of(recipe, overrides)
    from fretsaw.stages.compress import compress as run  # noqa: PLC0415

    return run(loaded, out=some_path(out, "out"), reporter=reporter)


@keywords
def estimate(recipe: RecipeLike, *, out: str | Path, overrides: Overrides = ()) -> Estimate:
    """Check everything that needs no weights, and estimate minutes and disk (``--dry-run``).

    Raises:
        FretsawError: whatever would stop the run before its first weight is read.
    """
    loaded = recipe_of(recipe, overrides)
    from fretsaw.stages.estimate import estimate_run  # noqa: PLC0415

    return estimate_run(loaded, out=some_path(out, "out"))


@keywords
def report(runs: str | Path | Sequence[str | Path], *, out: str | Path | None = None) -> Report:
    """Write a run's page anew, or one page that compares several runs; no stage is run.

    Args:
        runs: Run folders; one that is not finished is shown as far as it is.
        out: The file of a comparison; ``comparison.html`` beside the first run if not given.

    Returns:
        The page's path, and what it shows.

    Raises:
        RunError: no run, a run without a finished round, a damaged table, or a name that is taken.
    """
    folders = [Path(one) for one in ([runs] if isinstance(runs, str | Path) else runs)]
    from fretsaw.stages.report import report as run  # noqa: PLC0415

    return run(folders, out=optional_path(out))


class OneStage(Protocol):
    """Runs one stage of one round."""

    def __call__(
        self,
        recipe: RecipeLike,
        *,
        out: str | Path,
        round_number: int = 1,
        overrides: Overrides = (),
        reporter: Reporter | None = None,
    ) -> Path:
        """Give the stage's folder."""


ARGUMENTS = """

Args:
    recipe: What to do.
    out: Run folder: new, or one that an earlier run has left.
    round_number: Which round, from 1.
    overrides: Keys of the recipe to replace.
    reporter: Where progress goes; stderr by default.

Returns:
    The stage's folder.

Raises:
    RunError: an earlier stage that it needs is missing or damaged.
    FretsawError: whatever else the user can mend.
"""


def _stage(word: str, does: str) -> OneStage:
    def run(
        recipe: RecipeLike,
        *,
        out: str | Path,
        round_number: int = 1,
        overrides: Overrides = (),
        reporter: Reporter | None = None,
    ) -> Path:
        loaded = recipe_of(recipe, overrides)
        from fretsaw.stages.compress import run_one  # noqa: PLC0415

        return run_one(
            word, loaded, out=some_path(out, "out"), round_number=round_number, reporter=reporter
        )

    run.__name__ = run.__qualname__ = word
    run.__doc__ = does + ARGUMENTS
    return keywords(run)


calibrate = _stage("calibrate", "Gather the statistics of every unit over calibration text.")
rank = _stage("rank", "Put the units of every block into order of importance.")
library = _stage("library", "List the variants of every block.")
score = _stage("score", "Replace one block at a time and measure what the output loses.")
cost = _stage("cost", "Price every variant: bytes, and seconds on the hardware of serving budgets.")
search = _stage("search", "Choose one variant per block under the budgets.")
build = _stage("build", "Write the child of the choice.")
distill = _stage("distill", "Heal the child by distillation from the original parent.")
