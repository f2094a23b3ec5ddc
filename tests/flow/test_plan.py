"""`fretsaw plan` from two configs alone: the published figures, no torch, and users' mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import Said
from tests.shapes import CONFIGS

Command = Callable[..., Said]
SUPER, PUZZLE = (CONFIGS / f"{name}.json" for name in ("super", "puzzle"))
ONE_H100 = ("--hardware", "H100", "--to", "nvfp4")
B200 = ("--hardware", "8xB200", "--to", "nvfp4", "--state-dtype", "fp16")
MILLION, BINARY_MILLION = ("--context", "1M"), ("--context", "1_048_576")
WEIGHTS = ("--weights-bytes", "70GiB", "--weights-bytes", "44.5GiB")
DECIMAL_WEIGHTS = ("--weights-bytes", "70GB", "--weights-bytes", "44.5GB")


def answer(command: Command, *arguments: object) -> dict[str, Any]:
    said = command("plan", *arguments, "--json")
    assert (said.code, said.err) == (0, "")
    data: dict[str, Any] = json.loads(said.out)
    return data


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((*MILLION, *WEIGHTS, "--memory-fraction", 0.97), [1, 8]),
        ((*BINARY_MILLION, *WEIGHTS, "--memory-fraction", 0.97), [1, 7]),
        ((*MILLION, *WEIGHTS), [0, 6]),
        ((*MILLION, "--memory-fraction", 0.97), [2, 8]),
        ((*MILLION, *DECIMAL_WEIGHTS, "--memory-fraction", 0.97), [3, 9]),
    ],
)
def test_concurrent_requests_of_a_million_tokens(
    command: Command, arguments: tuple[object, ...], expected: list[int]
) -> None:
    data = answer(command, SUPER, PUZZLE, *ONE_H100, *arguments)
    assert [one["max_concurrency"] for one in data["models"]] == expected


def test_what_that_turns_on_is_printed(command: Command) -> None:
    said = command("plan", SUPER, PUZZLE, *ONE_H100, *MILLION, *WEIGHTS, "--memory-fraction", 0.97)
    text = " ".join(said.out.split())
    for part in ("79.65 GiB", "97%", "KV fp8", "state fp32", "MTP not loaded", "1,000,000 tokens"):
        assert part in text


def test_figures_of_the_two_configs(command: Command) -> None:
    """Published: 120.7B and 75.3B, 12.8B and 9.3B active; with MTP 156.6, 83 and 53.5 GB."""
    parent, child = answer(command, SUPER, PUZZLE, *ONE_H100, *MILLION)["models"]
    assert (parent["params"], parent["active_params"]) == (120_668_707_840, 12_770_237_440)
    assert (child["params"], child["active_params"]) == (75_353_345_024, 9_337_097_216)
    assert parent["weights_bytes"]["bf16"] + parent["mtp_bytes"] == 247_222_108_160
    for number_format, gigabytes in (("bf16", 156.6), ("fp8", 83.02), ("nvfp4", 53.48)):
        size = child["weights_bytes"][number_format] + child["mtp_bytes"]
        assert size / 1e9 == pytest.approx(gigabytes, rel=2e-3)
    assert parent["kv_bytes_per_token"] == child["kv_bytes_per_token"] == 4096
    states = [round(one["state_bytes_per_sequence"] / 2**20) for one in (parent, child)]
    assert states == [162, 122]


def test_a_speed_up_is_what_the_benchmark_finds(command: Command) -> None:
    """2.03 in the paper; `tests/oracle/test_paper.py` looks at all of its points."""
    arguments = (*B200, "--workload", "8k/64k", "--user-tokens-per-s", 100)
    data = answer(command, SUPER, PUZZLE, *arguments)
    parent, child = (one["server_tokens_per_s"] for one in data["models"])
    assert data["speedup"] == child / parent == pytest.approx(42_601 / 20_939, rel=0.25)


def test_no_torch_is_imported() -> None:
    """In an interpreter of its own, which also runs everything that a plan has."""
    program = (
        "import sys\n"
        "from fretsaw.cli import main\n"
        f"sys.argv = ['fretsaw', 'plan', {str(SUPER)!r}, {str(PUZZLE)!r}, *{list(B200)!r},\n"
        "    '--workload', '8k/64k', '--user-tokens-per-s', '100',\n"
        "    '--require', '2x server tokens/s', '--layout', 'tp2 ep2']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as ending:\n"
        "    assert not ending.code\n"
        "heavy = {'torch', 'transformers', 'scipy', 'pandas', 'pyarrow'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "required: 2x server tokens/s" in done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (("--hardware", "8xB20"), "unknown hardware 'B20'", "did you mean 'B200'"),
        (("--hardware", "0xB200"), "'0xB200' is no hardware", "8xB200"),
        (("--memory", "0"), "memory_bytes is 0", "above 0"),
        (("--memory", "-5GB"), "'-5GB' is no size", "GiB"),
        (("--memory-fraction", "-0.5"), "memory fraction of -0.5", "0.9"),
        (("--context", "2M"), "longer than the model's 1,048,576", "max_position_embeddings"),
        (("--workload", "8k:64k"), "'8k:64k' is no workload", "8k/64k"),
        (("--acceptance-length", "0.5"), "acceptance length of 0.5", "speculative"),
        (("--layout", "tp3"), "does not divide the node's 8", "1, 2, 4, 8"),
        (("--hardware", "16xB200", "--layout", "tp16"), "does not divide the 8 groups", "tp"),
        (("--hardware", "3xB200", "--layout", "tp3"), "tp3 does not divide", "tp"),
        (("--weights-bytes", "70GiB"), "given 1 times for 2 models", "once per model"),
        (("--require", "faster"), "'faster' is no requirement", "2x server tokens/s"),
        (("--require", "2x server tokens/s"), "at no user speed", "--user-tokens-per-s"),
        (("--headroom", "180GiB"), "nothing is left", "less head-room"),
        (("--acceptance-length", "nan"), "acceptance length of nan", "speculative"),
    ],
)
def test_mistakes_end_with_2_and_say_what_to_do(
    command: Command, arguments: tuple[str, ...], said: str, hint: str
) -> None:
    usual = ("--hardware", "8xB200", "--workload", "8k/1k")
    ended = command("plan", SUPER, PUZZLE, *usual, *arguments)
    assert (ended.code, ended.out) == (2, "")
    message, advice = ended.err.splitlines()
    assert message.startswith("error: ")
    assert said in message
    assert advice.startswith("hint: ")
    assert hint in advice


def test_a_speed_without_a_workload_contradicts_itself(command: Command) -> None:
    ended = command("plan", SUPER, *ONE_H100, *MILLION, "--user-tokens-per-s", 50)
    assert ended.code == 2
    assert "no workload" in ended.err


def test_models_that_are_none(command: Command, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.json"
    unknown.write_text('{"model_type": "gpt_odd"}')
    for model, said in ((tmp_path, "config.json"), (unknown, "gpt_odd")):
        ended = command("plan", model, *ONE_H100, *MILLION)
        assert ended.code == 2
        assert said in ended.err
        assert "hint: " in ended.err


def test_a_picture_is_written_and_never_over_another(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "frontier.svg"
    arguments = ("plan", PUZZLE, *ONE_H100, "--workload", "8k/1k", "--picture", file)
    assert command(*arguments).code == 0
    picture = file.read_bytes()
    assert picture.startswith(b"<svg")
    ended = command(*arguments)
    assert ended.code == 2
    assert f"{file} is there already" in ended.err
    assert file.read_bytes() == picture
