from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.conftest import REPOSITORY
from tests.training.runs import ITERATIONS
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.training import loop
from gfss.training.checkpoints import load_checkpoint, save_checkpoint
from gfss.training.loop import Iteration, Schedule, TrainingRun, remove_training_state, train


@pytest.fixture(autouse=True)
def _frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 4)


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 1))


def squares(module: nn.Module, stop_at: int | None = None) -> Callable[[Iteration], tuple[Tensor, Tensor]]:
    """A loss on samples of the iteration's number; may be interrupted."""

    def loss(step: Iteration) -> tuple[Tensor, Tensor]:
        if step.number == stop_at:
            raise KeyboardInterrupt
        samples = torch.randn(5, 3, generator=torch.Generator().manual_seed(step.number))
        return (module(samples)[:, 0] - samples.sum(dim=1)).square().sum(), torch.tensor(5)

    return loss


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 500), st.floats(1e-4, 1), st.floats(0, 1e-4), st.integers(0, 40), st.integers(0, 500))
def test_learning_rate_is_the_cosine(iterations: int, rate: float, final: float, warmup: int, number: int) -> None:
    schedule = Schedule(iterations, rate, final_rate=final, warmup=warmup)
    if number < warmup:
        expected = rate * (number + 1) / warmup
    else:
        angle = math.pi * (number - warmup) / max(iterations - warmup, 1)
        expected = final * (1 - math.cos(angle)) / 2 + rate * (1 + math.cos(angle)) / 2
    assert schedule.rate_at(number) == pytest.approx(expected, rel=1e-9)


def test_each_step_is_taken_with_the_rate_of_its_number() -> None:
    module = nn.Linear(1, 1, bias=False)
    start = module.weight.item()
    schedule = Schedule(3, rate=0.1, final_rate=0.0, weight_decay=0.0)
    train(module, lambda step: (module.weight.sum(), torch.tensor(1)), schedule)
    # gradient 1 in every step; nesterov momentum moves by 1 + 0.9 m, with m = 1, 1.9, 2.71
    moved = sum(schedule.rate_at(i) * (1 + 0.9 * m) for i, m in enumerate((1, 1.9, 2.71)))
    assert start - module.weight.item() == pytest.approx(moved, rel=1e-5)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("stop_at", [2, 4, 7, 8])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, optimiser: str, stop_at: int) -> None:
    schedule = Schedule(10, 0.05, optimiser)  # type: ignore[arg-type]
    whole, stopped, resumed = network(), network(), network()
    losses = train(whole, squares(whole), schedule, run=TrainingRun(seed=3))
    with pytest.raises(KeyboardInterrupt):
        train(stopped, squares(stopped, stop_at), schedule, run=TrainingRun(seed=3, folder=tmp_path))
    torch.manual_seed(stop_at)  # what happened before must not matter
    rest = train(resumed, squares(resumed), schedule, run=TrainingRun(seed=3, folder=tmp_path, resume=True))
    assert same_weights(whole, resumed)
    assert rest == losses[stop_at // 4 * 4 :]
    assert len(rest) < len(losses) or stop_at < 4


def test_a_killed_process_is_resumed_bit_by_bit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.training.runs"]
    process = subprocess.Popen([*command, "to_be_killed", str(tmp_path)], cwd=REPOSITORY)
    try:
        wait_for(tmp_path / "train.json", process)
        time.sleep(random.random() / 2)  # any moment; saving takes a good part of the run's time
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 0 < load_checkpoint(tmp_path, "train")[1]["iteration"] < ITERATIONS

    subprocess.run([*command, "to_be_compared", str(tmp_path)], cwd=REPOSITORY, check=True)
    resumed, whole = (load_file(tmp_path / f"{name}.safetensors") for name in ("resumed", "uninterrupted"))
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def wait_for(path: Path, process: subprocess.Popen[bytes], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, "the process ended before its first checkpoint"
        assert time.monotonic() < end, "no checkpoint appeared"
        time.sleep(0.01)


def test_without_resume_a_run_starts_anew(tmp_path: Path) -> None:
    first, second = network(), network()
    train(first, squares(first), Schedule(6), run=TrainingRun(folder=tmp_path))
    assert len(train(second, squares(second), Schedule(6), run=TrainingRun(folder=tmp_path))) == 6
    assert same_weights(first, second)


def test_resume_without_a_checkpoint_starts_at_zero(tmp_path: Path) -> None:
    module = network()
    assert len(train(module, squares(module), Schedule(3), run=TrainingRun(folder=tmp_path, resume=True))) == 3


def test_another_schedule_is_refused(tmp_path: Path) -> None:
    module = network()
    train(module, squares(module), Schedule(6, 0.01), run=TrainingRun(folder=tmp_path))
    with pytest.raises(GfssError, match=r"unfinished run with another schedule .* give the same options"):
        train(module, squares(module), Schedule(8, 0.01), run=TrainingRun(folder=tmp_path, resume=True))


def test_other_settings_than_the_schedule_are_refused_too(tmp_path: Path) -> None:
    module = network()
    first = {"batch": 8, "levels": ("layer3",)}
    train(module, squares(module), Schedule(6), TrainingRun(folder=tmp_path), settings=first)
    again = TrainingRun(folder=tmp_path, resume=True)
    with pytest.raises(GfssError, match=r"other options \(settings\)"):
        train(module, squares(module), Schedule(6), again, settings={**first, "batch": 4})
    assert len(train(module, squares(module), Schedule(6), again, settings=first)) < 6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path, bad: float) -> None:
    module = network()
    schedule = Schedule(10, 0.01)
    seen: list[dict[str, Tensor]] = []

    def loss(step: Iteration) -> tuple[Tensor, Tensor]:
        seen.append({name: value.clone() for name, value in module.state_dict().items()})
        total, count = squares(module)(step)
        return (total * bad if step.number == 6 else total), count

    with pytest.raises(GfssError) as error:
        train(
            module,
            loss,
            schedule,
            describe=lambda number: f"images a{number}, b{number}",
            run=TrainingRun(folder=tmp_path),
        )
    message = str(error.value)
    assert f"the loss became {bad} at iteration 6 (learning rate {schedule.rate_at(6):.2g}, images a6, b6)" in message
    assert all(torch.equal(value, seen[-1][name]) for name, value in module.state_dict().items())  # no step was taken
    assert load_checkpoint(tmp_path, "train")[1]["iteration"] == 4


def test_unknown_optimiser() -> None:
    module = network()
    with pytest.raises(GfssError, match="unknown optimiser 'adam'; did you mean 'adamw'"):
        train(module, squares(module), Schedule(1, optimiser="adam"))  # type: ignore[arg-type]


def test_random_numbers_depend_on_the_iteration_alone() -> None:
    drawn: list[list[float]] = []
    module = network()

    def loss(step: Iteration) -> tuple[Tensor, Tensor]:
        drawn[-1].append(torch.rand(()).item())
        return squares(module)(step)

    for before in (1, 2):
        torch.manual_seed(before)
        drawn.append([])
        train(module, loss, Schedule(3))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


def test_frozen_parameters_stay_and_the_module_is_left_in_evaluation() -> None:
    module = network()
    module[0].requires_grad_(False)
    before = module[0].weight.clone(), module[3].weight.clone()
    train(module, squares(module), Schedule(3))
    assert torch.equal(module[0].weight, before[0])
    assert not torch.equal(module[3].weight, before[1])
    assert not module.training


def test_an_iteration_without_pixels_changes_nothing() -> None:
    module = network()
    before = network()
    losses = train(module, lambda step: (module[3].weight.sum() * 0, torch.tensor(0)), Schedule(2, weight_decay=0.0))
    assert losses == [0, 0]
    assert same_weights(module, before)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 30), st.integers(1, 5))
