"""The command line: parse, call, print. Tables go to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import json
import sys
import traceback
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fretsaw.cli_serve import serve
from fretsaw.errors import FretsawError
from fretsaw.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from fretsaw.stages.progress import Reporter

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Cut a trained language model to fit its hardware, and put back what the cut took away.",
)

INTERRUPTED = 130
"""Exit code that typer gives to an interrupted command."""

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML recipe.")]
Out = Annotated[Path, typer.Option("--out", help="Run folder: new, or one to go on with.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Override a recipe key; may be repeated."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Warnings and errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RoundNumber = Annotated[int, typer.Option("--round", min=1, help="Which round, from 1.")]


@app.command()
def describe(
    source: Annotated[
        Path, typer.Argument(metavar="CONFIG_OR_FOLDER", help="Checkpoint folder or config.json.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a model is: parameters, active parameters, bytes, KV and state per sequence."""
    from fretsaw.reports.description import print_description  # noqa: PLC0415
    from fretsaw.stages.describe import describe as run  # noqa: PLC0415

    description = run(source)
    if as_json:
        print(json.dumps(description.to_json(), indent=1))
    else:
        print_description(description, Console())


Text = str | None
PlanHardware = Annotated[str, typer.Option("--hardware", help="Such as 8xB200 or H100.")]
PlanWorkload = Annotated[Text, typer.Option("--workload", help="Input/output tokens: 8k/64k.")]
UserSpeed = Annotated[float | None, typer.Option("--user-tokens-per-s", help="Of each user.")]
Format = Annotated[str, typer.Option("--format", help="bf16, fp8, nvfp4, mxfp4 or fp32.")]
Context = Annotated[Text, typer.Option("--context", help="Tokens of each request at its end.")]
Fraction = Annotated[float, typer.Option("--memory-fraction", help="Of a GPU that may be used.")]
Memory = Annotated[Text, typer.Option("--memory", help="Of a GPU, instead of its data sheet's.")]
Headroom = Annotated[str, typer.Option("--headroom", help="Memory kept free, such as 2GiB.")]
StateDtype = Annotated[Text, typer.Option("--state-dtype", help="Format of the Mamba state.")]
KvDtype = Annotated[Text, typer.Option("--kv-dtype", help="Format of the KV cache.")]
WeightsBytes = Annotated[
    list[str] | None,
    typer.Option("--weights-bytes", help="Weights on one GPU, once per model: 70GiB."),
]
LayoutText = Annotated[
    Text,
    typer.Option("--layout", help='Only "tp2 ep2", say; "all" adds experts shared by replicas.'),
]
EngineName = Annotated[str, typer.Option("--engine", help="Whose kernels and limits.")]
Acceptance = Annotated[float, typer.Option("--acceptance-length", help="Tokens a step gives.")]
Mtp = Annotated[bool, typer.Option("--mtp", help="The prediction head is loaded.")]
Verbosity = Annotated[
    float, typer.Option("--verbosity", help="Child's tokens for one of parent's.")
]
Require = Annotated[Text, typer.Option("--require", help='Such as "2x server tokens/s".')]
Picture = Annotated[Path | None, typer.Option("--picture", help="Write the frontier as SVG.")]
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL_OR_CONFIG", help="Checkpoint folder or config.json.")
]
ChildPath = Annotated[Path | None, typer.Argument(metavar="CHILD", help="Another, to compare.")]


