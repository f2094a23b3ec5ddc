"""Every argument and option by the name of its parameter: one name, one help text per thing.

Which command has which of them, and their defaults, follow from the functions of `fretsaw.api`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Text = str | None
Number = float | None
Whole = int | None
File = Path | None
Many = list[str] | None

HARDWARE = ("A100", "B200", "GB200", "H100", "H200", "L40S", "MI300X")
SHIPPED = ("@nano", "@puzzle", "@super")
NUMBER_FORMATS = ("bf16", "fp8", "nvfp4", "nvfp4-w4a16", "mxfp4", "fp32")
WRITTEN_FORMATS = ("fp8", "nvfp4", "nvfp4-w4a16", "auto")
ENGINES = (
    "vllm",
    "sglang",
    "tensorrt-llm",
    "tensorrt-edge-llm",
    "llama.cpp",
    "mlx-lm",
    "transformers",
)
SERVERS = ("vllm", "llama.cpp", "transformers")
CONFIG = f"Checkpoint folder, config.json, or a config that ships: {', '.join(SHIPPED)}."


def words(*known: str) -> Callable[[str], list[str]]:
    """Completion of an option with known values."""
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def nodes(incomplete: str) -> list[str]:
    """Completion of hardware, with or without a count: 8xB2 to 8xB200."""
    count, times, name = incomplete.rpartition("x")
    is_counted = count.isdigit()
    known = words(*HARDWARE)(name if is_counted else incomplete)
    return [f"{count}{times}{word}" if is_counted else word for word in known]


def alternatives(*known: str) -> str:
    """Words for a help text: a, b or c."""
    return f"{', '.join(known[:-1])} or {known[-1]}"


ARGUMENTS: Mapping[str, Any] = {
    "recipe": Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe: a YAML file.")],
    "model": Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint folder.")],
    "child": Annotated[
        Text,
        typer.Argument(
            metavar="CHILD", help="Another model, to compare.", autocompletion=words(*SHIPPED)
        ),
    ],
    "runs": Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folder; several are compared.")
    ],
}

PLACES: Mapping[str, Any] = {
    "out": Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder to write: new, or of a run to go on with."),
    ],
    "picture": Annotated[
        File, typer.Option(metavar="FILE", help="Draw the frontier as SVG into this new file.")
    ],
    "against": Annotated[
        Text,
        typer.Option(
            metavar="MODEL", help="Parent to measure beside it.", show_default="a run's own"
        ),
    ],
    "engine_python": Annotated[
        File,
        typer.Option(
            metavar="FILE", help="Python of the engine's environment.", show_default="found"
        ),
    ],
}

RUNS: Mapping[str, Any] = {
    "overrides": Annotated[
        Many,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Replace a key of the recipe: distill.tokens=10M. May be repeated.",
        ),
    ],
    "round_number": Annotated[
        int, typer.Option("--round", min=1, metavar="N", help="Which round, from 1.")
    ],
    "dry_run": Annotated[
        bool,
        typer.Option("--dry-run", help="Check all that needs no weights, print the plan, stop."),
    ],
    "resolved": Annotated[
        bool, typer.Option("--resolved", help="Print the recipe with every default filled in.")
    ],
}

PLANNING: Mapping[str, Any] = {
    "hardware": Annotated[
        str,
        typer.Option(
            metavar="NODE",
            help=f"Accelerators, such as 8xB200, of {alternatives(*HARDWARE)}.",
            autocompletion=nodes,
        ),
    ],
    "workload": Annotated[
        Text, typer.Option(metavar="IN/OUT", help="Tokens in and out of a request: 8k/64k.")
    ],
    "context": Annotated[
        Text,
        typer.Option(
            metavar="TOKENS",
            help="Length of each request at its end: 128k.",
            show_default="the workload's",
        ),
    ],
    "user_tokens_per_s": Annotated[
        Number, typer.Option(metavar="TOKENS/S", help="Decoding speed that each user gets.")
    ],
    "memory": Annotated[
        Text,
        typer.Option(
            metavar="SIZE", help="Of one accelerator, such as 80GB.", show_default="data sheet"
        ),
    ],
    "memory_fraction": Annotated[
        float, typer.Option(metavar="SHARE", help="Part of it that the engine may use, 0 to 1.")
    ],
    "headroom": Annotated[
        str, typer.Option(metavar="SIZE", help="Memory kept free of that, such as 2GiB.")
    ],
    "weights_bytes": Annotated[
        Many,
        typer.Option(
            metavar="SIZE",
            help="Weights on one accelerator, such as 70GiB; once per model.",
            show_default="as --to has it",
        ),
    ],
    "layout": Annotated[
        Text,
        typer.Option(
            metavar="LAYOUT",
            help='Parallel layout: "tp2 ep2"; "all" adds experts shared by replicas.',
            show_default="equal replicas",
        ),
    ],
    "engine": Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help=f"Serving engine: {alternatives(*ENGINES)}.",
            autocompletion=words(*ENGINES),
        ),
    ],
    "acceptance_length": Annotated[
        float, typer.Option(metavar="TOKENS", help="What a decode step gives, drafts included.")
    ],
    "mtp": Annotated[bool, typer.Option("--mtp", help="Count the prediction head in memory.")],
    "verbosity": Annotated[
        float, typer.Option(metavar="RATIO", help="Child's tokens for one of the parent's.")
    ],
    "require": Annotated[
        Text, typer.Option(metavar="WISH", help='What is wanted: "2x server tokens/s".')
    ],
}

SERVING: Mapping[str, Any] = {
    "concurrency": Annotated[
        str, typer.Option(metavar="N,N,…", help="Requests at a time, measured one after another.")
    ],
    "repeats": Annotated[
        int, typer.Option(min=1, metavar="N", help="Of every measurement; medians count.")
    ],
    "requests_per_user": Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests of each user in each repeat.")
    ],
    "random_weights": Annotated[
        bool,
        typer.Option("--random-weights", help="Make weights up: speed does not depend on them."),
    ],
    "threads": Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads that compute.")],
    "engine_arg": Annotated[
        Many,
        typer.Option(metavar="ARG", help="For the engine's own command line. May be repeated."),
    ],
    "seed": Annotated[
        int, typer.Option(metavar="N", help="Seed of prompts and random weights, or of text order.")
    ],
}

FORMATS: Mapping[str, Any] = {
    "to": Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help=f"Number format: {', '.join(WRITTEN_FORMATS)}, or your own YAML file.",
            autocompletion=words(*WRITTEN_FORMATS),
        ),
    ],
    "bits": Annotated[
        Number, typer.Option(metavar="BITS", help="Average per weight for --to auto: 4.75.")
    ],
    "kv_dtype": Annotated[
        Text,
        typer.Option(
            metavar="FORMAT",
            help="Of the KV cache: fp8, bf16 or fp16.",
            show_default="as --to has it",
        ),
    ],
    "state_dtype": Annotated[
        Text,
        typer.Option(
            metavar="FORMAT",
            help="Of the Mamba state: fp32, bf16 or fp16.",
            show_default="as --to has it",
        ),
    ],
    "dtype": Annotated[
        str,
        typer.Option(metavar="DTYPE", help="In which the model runs: float32 or bfloat16."),
    ],
}

QUANTIZING: Mapping[str, Any] = {
    "text": Annotated[
        Text,
        typer.Option(metavar="TEXT", help="Calibration text: a file, a folder or a data set."),
    ],
    "sequences": Annotated[
        int, typer.Option(min=1, metavar="N", help="Calibration sequences, at most.")
    ],
    "sequence_length": Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="In each calibration sequence.")
    ],
    "method": Annotated[
        str,
        typer.Option(
            metavar="max|mse|lsq",
            help="Scales of weights: largest magnitude, least error, or learned.",
        ),
    ],
    "percentile": Annotated[
        Number,
        typer.Option(
            metavar="%", help="Of magnitudes that input scales cover.", show_default="all"
        ),
    ],
    "power_of_two_kv": Annotated[
        bool, typer.Option("--power-of-two-kv", help="Round KV scales up to powers of two.")
    ],
    "file_layout": Annotated[
        str,
        typer.Option(metavar="LAYOUT", help="Names in the files: modelopt or compressed-tensors."),
    ],
    "shard_bytes": Annotated[str, typer.Option(metavar="SIZE", help="Size of a file.")],
    "teacher": Annotated[
        Text,
        typer.Option(metavar="MODEL", help="Learn from it under rounding before writing."),
    ],
    "heal_tokens": Annotated[
        Whole,
        typer.Option(
            min=1, metavar="TOKENS", help="To learn on from the teacher.", show_default="1000000"
        ),
    ],
    "learning_rate": Annotated[
        Number,
        typer.Option(metavar="RATE", help="Peak rate of that learning.", show_default="by a probe"),
    ],
    "evaluate": Annotated[bool, typer.Option(help="Measure loss and KL on held-out text.")],
}

CHECKING: Mapping[str, Any] = {
    "generate": Annotated[
        bool, typer.Option(help="Continue eight prompts greedily through transformers.")
    ],
    "allow_remote_code": Annotated[
        bool, typer.Option("--allow-remote-code", help="Let code in the folder run for that.")
    ],
}

EVERYWHERE: Mapping[str, Any] = {
    "as_json": Annotated[bool, typer.Option("--json", help="Print the result as JSON.")],
    "quiet": Annotated[bool, typer.Option("--quiet", help="Warnings and errors only.")],
    "debug": Annotated[bool, typer.Option("--debug", help="With an error, print its traceback.")],
}

OPTIONS: Mapping[str, Any] = {
    **ARGUMENTS,
    **PLACES,
    **RUNS,
    **PLANNING,
    **SERVING,
    **FORMATS,
    **QUANTIZING,
    **CHECKING,
    **EVERYWHERE,
}

OWN: Mapping[tuple[str, str], Any] = {
    ("describe", "model"): Annotated[
        str, typer.Argument(metavar="MODEL", help=CONFIG, autocompletion=words(*SHIPPED))
    ],
    ("plan", "model"): Annotated[
        str, typer.Argument(metavar="MODEL", help=CONFIG, autocompletion=words(*SHIPPED))
    ],
    ("serve", "model"): Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help=f"{CONFIG} Or a run folder: its last child.",
            autocompletion=words(*SHIPPED),
        ),
    ],
    ("serve", "hardware"): Annotated[
        Text,
        typer.Option(
            metavar="NODE",
            help="To predict speeds for: 8xB200.",
            show_default="this machine",
            autocompletion=nodes,
        ),
    ],
    ("serve", "engine"): Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help=f"Serving engine: {alternatives(*SERVERS)}.",
            autocompletion=words(*SERVERS),
        ),
    ],
    ("serve", "dtype"): Annotated[
        str,
        typer.Option(
            metavar="DTYPE", help="In which the model runs: float32, bfloat16 or float16."
        ),
    ],
    ("report", "out"): Annotated[
        File,
        typer.Option(
            metavar="FILE.html",
            help="Page of a comparison of several runs.",
            show_default="comparison.html beside the first",
        ),
    ],
    ("plan", "to"): Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help=f"Number format: {alternatives(*NUMBER_FORMATS)}.",
            autocompletion=words(*NUMBER_FORMATS),
        ),
    ],
}
"""(command, parameter) -> its own help, where one command takes more or less than the others."""
