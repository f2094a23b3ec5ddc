"""Every argument and option by the name of its parameter: one name, one help text per thing.

Which command has which of them, and their defaults, follow from the functions of `fretsaw.api`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

MODEL = "Checkpoint folder, config.json, or a shipped config: @nano, @puzzle, @super."

Text = str | None
Number = float | None
Whole = int | None
File = Path | None
Many = list[str] | None

ARGUMENTS: Mapping[str, Any] = {
    "recipe": Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML recipe.")],
    "model": Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    "child": Annotated[Text, typer.Argument(metavar="CHILD", help="Another, to compare.")],
}

PLACES: Mapping[str, Any] = {
    "out": Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")],
    "picture": Annotated[File, typer.Option(metavar="FILE.svg", help="Draw the frontier there.")],
    "against": Annotated[
        Text, typer.Option(metavar="MODEL", help="Parent to measure beside it; a run's own.")
    ],
    "engine_python": Annotated[
        File, typer.Option(metavar="FILE", help="Python of the engine's environment.")
    ],
}

RUNS: Mapping[str, Any] = {
    "overrides": Annotated[
        Many, typer.Option("--set", metavar="A.B=VALUE", help="Recipe key to replace; repeatable.")
    ],
    "round_number": Annotated[
        int, typer.Option("--round", min=1, metavar="N", help="Which round, from 1.")
    ],
    "dry_run": Annotated[
        bool, typer.Option("--dry-run", help="Check all that needs no weights, print the plan.")
    ],
    "resolved": Annotated[
        bool, typer.Option("--resolved", help="Print it with every default filled in.")
    ],
}

SERVING: Mapping[str, Any] = {
    "hardware": Annotated[
        str, typer.Option(metavar="[Nx]NAME", help="Accelerators, such as 8xB200 or H100.")
    ],
    "workload": Annotated[
        Text, typer.Option(metavar="IN/OUT", help="Input and output tokens of a request: 8k/64k.")
    ],
    "context": Annotated[
        Text,
        typer.Option(metavar="TOKENS", help="Of each request at its end: 128k. Else the workload."),
    ],
    "user_tokens_per_s": Annotated[
        Number, typer.Option(metavar="RATE", help="Speed of each user, tokens/s.")
    ],
    "memory": Annotated[
        Text, typer.Option(metavar="SIZE", help="Of one accelerator, instead of its data sheet's.")
    ],
    "memory_fraction": Annotated[
        float, typer.Option(metavar="SHARE", help="Of memory that the engine may use.")
    ],
    "headroom": Annotated[
        str, typer.Option(metavar="SIZE", help="Memory kept free, such as 2GiB.")
    ],
    "weights_bytes": Annotated[
        Many, typer.Option(metavar="SIZE", help="Weights on one GPU, once per model: 70GiB.")
    ],
    "layout": Annotated[
        Text,
        typer.Option(
            metavar="LAYOUT",
            help='Only "tp2 ep2", say; "all" adds experts shared by replicas.',
        ),
    ],
    "engine": Annotated[
        str, typer.Option(metavar="ENGINE", help="vllm, llama.cpp, transformers, sglang, …")
    ],
    "acceptance_length": Annotated[
        float, typer.Option(metavar="TOKENS", help="That a decode step gives.")
    ],
    "mtp": Annotated[bool, typer.Option("--mtp", help="The prediction head is loaded.")],
    "verbosity": Annotated[
        float, typer.Option(metavar="RATIO", help="Child's tokens for one of the parent's.")
    ],
    "require": Annotated[Text, typer.Option(metavar="WISH", help='Such as "2x server tokens/s".')],
    "concurrency": Annotated[
        str, typer.Option(metavar="N,N,…", help="Requests at a time: 1,4,16,64.")
    ],
    "repeats": Annotated[
        int, typer.Option(min=1, metavar="N", help="Of everything; medians count.")
    ],
    "requests_per_user": Annotated[int, typer.Option(min=1, metavar="N", help="In each repeat.")],
    "random_weights": Annotated[
        bool,
        typer.Option("--random-weights", help="Make weights up: speed does not depend on them."),
    ],
    "threads": Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads of the engine.")],
    "engine_arg": Annotated[
        Many, typer.Option(metavar="ARG", help="For the engine's command line; repeatable.")
    ],
    "seed": Annotated[int, typer.Option(metavar="N", help="Of everything that is drawn.")],
}

FORMATS: Mapping[str, Any] = {
    "to": Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="bf16, fp32, fp8, nvfp4, nvfp4-w4a16, mxfp4, auto or your own YAML file.",
        ),
    ],
    "bits": Annotated[
        Number, typer.Option(metavar="BITS", help="Average per weight, for --to auto: 4.75.")
    ],
    "kv_dtype": Annotated[
        Text, typer.Option(metavar="FORMAT", help="Of the KV cache; else as --to has it.")
    ],
    "state_dtype": Annotated[
        Text, typer.Option(metavar="FORMAT", help="Of the Mamba state; else as --to has it.")
    ],
    "dtype": Annotated[
        str, typer.Option(metavar="DTYPE", help="Of the running model: float32 or bfloat16.")
    ],
}

QUANTIZING: Mapping[str, Any] = {
    "text": Annotated[
        Text, typer.Option(metavar="TEXT", help="Scales of activations are found on it.")
    ],
    "sequences": Annotated[int, typer.Option(min=1, metavar="N", help="Of that text, at most.")],
    "sequence_length": Annotated[int, typer.Option(min=1, metavar="TOKENS", help="In each.")],
    "method": Annotated[
        str,
        typer.Option(metavar="METHOD", help="Scales of weights: max, mse or lsq (learned)."),
    ],
    "percentile": Annotated[
        Number, typer.Option(metavar="%", help="Share of magnitudes that scales cover; else all.")
    ],
    "power_of_two_kv": Annotated[
        bool, typer.Option("--power-of-two-kv", help="Round KV scales up to powers of two.")
    ],
    "file_layout": Annotated[
        str, typer.Option(metavar="NAME", help="Names in the files: modelopt, compressed-tensors.")
    ],
    "shard_bytes": Annotated[str, typer.Option(metavar="SIZE", help="Of a file, such as 5GB.")],
    "teacher": Annotated[
        File, typer.Option(metavar="MODEL", help="Learn from it under rounding before writing.")
    ],
    "heal_tokens": Annotated[
        Whole,
        typer.Option(min=1, metavar="TOKENS", help="Of that learning; else 1M."),
    ],
    "learning_rate": Annotated[
        Number, typer.Option(metavar="RATE", help="Its peak; found by a probe if not given.")
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
    **SERVING,
    **FORMATS,
    **QUANTIZING,
    **CHECKING,
    **EVERYWHERE,
}

OWN: Mapping[tuple[str, str], Any] = {
    ("serve", "model"): Annotated[
        str, typer.Argument(metavar="MODEL", help=f"{MODEL} Or a run folder: its last child.")
    ],
    ("serve", "hardware"): Annotated[
        Text, typer.Option(metavar="[Nx]NAME", help="To predict speeds for; else this machine.")
    ],
    ("plan", "to"): Annotated[
        str,
        typer.Option(metavar="FORMAT", help="bf16, fp16, fp32, fp8, nvfp4, nvfp4-w4a16 or mxfp4."),
    ],
}
"""(command, parameter) -> where one command's help must differ, because it takes more or less."""
