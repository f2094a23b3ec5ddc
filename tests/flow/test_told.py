"""What a run says of itself, the first time and when there is nothing left to do."""

from __future__ import annotations

import json
from collections.abc import Callable

from fretsaw.stages.manifest import read_manifest
from tests.flow.conftest import Said
from tests.flow.pico_run import Setting


def test_f6_a_run_whose_healing_did_not_help_says_so_each_time(
    setting: Setting, command: Callable[..., Said]
) -> None:
    setting.data["rounds"] = setting.data["rounds"][:1]
    setting.data["distill"] |= {"tokens": 512, "learning_rate": 5.0, "evaluations": 2}
    asked = ("compress", setting.recipe_file, "--out", setting.out)

    first = command(*asked)

    assert first.code == 0, first.err
    row = next(line for line in first.out.splitlines() if line.startswith("round 1 healed"))
    assert row.rstrip().endswith("kept the cut: no step was better")
    said = "warning: healing did not help: held-out KL was "
    assert said in first.err
    assert "try distill.learning_rate: auto, or less than 5.0e+00" in first.err
    assert "warning, round 1 distill: healing did not help" in first.out
    cut = next(line for line in first.out.splitlines() if line.startswith("round 1 cut"))
    assert cut.rstrip().endswith("optimal choice")

    again = command(*asked, "--quiet", "--json")

    assert said in again.err, "a stage that is skipped warns again"
    told = json.loads(again.out)
    assert told["models"][2]["kept_tokens"] == 0
    assert [one["place"] for one in told["warnings"]].count("round 1 distill") == 1
    folder = setting.out / "round-1" / "08-distill"
    assert len(read_manifest(folder)["warnings"]) == 1
    assert json.loads((folder / "result.json").read_text())["verdict"]["kept_tokens"] == 0
