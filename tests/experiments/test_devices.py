"""Training and evaluation on another device than the CPU put every tensor where it belongs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experiments.second_device import second_device
from tests.training.tiny import SIZE, write_data

from gfss.common.devices import CPU, find_device
from gfss.common.errors import GfssError
from gfss.data import open_dataset
from gfss.evaluation.records import Record, same_result
from gfss.experiments import runner
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import make_recipe
from gfss.experiments.runner import run_plan
from gfss.experiments.spec import Recipe
from gfss.experiments.steps import Plan
from gfss.features import bank as bank_module
from gfss.features.bank import build_bank
from gfss.features.episodes import EpisodeSampler, FeatureStore
from gfss.models.calibrators.calibrator import PRESETS
from gfss.models.encoders import build_encoder
from gfss.training.base import BaseOptions

FROZEN = BaseOptions(
    levels=("layer3", "layer4"), pyramid=4, width=16, separable=False, epochs=4, batch=8, rate=5e-3, label_stride=2
)  # fmt: skip
WHOLE = replace(FROZEN, epochs=2, train_encoder=True, shuffle_colours=True, optimiser="sgd")
TRAINING: dict[str, Any] = {"iterations": 3, "batch": 2, "episodes": 6, "pairs": 2, "several": 2, "held_out": 2}
TRAINED = ("acastle", "capl", "denet", "pfenet")
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
    monkeypatch.setattr(
        bank_module, "fast_form", lambda encoder, size, fine: encoder.eval().fine_levels if fine else encoder.eval()
    )
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The second device is known to the thread that opened it only."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recipe(data: Path, **changes: Any) -> Recipe:
    content: dict[str, Any] = {"data": str(data), "encoder": "tiny", "size": SIZE, "novel": {"hidden": 8, "steps": 10}}
    options = {"base": asdict(FROZEN), "training": TRAINING, "protocols": {"paired": 2}}
    return make_recipe(content | options | changes)


def run_all(data: Path, folder: Path, device: torch.device) -> list[Record]:
    """Every step and method."""
    names = ["pcn-support", *TRAINED, *UNTRAINED, *VARIANTS]
    records = run_plan(Plan(recipe(data, methods=names), folder / "runs", folder / "results", device))
    joint = recipe(data, methods=["pcn-support", "nsf", "bcm"], protocols={"joint": 1})
    return records + run_plan(Plan(joint, folder / "runs", folder / "results", device))


@pytest.fixture
def _nothing_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are not cached in half precision, which is done on the CPU only."""

    def source(experiment: Experiment) -> EpisodeSampler:
        store = FeatureStore(experiment.model, experiment.bank("val"))
        return EpisodeSampler(store, experiment.val_set, experiment.classes)

    monkeypatch.setattr(Experiment, "val_source", property(source))


@pytest.mark.usefixtures("one_form", "_nothing_is_rounded")
@pytest.mark.filterwarnings("ignore:.*which is a no-op")  # torch cannot know that our meta tensors have values
def test_every_method_gives_on_another_device_what_it_gives_on_the_cpu(data: Path, tmp_path: Path) -> None:
    here = run_all(data, tmp_path / "here", CPU)
    with second_device() as device:
        there = run_all(data, tmp_path / "there", device)
    assert len(here) > 20
    for first, second in zip(here, there, strict=True):
        assert second.run.versions["device"] == device.type
        assert same_result(first, second), first.method


def losses(plan: Plan) -> list[float]:
    """All losses of the trainings of a plan."""
    found: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("train_calibrator", "train_method"):
            train = getattr(runner, name)
            patch.setattr(runner, name, lambda *a, train=train, **o: found.extend(train(*a, **o)))
        run_plan(plan)
    return found


@pytest.mark.usefixtures("one_form")
@pytest.mark.parametrize(
    ("base", "training", "names"),
    [
        (WHOLE, {"iterations": 1, "episodes": None, "several": 0, "held_out": 0}, [*PRESETS, "score+T", "npf+T"]),
        (replace(WHOLE, epochs=1), {"iterations": 2, "episodes": 2, "several": 0}, ["pcn-support"]),
    ],
    ids=["an encoder and every calibrator", "held-out models with encoders of their own"],
)
def test_training_on_another_device(
    data: Path, tmp_path: Path, base: BaseOptions, training: dict[str, Any], names: list[str]
) -> None:
    chosen = recipe(data, base=asdict(base), training=TRAINING | training, methods=names)
    with second_device() as device:
        here, there = (
            losses(Plan(chosen, tmp_path / place.type, tmp_path / "unused", place, "methods"))
            for place in (CPU, device)
        )
    assert len(here) >= len(names)
    assert here == there


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
    with pytest.raises(GfssError, match="names a single one"):
        find_device("cuda:1")
