"""Healing on a pico hybrid: better or unchanged, resumable, and robust."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import NemotronHForCausalLM

from fretsaw.errors import RunError
from fretsaw.runtime.routing import record_routing
from fretsaw.train.distill import DistillResult, DistillSettings, distill
from fretsaw.train.journal import MARK, Journal
from fretsaw.train.metrics import evaluate_kl
from fretsaw.train.objective import Objective
from fretsaw.train.plan import ProbeRow, Schedule
from fretsaw.train.probe import find_rate, middle_rate, probe_steps
from tests.pico import HETEROGENEOUS, VOCAB, pico_model

LENGTH = 24
SETTINGS = DistillSettings(
    tokens=12 * 4 * LENGTH,
    sequence_length=LENGTH,
    batch_size=4,
    learning_rate=2e-3,
    evaluations=3,
    checkpoint_s=0.0,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def text(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count, LENGTH), generator=generator)


def damaged(seed: int = 0, amount: float = 0.3) -> NemotronHForCausalLM:
    """The teacher with noise on its experts: a stand-in for a cut."""
    student = pico_model(seed)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if "experts" in name:
                parameter.mul_(1 + amount * torch.randn(parameter.shape, generator=generator))
    return student


def heal(
    student: NemotronHForCausalLM,
    folder: Path,
    *,
    teacher: NemotronHForCausalLM | None = None,
    settings: DistillSettings = SETTINGS,
    on_progress: Callable[..., None] | None = None,
    **overrides: Any,
) -> DistillResult:
    return distill(
        student,
        teacher or pico_model(0),
        train_ids=text(1, 32),
        validation_ids=text(2, 8),
        settings=replace(settings, **overrides),
        folder=folder,
        seed=3,
        on_progress=on_progress,
    )


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_healing_brings_the_student_nearer_and_leaves_the_teacher(tmp_path: Path) -> None:
    student, teacher = damaged(), pico_model(0)
    before = weights(teacher)
    bias = {n: b.clone() for n, b in student.named_buffers() if "correction" in n}
    done: list[int] = []
    result = heal(student, tmp_path, teacher=teacher, on_progress=lambda n, text="": done.append(n))
    assert result.after.kl < 0.85 * result.before.kl
    assert result.is_improved
    assert [row.step for row in result.history] == [0, 4, 8, 12]
    assert result.tokens == SETTINGS.tokens == done[-1]
    itself = evaluate_kl(teacher, teacher, ids=text(2, 8), batch_size=4)
    assert result.teacher_loss == pytest.approx(itself.loss)
    measured = evaluate_kl(student, teacher, ids=text(2, 8), batch_size=4)
    assert measured == result.after, "the student is left with the weights that were measured"
    assert is_same(before, weights(teacher))
    assert bias, "a correction bias is a buffer"
    assert all(torch.equal(b, dict(student.named_buffers())[n]) for n, b in bias.items())
    assert not student.training
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 4, 8, 12]


def test_u23_every_sequence_has_its_own_figures(tmp_path: Path) -> None:
    result = heal(damaged(), tmp_path, tokens=4 * LENGTH, evaluations=1)
    for one in (result.before, result.after, *(row.held_out for row in result.history)):
        assert len(one.sequences) == 8
        for name in ("kl", "loss", "agreement", "teacher_loss"):
            mean = sum(getattr(s, name) for s in one.sequences) / 8
            assert mean == pytest.approx(getattr(one, name), abs=1e-12)
    alone = evaluate_kl(damaged(), pico_model(0), ids=text(2, 8)[3:4], batch_size=4)
    assert result.before.sequences[3].kl == pytest.approx(alone.kl, rel=1e-4)
    assert result.before.sequences[3].teacher_loss == pytest.approx(alone.teacher_loss, rel=1e-4)
    assert Journal(tmp_path, _fingerprint(tmp_path)).finished() == result


def _fingerprint(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "fingerprint.json").read_text())
    return found


def test_a_rate_that_ruins_the_student_gives_back_the_cut_itself(tmp_path: Path) -> None:
    student = damaged(amount=0.02)
    cut = weights(student)
    result = heal(student, tmp_path, learning_rate=0.3)
    assert not result.is_improved
    assert result.best_step == 0
    assert result.after == result.before
    assert min(row.held_out.kl for row in result.history[1:]) > result.before.kl
    assert is_same(cut, weights(student))


@pytest.mark.parametrize("amount", [0.01, 0.5])
def test_the_probe_finds_a_rate_that_helps(tmp_path: Path, amount: float) -> None:
    result = heal(damaged(amount=amount), tmp_path, learning_rate="auto")
    assert result.after.kl < result.before.kl
    kls = {row.rate: row.kl for row in result.probe}
    assert len(kls) >= 3
    assert result.learning_rate == min(kls, key=kls.__getitem__)
    assert result.probe_tokens == sum(row.tokens for row in result.probe) > 0


def test_the_probe_moves_outwards_and_repeats_nothing() -> None:
    tried: list[float] = []
    middle = middle_rate(0.01)

    def trial(rate: float) -> ProbeRow:
        tried.append(rate)
        return ProbeRow(
            rate, math.nan if rate > 2 * middle else abs(math.log(9 * rate / middle)), 1
        )

    best = find_rate(0.01, trial)
    assert best == pytest.approx(middle / 9)
    assert len(tried) == len(set(tried)) == 5
    done = [trial(rate) for rate in list(tried)]
    tried.clear()
    assert find_rate(0.01, trial, done=done) == best
    assert tried == []
    assert middle_rate(0.01) > middle_rate(0.0001)
    assert probe_steps(3) == 0


def test_schedule_rises_falls_and_wastes_no_step() -> None:
    schedule = Schedule(1e-3, 100, 0.1, 0.1)
    factors = [schedule.factor(step) for step in range(100)]
    assert factors[0] > 0
    assert factors[10] == 1 == max(factors)
    assert factors == sorted(factors[:11]) + sorted(factors[11:], reverse=True)
    assert factors[-1] == pytest.approx(0.1)
    assert Schedule(1e-3, 1, 0.1, 0.1).factor(0) == 1


class Killed(BaseException):
    """Not an Exception: nothing on the way may swallow it."""


def killer(after: int) -> Callable[..., None]:
    calls = 0

    def on_progress(done: int, text: str = "") -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise Killed

    return on_progress


@pytest.mark.parametrize("rate", [2e-3, "auto"])
def test_killed_and_started_again_ends_in_the_same_weights(tmp_path: Path, rate: Any) -> None:
    whole = damaged()
    expected = heal(whole, tmp_path / "whole", learning_rate=rate)
    kills = 0
    for after in (2, 6):
        student = damaged()
        with pytest.raises(Killed):
            heal(student, tmp_path / "cut", learning_rate=rate, on_progress=killer(after))
        kills += 1
    student = damaged()
    result = heal(student, tmp_path / "cut", learning_rate=rate)
    assert kills == 2
    assert result == expected
    assert is_same(weights(whole), weights(student))
    again = damaged()
    assert heal(again, tmp_path / "cut", learning_rate=rate) == expected, "a finished one is read"
    assert is_same(weights(whole), weights(again))


def test_an_incomplete_checkpoint_is_not_used(tmp_path: Path) -> None:
    whole = damaged()
    expected = heal(whole, tmp_path / "whole")
    with pytest.raises(Killed):
        heal(damaged(), tmp_path / "cut", on_progress=killer(8))
    last, previous = sorted(tmp_path.glob("cut/checkpoint-*"), key=lambda f: -int(f.name[11:]))
    with (last / "optimizer.pt").open("r+b") as file:
        file.truncate(100)
    (previous.parent / "checkpoint-9").mkdir()
    shutil.copy(previous / "model.safetensors", previous.parent / "checkpoint-9")
    with (tmp_path / "cut/history.jsonl").open("a") as file:
        file.write('{"step": 8, "tok')
    assert (previous / MARK).is_file()
    student = damaged()
    assert heal(student, tmp_path / "cut") == expected
    assert is_same(weights(whole), weights(student))
    assert not list(tmp_path.glob("cut/checkpoint-*"))
    assert not list(tmp_path.rglob("*.partial"))


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    heal(damaged(), tmp_path)
    with pytest.raises(RunError, match="differs in: settings"):
        heal(damaged(), tmp_path, learning_rate=1e-3)
    with pytest.raises(RunError, match="differs in: student"):
        heal(damaged(amount=0.1), tmp_path)


def test_stops_at_recovery_or_when_patience_ends(tmp_path: Path) -> None:
    result = heal(damaged(), tmp_path / "recovery", evaluations=12, recovery=0.9)
    assert result.stop_reason == "recovery"
    assert result.after.kl <= 0.9 * result.before.kl
    assert result.num_steps < 12
    assert result.tokens == result.num_steps * SETTINGS.step_tokens
    result = heal(damaged(), tmp_path / "patience", learning_rate=0.3, evaluations=12, patience=2)
    assert (result.stop_reason, result.num_steps) == ("patience", 2)


def poison(model: NemotronHForCausalLM, name: str, *, at_call: int) -> None:
    """Makes the gradient of one tensor NaN in one backward pass."""
    calls = 0

    def spoil(grad: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return grad * math.nan if calls == at_call else grad

    model.get_parameter(name).register_hook(spoil)


def test_r68_a_step_without_finite_gradient_is_skipped_and_named(tmp_path: Path) -> None:
    student = damaged()
    poison(student, "model.layers.1.mixer.fc1_latent_proj.weight", at_call=5)
    with pytest.warns(RuntimeWarning, match=r"step 5 skipped: gradient of .*fc1_latent_proj"):
        result = heal(student, tmp_path)
    assert [(s.step, s.tensor) for s in result.skipped] == [
        (5, "gradient of model.layers.1.mixer.fc1_latent_proj.weight")
    ]
    assert result.after.kl < 0.9 * result.before.kl
    assert all(p.isfinite().all() for p in student.parameters())


def test_r68_absurd_teacher_logits_do_no_harm(tmp_path: Path) -> None:
    teacher = pico_model(0)

    def spoil(module: torch.nn.Module, inputs: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[..., 7] = -math.inf
        output[0, 3, 8] = 3e38
        return output

    teacher.lm_head.register_forward_hook(spoil)
    student = damaged()
    result = heal(student, tmp_path, teacher=teacher)
    assert result.skipped == ()
    assert result.is_improved
    assert math.isfinite(result.after.kl)


def test_training_stops_when_no_step_is_finite(tmp_path: Path) -> None:
    student = damaged()
    for call in range(1, 13):
        poison(student, "lm_head.weight", at_call=call)
    cut = weights(student)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = heal(student, tmp_path)
    assert result.stop_reason == "not finite"
    assert len(result.skipped) == 10
    assert is_same(cut, weights(student))


def test_a_model_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    student = damaged()
    with torch.no_grad():
        student.get_parameter("model.layers.0.mixer.A_log")[1] = math.nan
    with pytest.raises(RunError, match=r"student weight model.layers.0.mixer.A_log"):
        heal(student, tmp_path)


def test_r69_padded_teacher(tmp_path: Path) -> None:
    student, teacher = pico_model(0, vocab_size=120), pico_model(0)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            source = teacher.get_parameter(name)
            parameter.copy_(source[:120] if "lm_head" in name or "embeddings" in name else source)
            if "experts" in name:
                parameter.mul_(1.3)
    result = distill(
        student,
        teacher,
        train_ids=text(1, 32).clamp(max=119),
        validation_ids=text(2, 8).clamp(max=119),
        settings=SETTINGS,
        folder=tmp_path,
        seed=0,
    )
    assert result.after.kl < result.before.kl


def test_r71_balance_loss_alone_reaches_every_router() -> None:
    teacher, student = pico_model(0), pico_model(0)
    settings = replace(SETTINGS, balance_weight=1.0)
    loss = Objective(teacher, settings)(student, text(0, 4))
    torch.autograd.backward(loss)
    assert loss.item() >= 1 - 1e-5, "KL is zero, what is left is the balance"
    gates = [p for n, p in student.named_parameters() if n.endswith("gate.weight")]
    assert len(gates) == 2
    for gate in gates:
        assert gate.grad is not None
        assert gate.grad.abs().max() > 1e-6


def test_routing_is_recorded_as_the_layer_decides() -> None:
    model = pico_model(0)
    with torch.no_grad(), record_routing(model) as routings:
        model(input_ids=text(0, 2))
    assert len(routings) == 2
    for routing in routings:
        assert routing.scores.shape == (2 * LENGTH, 4)
        assert routing.chosen.shape == (2 * LENGTH, 2)
    with torch.no_grad():
        model(input_ids=text(0, 2))
    assert len(routings) == 2, "hooks are gone"


def test_r73_unequal_blocks_with_all_terms(tmp_path: Path) -> None:
    student = pico_model(0, per_block=HETEROGENEOUS)
    result = heal(
        student, tmp_path, cosine_weight=0.5, label_weight=0.1, balance_weight=0.01, patience=5
    )
    assert result.after.kl < result.before.kl
    assert student.model.layers[1].mixer.experts.up_proj.shape[1] == 24


def test_what_is_kept_and_measured_is_what_a_bfloat16_file_holds(tmp_path: Path) -> None:
    student, teacher = damaged(), pico_model(0)
    dtypes = {n: torch.bfloat16 for n, _ in student.named_parameters() if "A_log" not in n}
    with torch.no_grad():
        for name in dtypes:
            student.get_parameter(name).copy_(student.get_parameter(name).bfloat16())
    result = distill(
        student,
        teacher,
        train_ids=text(1, 32),
        validation_ids=text(2, 8),
        settings=SETTINGS,
        folder=tmp_path,
        seed=0,
        dtypes=dtypes,
    )
    assert result.is_improved
    for name, parameter in student.named_parameters():
        is_rounded = torch.equal(parameter, parameter.bfloat16().float())
        assert is_rounded == (name in dtypes), name
    assert evaluate_kl(student, teacher, ids=text(2, 8), batch_size=4) == result.after


def test_half_precision_is_trained_around_float32_weights(tmp_path: Path) -> None:
    student = damaged()
    torch.nn.Module.to(student, torch.bfloat16)
    result = heal(student, tmp_path)
    assert result.after.kl < 0.9 * result.before.kl
    assert student.dtype == torch.float32