@app.command()
def plan(
    model: ModelPath,
    child: ChildPath = None,
    *,
    hardware: PlanHardware,
    workload: PlanWorkload = None,
    user_tokens_per_s: UserSpeed = None,
    number_format: Format = "bf16",
    context: Context = None,
    memory_fraction: Fraction = 0.9,
    memory: Memory = None,
    headroom: Headroom = "0",
    state_dtype: StateDtype = None,
    kv_dtype: KvDtype = None,
    weights_bytes: WeightsBytes = None,
    layout: LayoutText = None,
    engine: EngineName = "vllm",
    acceptance_length: Acceptance = 1.0,
    has_mtp: Mtp = False,
    verbosity: Verbosity = 1.0,
    require: Require = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Say what a model serves on a hardware: speed, requests at once, what binds and what helps."""
    given = dict(locals())
    from fretsaw.reports.outlook import print_serving_plan  # noqa: PLC0415
    from fretsaw.stages.plan import PlanOptions, write_picture  # noqa: PLC0415
    from fretsaw.stages.plan import plan as run  # noqa: PLC0415

    options = PlanOptions(**{f.name: given[f.name] for f in fields(PlanOptions)})
    found = run(model, child, options=options)
    if picture is not None:
        write_picture(found, picture)
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        print_serving_plan(found, Console())


app.command()(serve)


@app.command()
def compress(
    recipe: RecipePath,
    *,
    out: Out,
    sets: Sets = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all that needs no weights, print the plan.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run all rounds: describe, calibrate, rank, library, score, search, build, distill."""
    from fretsaw.reports.estimate import print_estimate  # noqa: PLC0415
    from fretsaw.reports.summary import print_summary  # noqa: PLC0415
    from fretsaw.stages.compress import compress as run  # noqa: PLC0415
    from fretsaw.stages.estimate import estimate_run  # noqa: PLC0415

    loaded = load_recipe(recipe, sets or ())
    if dry_run:
        estimate = estimate_run(loaded, out=out)
        if as_json:
            print(json.dumps(asdict(estimate), indent=1))
        else:
            print_estimate(estimate, Console())
        return
    summary = run(loaded, out=out, reporter=_reporter(quiet))
    if as_json:
        print(json.dumps(summary.to_json(), indent=1))
    else:
        print_summary(summary, Console())


def _stage_command(word: str, help_text: str) -> None:
    def command(
        recipe: RecipePath,
        *,
        out: Out,
        round_: RoundNumber = 1,
        sets: Sets = None,
        quiet: Quiet = False,
    ) -> None:
        from fretsaw.stages.compress import run_one  # noqa: PLC0415

        loaded: Recipe = load_recipe(recipe, sets or ())
        folder = run_one(word, loaded, out=out, round_number=round_, reporter=_reporter(quiet))
        print(folder)

    app.command(name=word, help=help_text)(command)


_stage_command("calibrate", "Gather the statistics of every unit over calibration text.")
_stage_command("rank", "Put the units of every block into order of importance.")
_stage_command("library", "List the variants of every block.")
_stage_command("score", "Replace one block at a time and measure what the output loses.")
_stage_command(
    "cost", "Price every variant: bytes, and seconds on the hardware of serving budgets."
)
_stage_command("search", "Choose one variant per block under the budgets.")
_stage_command("build", "Write the child of the choice.")
_stage_command("distill", "Heal the child by distillation from the original parent.")


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint folder, anybody's.")],
    *,
    generate: Annotated[
        bool, typer.Option(help="Continue eight prompts greedily through transformers.")
    ] = True,
    allow_remote_code: Annotated[
        bool, typer.Option("--allow-remote-code", help="Let code in the folder run for that.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look for all that is wrong with a checkpoint; exit code 2 if there is anything."""
    from fretsaw.reports.verification import print_verification  # noqa: PLC0415
    from fretsaw.stages.verify import verify as run  # noqa: PLC0415

    result = run(folder, generate=generate, allow_remote_code=allow_remote_code)
    if as_json:
        print(json.dumps(result.to_json(), indent=1))
    else:
        print_verification(result, Console())
    if result.faults:
        raise typer.Exit(FretsawError.exit_code)


To = Annotated[
    str, typer.Option("--to", help="fp8, nvfp4, nvfp4-w4a16, auto, or your own YAML file.")
]
Bits = Annotated[float | None, typer.Option("--bits", help="Per weight, for --to auto: 4.75.")]
NewFolder = Annotated[Path, typer.Option("--out", help="New checkpoint folder.")]
CalibrationText = Annotated[
    Path | None, typer.Option("--text", help="Text that the scales of activations are found on.")
]
ScaleMethod = Annotated[
    str, typer.Option("--method", help="Block scales of NVFP4: max, or mse (least error, slower).")
]
LayoutOption = Annotated[str, typer.Option("--layout", help="modelopt or compressed-tensors.")]
KvFormat = Annotated[str | None, typer.Option("--kv", help="Format of the KV cache: fp8 or bf16.")]
PowerOfTwo = Annotated[bool, typer.Option("--power-of-two-kv", help="Round KV scales up to them.")]
Percentile = Annotated[
    float | None, typer.Option("--percentile", help="Share of magnitudes that scales cover, %.")
]
Sequences = Annotated[int, typer.Option("--sequences", min=1, help="Calibration sequences.")]
SequenceLength = Annotated[int, typer.Option("--sequence-length", min=1, help="Tokens in each.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Of the running blocks: float32, bfloat16.")]
Teacher = Annotated[
    Path | None, typer.Option("--teacher", help="Learn from it under rounding before writing.")
]
HealTokens = Annotated[int, typer.Option("--heal-tokens", min=1, help="Of that learning.")]
LearningRate = Annotated[
    float | None, typer.Option("--learning-rate", help="Its peak; found by a probe if not given.")
]
ShardBytes = Annotated[str, typer.Option("--shard-bytes", help="Size of a file, such as 5GB.")]


@app.command()
def quantize(
    child: Annotated[Path, typer.Argument(metavar="FOLDER", help="Checkpoint in 16 or 32 bits.")],
    *,
    out: NewFolder,
    to: To = "nvfp4",
    bits: Bits = None,
    text: CalibrationText = None,
    method: ScaleMethod = "max",
    layout: LayoutOption = "modelopt",
    kv: KvFormat = None,
    is_power_of_two_cache: PowerOfTwo = False,
    percentile: Percentile = None,
    sequences: Sequences = 256,
    sequence_length: SequenceLength = 4096,
    dtype: Dtype = "float32",
    shard_bytes: ShardBytes = "5GB",
    teacher: Teacher = None,
    heal_tokens: HealTokens = 1_000_000,
    learning_rate: LearningRate = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint in FP8 or NVFP4, as vLLM, SGLang and TensorRT-LLM read it."""
    given = dict(locals())
    from fretsaw.reports.quantized import print_quantized  # noqa: PLC0415
    from fretsaw.stages.quantize import quantize as run  # noqa: PLC0415
    from fretsaw.stages.quantize_options import QuantizeOptions  # noqa: PLC0415

    names = {f.name for f in fields(QuantizeOptions)}
    options = QuantizeOptions(**{k: v for k, v in given.items() if k in names})
    found = run(child, out=out, options=options, reporter=_reporter(quiet))
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        print_quantized(found, Console())


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint folder.")],
    *,
    to: Annotated[str, typer.Option("--to", help="gguf, or an engine: vllm, transformers, …")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; must not be there yet.")],
    python: Annotated[
        Path | None, typer.Option("--engine-python", help="Python of llama.cpp's environment.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint in the form that an engine takes."""
    from fretsaw.stages.export import export as run  # noqa: PLC0415

    print(run(folder, to=to, out=out, python=python, reporter=_reporter(quiet)))


@app.command()
def recipe(
    recipe: RecipePath,
    sets: Sets = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print it with every default filled in.")
    ] = False,
) -> None:
    """Check a recipe without looking at anything it names; print it with --resolved."""
    loaded = load_recipe(recipe, sets or ())
    print(loaded.to_json() if resolved else f"{recipe}: {len(loaded.rounds)} rounds, no errors")


@app.command()
def version() -> None:
    """Print the versions that decide a result."""
    from importlib.metadata import version as version_of  # noqa: PLC0415

    for name in ("fretsaw", "torch", "transformers", "scipy"):
        print(name, version_of(name))


def _reporter(quiet: bool) -> Reporter:
    from fretsaw.stages.progress import Reporter  # noqa: PLC0415

    return Reporter(is_quiet=quiet)


def main() -> None:
    """Entry point: exit code 0, 2 for the user's mistakes, 1 for ours, 130 when interrupted."""
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        app(args=arguments, prog_name="fretsaw")
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            print("hint: interrupted; run the same command again to go on", file=sys.stderr)
        raise
    except FretsawError as error:
        _fail(error.message, error.hint, code=error.exit_code, debug=debug)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "free some space" if full else "see that the path exists and may be read and written"
        hint = f"{what}, and run the same command again: it goes on"
        _fail(f"{error}", hint, code=2, debug=debug)
    except Exception as error:
        hint = "this is a fault of fretsaw: run again with --debug and report the traceback"
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        _fail(f"{type(error).__name__}: {error}{notes}", hint, code=1, debug=debug)


def _fail(message: str, hint: str, *, code: int, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(code)
