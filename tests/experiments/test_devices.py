"""Training and evaluation on another device than the CPU put every tensor where it belongs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.experiments.second_device import second_device
from tests.training.tiny import SIZE, write_data

from gfss.common.devices import CPU, find_device
from gfss.common.errors import GfssError
from gfss.data import open_dataset
from gfss.evaluation.records import Record, same_result
from gfss.experiments.evaluator import evaluate_stage
from gfss.experiments.experiment import Experiment
from gfss.experiments.stages import train_base_stage, train_method_stage
from gfss.features import bank as bank_module
from gfss.features.bank import build_bank
from gfss.features.sampler import FeatureStore
from gfss.models.calibrators.options import PRESETS
from gfss.models.encoders import build_encoder
from gfss.models.novel.classifier import NovelOptions
from gfss.training.base import BaseOptions
from gfss.training.episodic_options import EpisodicOptions

FROZEN = BaseOptions(
    levels=("layer3", "layer4"), pyramid=4, width=16, separable=False, epochs=4, batch=8, rate=5e-3, label_stride=2
)  # fmt: skip
WHOLE = replace(FROZEN, epochs=2, train_encoder=True, shuffle_colours=True, optimiser="sgd")
EPISODIC = EpisodicOptions(iterations=3, batch=2, episodes=6, pairs=2, several=2, held_out=2)
TRAINED = ("acastle", "capl", "denet", "pfenet", "pfenet-per-class")
UNTRAINED = ("score", "npf", "nsf", "log-odds", "background-share", "gated", "imprint", "bcm", "linear-probe", "diam")
VARIANTS = ("npf-fitted", "imprint-centred", "bcm-top3")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("colours"))


@pytest.fixture
def one_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Frozen encoders in the same form on both devices; that of the CPU rounds in another way.

    Banks that are made so stay apart from those of other tests.
    """
    monkeypatch.setattr(bank_module, "fast_form", lambda encoder, size: encoder.eval())
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The second device is known to the thread that opened it only."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def opened(data: Path, runs: Path, device: torch.device) -> Experiment:
    novel = NovelOptions(hidden=8, steps=10)
    return Experiment(str(data), encoder="tiny", size=SIZE, novel_options=novel, runs=runs, device=device)


def run_all(data: Path, runs: Path, device: torch.device) -> list[Record]:
    """Every stage and method, each opened anew as separate commands would."""
    train_base_stage(opened(data, runs, device), options=FROZEN)
    train_method_stage(opened(data, runs, device), "pcn-support", 1, options=EPISODIC)
    for name in TRAINED:
        train_method_stage(opened(data, runs, device), name, 1, options=EPISODIC)
    last = opened(data, runs, device)
    last.val_source = replace(last.val_source, store=FeatureStore(last.model, last.bank("val")))  # nothing is rounded
    records = evaluate_stage(last, ("pcn-support", *TRAINED, *UNTRAINED, *VARIANTS), 1, "paired", tasks=2)
    return records + evaluate_stage(last, ("pcn-support", "nsf", "bcm"), 1, "joint", tasks=1)


@pytest.mark.usefixtures("one_form")
@pytest.mark.filterwarnings("ignore:.*which is a no-op")  # torch cannot know that our meta tensors have values
def test_every_method_gives_on_another_device_what_it_gives_on_the_cpu(data: Path, tmp_path: Path) -> None:
    here = run_all(data, tmp_path / "here", CPU)
    with second_device() as device:
        there = run_all(data, tmp_path / "there", device)
    for first, second in zip(here, there, strict=True):
        assert second.run.versions["device"] == device.type
        assert same_result(first, second), first.method


@pytest.mark.usefixtures("one_form")
def test_an_encoder_and_every_calibrator_are_trained_on_another_device(data: Path, tmp_path: Path) -> None:
    fresh = replace(EPISODIC, iterations=1, episodes=None, several=0, held_out=0)
    figures = []
    with second_device() as device:
        for place in (CPU, device):
            experiment = opened(data, tmp_path / place.type, place)
            iou = train_base_stage(experiment, options=WHOLE)
            names = [*PRESETS, "score+T", "npf+T"]
            figures.append((iou, {name: train_method_stage(experiment, name, 1, options=fresh) for name in names}))
    assert figures[0] == figures[1]


@pytest.mark.usefixtures("one_form")
def test_held_out_models_with_an_encoder_of_their_own_are_on_the_device_too(data: Path, tmp_path: Path) -> None:
    options = replace(EPISODIC, iterations=2, episodes=2, several=0)
    with second_device() as device:
        losses = []
        for place in (CPU, device):
            experiment = opened(data, tmp_path / place.type, place)
            train_base_stage(experiment, options=replace(WHOLE, epochs=1))
            losses.append(train_method_stage(experiment, "pcn-support", 1, options=options))
    assert losses[0] == losses[1]


def test_a_bank_is_built_on_another_device(data: Path, tmp_path: Path) -> None:
    images = open_dataset(str(data), None, "val")
    with second_device() as device:
        banks = [
            build_bank(build_encoder("tiny").to(place), images, SIZE, root=tmp_path / place.type)
            for place in (CPU, device)
        ]
        here, there = (bank.features(range(bank.count), device=device) for bank in banks)
        assert list(here) == list(there)
        for name in here:
            assert torch.allclose(here[name], there[name], rtol=2e-3, atol=1e-4)  # rounded to half precision


def test_the_second_device_refuses_tensors_of_the_first() -> None:
    with second_device() as device:
        there = torch.ones(2, device=device)
        assert (there + torch.tensor(1.0)).cpu().tolist() == [2, 2]
        with pytest.raises(RuntimeError, match="two devices meet"):
            _ = there + torch.ones(2)
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cuda:x", ""])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(GfssError, match="device"):
        find_device(name)


def test_a_card_of_its_own_for_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert find_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(GfssError, match="sees 2 CUDA"):
        find_device("cuda")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(GfssError, match="one card"):
        find_device("cuda:1")
