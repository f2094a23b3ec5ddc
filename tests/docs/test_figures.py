"""Figures in pages are those of benchmarks/results: each line is made again from the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def lines(page: str) -> list[str]:
    return (ROOT / page).read_text(encoding="utf-8").splitlines()


def text(page: str) -> str:
    """The page with its line breaks undone."""
    return " ".join(" ".join(lines(page)).split())


def percent(share: float) -> str:
    """``+5%``, ``0%`` for what rounds to nothing."""
    rounded = round(100 * share)
    return f"{rounded:+d}%" if rounded else "0%"


def paper_points() -> Iterator[str]:
    for p in result("paper")["points"]:
        models = (
            f"{p[name]:,} | {p[f'{name}_predicted']:,} ({percent(p[f'{name}_error'])})"
            for name in ("parent", "child")
        )
        ratio = f"{p['ratio']:.2f} | {p['ratio_predicted']:.2f} ({percent(p['ratio_error'])})"
        head = f"{p['node']} | {p['workload']} | {p['user_tokens_per_s']}"
        yield f"| {head} | {' | '.join(models)} | {ratio} |"


def paper_terms() -> Iterator[str]:
    for name, term in result("paper")["terms"].items():
        yield (
            f"| {name} | {term['ratio_error_mean']:.1%} | {term['ratio_error_largest']:.0%} | "
            f"{term['parent_rms_log_error']:.2f} | {term['child_rms_log_error']:.2f} |"
        )


def served_points() -> Iterator[str]:
    for engine, name in (("llama.cpp", "llamacpp"), ("vLLM", "vllm")):
        served = result(f"serve-eighth-{name}")
        parent, child = (model["points"] for model in served["models"])
        for old, new, match in zip(parent, child, served["matched"], strict=True):
            head = engine if old is parent[0] else ""
            predicted = new["predicted_server_tokens_per_s"]
            error = round(100 * new["prediction_error"])
            yield (
                f"| {head}{' ' if head else ''}| {old['concurrency']} "
                f"| {old['server_tokens_per_s']:.1f} | {new['server_tokens_per_s']:.1f} "
                f"| {match['gain']:.2f}x | {predicted:.1f} ({error:+d} %) |"
            )


@pytest.mark.parametrize("line", list(paper_points()))
def test_points_of_the_paper(line: str) -> None:
    assert line in lines("docs/cost-model.md")


@pytest.mark.parametrize("line", list(paper_terms()))
def test_what_each_term_adds(line: str) -> None:
    assert line in lines("docs/cost-model.md")


@pytest.mark.parametrize("line", list(served_points()))
def test_what_engines_served(line: str) -> None:
    assert line in lines("docs/serve-your-child.md")


def test_summary_of_the_paper() -> None:
    found = result("paper")
    summary, errors = found["summary"], sorted(abs(p["ratio_error"]) for p in found["points"])
    assert (
        f"Geometric mean of the |error| of the eight ratios "
        f"{summary['ratio_error_geometric_mean']:.1%}, mean {summary['ratio_error_mean']:.1%}, "
        f"largest {summary['ratio_error_largest']:.0%}."
    ) in text("docs/cost-model.md")
    assert f"all eight within {errors[-1]:.0%}, seven within {errors[-2]:.0%}" in text("README.md")


def test_gains_in_engines() -> None:
    for engine, name in (("llama.cpp", "llamacpp"), ("vLLM", "vllm")):
        gains = [f"{match['gain']:.2f}" for match in result(f"serve-eighth-{name}")["matched"]]
        assert f"{', '.join(gains[:-1])} and {gains[-1]} times" in text("README.md"), engine


def test_speeds_asked_of_this_machine() -> None:
    page = text("docs/cost-model.md")
    for row in result("serve_budget")["rows"]:
        if "measured" in row:
            assert f"{row['asked']} times" in page
            assert f"predicted {row['predicted']:.2f}, measured {row['measured']:.2f}" in page


def test_the_demo_in_the_readme() -> None:
    """The table is what `make demo` printed, with the numbers of benchmarks/results/demo.json."""
    page = lines("README.md")
    for model in result("demo")["models"]:
        row = next(line for line in page if line.strip().startswith(f"{model['name']} "))
        for number in (f"{model['loss']:.4f}", f"{model['kl']:.4f}", f"{model['agreement']:.1%}"):
            assert number in row.split(), row
