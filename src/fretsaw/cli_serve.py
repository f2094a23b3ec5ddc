"""The command `fretsaw serve`."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

Served = Annotated[
    Path,
    typer.Argument(metavar="RUN_OR_MODEL", help="Run folder, checkpoint folder or config.json."),
]
Against = Annotated[Path | None, typer.Option("--against", help="Parent, measured beside it.")]
Engine = Annotated[str, typer.Option("--engine", help="vllm, llamacpp or transformers.")]
Concurrency = Annotated[str, typer.Option("--concurrency", help="Requests at a time: 1,4,16,64.")]
Repeats = Annotated[int, typer.Option("--repeats", min=1, help="Of everything; medians count.")]
PerUser = Annotated[int, typer.Option("--requests-per-user", min=1, help="In each repeat.")]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="Make weights up: speed does not depend on them.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="CPU threads of the engine.")]
ServeDtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")]
PredictFor = Annotated[
    str | None, typer.Option("--hardware", help="To predict for; else this machine.")
]
EnginePython = Annotated[
    Path | None, typer.Option("--engine-python", help="Python of the engine's environment.")
]
EngineArguments = Annotated[
    list[str] | None,
    typer.Option("--engine-arg", help="For the engine's command line; may be repeated."),
]
Seed = Annotated[int, typer.Option("--seed", help="Of prompts and random weights.")]
Picture = Annotated[Path | None, typer.Option("--picture", help="Write the frontier as SVG.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Warnings and errors only.")]


def serve(
    source: Served,
    *,
    against: Against = None,
    engine: Engine,
    workload: Annotated[str, typer.Option("--workload", help="Input/output tokens: 512/128.")],
    concurrency: Concurrency = "1,4,16,64",
    repeats: Repeats = 5,
    requests_per_user: PerUser = 2,
    random_weights: RandomWeights = False,
    threads: Threads = 1,
    dtype: ServeDtype = "float32",
    hardware: PredictFor = None,
    engine_python: EnginePython = None,
    engine_arguments: EngineArguments = None,
    seed: Seed = 0,
    picture: Picture = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what an engine serves: user speed against server rate, parent and child in turn."""
    given = dict(locals()) | {"engine_arguments": tuple(engine_arguments or ())}
    from fretsaw.reports.served import print_served  # noqa: PLC0415
    from fretsaw.stages.progress import Reporter  # noqa: PLC0415
    from fretsaw.stages.serve import ServeOptions, write_picture  # noqa: PLC0415
    from fretsaw.stages.serve import serve as run  # noqa: PLC0415

    options = ServeOptions(**{f.name: given[f.name] for f in fields(ServeOptions)})
    served = run(source, options=options, reporter=Reporter(is_quiet=quiet))
    if picture is not None:
        write_picture(served, picture)
    if as_json:
        print(json.dumps(served.to_json(), indent=1))
    else:
        print_served(served, Console())
