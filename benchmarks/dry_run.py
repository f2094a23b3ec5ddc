"""A dry run beside the run that it foretells: seconds and peak memory of each stage.

    python benchmarks/dry_run.py RUN

RUN is a finished run; its own recipe is estimated anew, on this machine, as if nothing were done.
Run both on a machine that does nothing else. Writes benchmarks/results/dry_run.json.

A healing that stops early (`patience`, `recovery`) takes less than the estimate, which is for all
tokens; `learned` says which share of its tokens, the probe's included, was really learned from.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fretsaw.recipe import load_recipe
from fretsaw.reports.estimate import EstimateLine
from fretsaw.stages.estimate import estimate_run
from fretsaw.stages.run import CHECK, MARKER

RESULT = Path(__file__).parent / "results" / "dry_run.json"


def measured(run: Path, line: EstimateLine) -> dict[str, Any]:
    """What the stage really took."""
    [file] = (run / f"round-{line.round}").glob(f"*-{line.stage}/manifest.json")
    manifest = json.loads(file.read_text(encoding="utf-8"))
    row = {"seconds": manifest["seconds"], "peak_bytes": manifest.get("peak_bytes", 0)}
    if line.stage == "distill":
        result = json.loads((file.parent / "result.json").read_text(encoding="utf-8"))
        settings = load_recipe(run / MARKER).rounds[line.round - 1].distill
        row["learned"] = round((result["tokens"] + result["probe_tokens"]) / settings.tokens, 2)
    return row


def main() -> None:
    """Print a line per stage and the totals; keep them."""
    run = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        found = estimate_run(load_recipe(run / MARKER), out=Path(folder) / "run")
    rows = []
    for line in found.lines:
        row = {"round": line.round, "stage": line.stage, **measured(run, line)}
        row |= {"estimated_seconds": line.seconds, "estimated_peak_bytes": line.peak_bytes}
        rows.append(row)
        print(
            f"{line.round} {line.stage:10} {line.seconds:7.1f} s {row['seconds']:7.1f} s  "
            f"{line.peak_bytes / 2**20:6.0f} MiB {row['peak_bytes'] / 2**20:6.0f} MiB"
        )
    check = json.loads((run / CHECK).read_text(encoding="utf-8"))["seconds"]
    total = sum(row["seconds"] for row in rows) + check
    peak = max(row["peak_bytes"] for row in rows)
    whole = {
        "estimated_seconds": found.seconds - found.report_s,
        "seconds": total,
        "ratio": (found.seconds - found.report_s) / total,
        "estimated_peak_bytes": found.peak.peak_bytes,
        "peak_bytes": peak,
    }
    print(
        f"total {whole['estimated_seconds']:.0f} s estimated, {total:.0f} s measured "
        f"({whole['ratio']:.2f}); peak {found.peak.peak_bytes / 2**20:.0f} and "
        f"{peak / 2**20:.0f} MiB"
    )
    RESULT.write_text(json.dumps({"total": whole, "stages": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
