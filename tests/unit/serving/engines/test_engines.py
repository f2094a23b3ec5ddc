"""What engines say is read right, and one that is missing says how to get it."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from fretsaw.errors import RecipeError, RunError
from fretsaw.serving.engines import llamacpp, vllm
from fretsaw.serving.engines.base import EngineSettings, Timing, engine_python
from fretsaw.serving.engines.registry import ENGINES, engine_named
from fretsaw.serving.engines.server import closed_loop, serve
from fretsaw.serving.engines.transformers import Transformers
from tests.pico import write_pico_checkpoint

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="model"} 40.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="model"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="model"} 70.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 38.0
"""


def _settings(scratch: Path, **values: object) -> EngineSettings:
    return EngineSettings(context=64, sequences=2, scratch=scratch, **values)  # type: ignore[arg-type]


def test_acceptance_length_is_one_and_what_was_accepted_of_each_draft() -> None:
    assert vllm.acceptance_length(METRICS) == pytest.approx(1 + 70 / 40)
    assert vllm.acceptance_length("vllm:num_requests_running 0.0\n") is None


def test_tokens_inside_of_a_character_have_no_logprob_in_llamacpp() -> None:
    entries = [{"id": 7, "logprob": -1.0}, {"id": 9, "logprob": -2.0}]

    assert llamacpp.align([7, 8, 9], entries) == (-1.0, None, -2.0)
    assert llamacpp.align([7, 8], []) == (None, None)


def test_vllm_is_started_offline_without_the_folders_code(tmp_path: Path) -> None:
    arguments = vllm.arguments(tmp_path, _settings(tmp_path, arguments=("--x",)), port=1)

    assert "--trust-remote-code" not in arguments
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert arguments[-1] == "--x", "the user's come last, so that they count"
    assert vllm.environment(_settings(tmp_path, threads=3))["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("name", "module", "install"),
    [("vllm", "vllm", vllm.INSTALL), ("llama.cpp", "xllamacpp", llamacpp.INSTALL)],
)
def test_a_missing_engine_says_how_to_get_it(
    name: str, module: str, install: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with (
        pytest.raises(RunError, match=f"{name} is not installed") as missing,
        ENGINES[name].open(tmp_path, _settings(tmp_path)),
    ):
        pass

    assert "make engines" in missing.value.hint
    settings = _settings(tmp_path, python=tmp_path / "none")
    with pytest.raises(RunError, match="there is no Python at"):
        engine_python(name, module=module, settings=settings, install=install)


def test_an_unknown_engine_is_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="unknown engine 'vlm'") as error:
        engine_named("vlm")
    assert "did you mean 'vllm'?" in error.value.hint


def test_a_server_that_does_not_start_tells_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match="No module named 'xllamacpp'"),
        serve(
            "llamacpp",
            "llamacpp_serve.py",
            python=Path(sys.executable),
            log=tmp_path / "log",
            arguments=lambda port: [json.dumps({"port": port})],
        ),
    ):
        pass


def test_a_checkpoint_that_the_converter_refuses_is_not_left_half_converted(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="converter does not take"):
        llamacpp.convert(tmp_path, tmp_path / "m.gguf", python=Path(sys.executable))
    assert not (tmp_path / "m.gguf").exists()


def test_a_closed_loop_keeps_the_number_of_requests_at_a_time() -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def do(prompt: object) -> Timing:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1
        return Timing(1, 0.0, 0.0, 0.0)

    assert len(closed_loop([[1]] * 12, concurrency=3, do=do)) == 12
    assert most[0] == 3


def test_transformers_generates_and_bears_a_load(tmp_path: Path) -> None:
    write_pico_checkpoint(tmp_path / "pico", seed=3, heterogeneous=True)
    prompts = [[5, 9, 17], [40, 3, 77], [1, 2, 3]]

    with Transformers().open(tmp_path / "pico", _settings(tmp_path)) as session:
        (one, *_) = session.generate(prompts, num_tokens=4)
        timings = session.bear(prompts, num_tokens=4, concurrency=2)
        with pytest.raises(RunError, match="one length"):
            session.bear([[1], [1, 2]], num_tokens=4, concurrency=2)

    assert (len(one.tokens), len(one.logprobs)) == (4, 4)
    assert all(logprob is not None and logprob < 0 for logprob in one.logprobs)
    assert [t.num_tokens for t in timings] == [4, 4, 4]
    assert timings[0] == timings[1] != timings[2], "two together, then the third"
    assert all(t.sent_s < t.first_s < t.done_s for t in timings)


def test_transformers_has_no_command_line(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match="no engine argument"),
        Transformers().open(tmp_path, _settings(tmp_path, arguments=("--x",))),
    ):
        pass