def test_processes_share_all_samples(count: int, world: int) -> None:
    shares = [Iteration(0, rank, world).share(range(count)) for rank in range(world)]
    assert sorted(sample for share in shares for sample in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_scalars_are_written_for_tensorboard(tmp_path: Path) -> None:
    module = network()
    train(module, squares(module), Schedule(2), run=TrainingRun(folder=tmp_path))
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"loss" in events.read_bytes()


def test_finish_removes_the_training_checkpoint_only(tmp_path: Path) -> None:
    for name in ("train", "base"):
        save_checkpoint(tmp_path, {"x": torch.zeros(1)}, {}, name)
    remove_training_state(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name[:4] for name in names] == ["base", "base"]
    assert json.loads((tmp_path / "base.json").read_text())["tensors"] in names


def test_the_module_is_in_training_while_it_is_trained() -> None:
    module = network().eval()
    seen: list[bool] = []

    def loss(step: Iteration) -> tuple[Tensor, Tensor]:
        seen.append(module.training)
        return squares(module)(step)

    train(module, loss, Schedule(2))
    assert seen == [True, True]


@pytest.mark.parametrize(("optimiser", "decay"), [("adamw", 0.1), ("adamw", 0.0), ("sgd", 0.1)])
def test_weights_decay_as_told(optimiser: str, decay: float) -> None:
    """One step without a gradient shrinks weights by rate times decay."""
    module = nn.Linear(3, 1, bias=False)
    before = module.weight.detach().clone()
    schedule = Schedule(1, 0.5, optimiser, decay)  # type: ignore[arg-type]
    train(module, lambda step: (0 * module.weight.sum(), torch.tensor(1)), schedule)
    steps = 1.9 if optimiser == "sgd" else 1  # nesterov momentum counts the first step almost twice
    torch.testing.assert_close(module.weight, before * (1 - 0.5 * decay * steps))
