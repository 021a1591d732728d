"""Base models without a part of the base classes and of the images: what they are trained on and used for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny import FOLD, LEVELS, SIZE, write_images

from gfss.common.errors import GfssError
from gfss.data.datasets.base import Dataset
from gfss.experiments import stages
from gfss.experiments.experiment import Experiment
from gfss.experiments.stages import train_base_stage, train_held_out_stage
from gfss.features.bank import Bank
from gfss.features.sampler import BLOCK, HeldOutSamplers
from gfss.training.base import BaseOptions

BASE = BaseOptions(levels=LEVELS, pyramid=4, width=8, epochs=4, batch=8, rate=5e-3, label_stride=2)
GROUPS = 2
COUNT = 41  # so that parts are of unequal size


class Watched:
    """Trains held-out models and notes which images each of them looked at."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.looked: list[set[int]] = []
        self.watching = False
        for kind, name in ((Bank, "features"), (Bank, "labels"), (Dataset, "image"), (Dataset, "mask")):
            patch.setattr(kind, name, self.spy(getattr(kind, name)))
        train = stages.train_base

        def watch(*arguments: Any, **options: Any) -> Any:
            self.looked.append(set())
            self.watching = True
            try:
                return train(*arguments, **options)
            finally:
                self.watching = False

        patch.setattr(stages, "train_base", watch)

    def spy(self, read: Any) -> Any:
        def reading(owner: object, images: int | Sequence[int], *rest: object) -> object:
            if self.watching:
                self.looked[-1].update(int(i) for i in np.atleast_1d(images))
            return read(owner, images, *rest)

        return reading


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colours")
    write_images(folder, "train", COUNT)
    write_images(folder, "val", 8, seed=1)
    return folder


@pytest.fixture(scope="module", params=["frozen", "scratch"])
def experiment(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """An experiment with its base model, on a frozen or a trained encoder."""
    opened = Experiment(str(data), encoder="tiny", size=SIZE, runs=tmp_path_factory.mktemp("runs"))
    train_base_stage(opened, options=replace(BASE, train_encoder=request.param == "scratch"))
    return opened


@pytest.fixture(scope="module")
def finished(experiment: Experiment) -> tuple[HeldOutSamplers, Watched]:
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        return train_held_out_stage(experiment, GROUPS), watched


def test_parts_of_images_are_disjoint_and_complete(data: Path) -> None:
    opened = Experiment(str(data), encoder="tiny", size=SIZE)
    for groups in (1, 2, 3, 5):
        parts = [opened.held_out_images(group, groups).tolist() for group in range(groups)]
        assert sorted(image for part in parts for image in part) == list(range(COUNT))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        for group, part in enumerate(parts):
            others = opened.held_out_images(group, groups, among=False)
            assert sorted([*part, *others]) == list(range(COUNT))


def test_a_model_never_looks_at_the_images_of_its_part(
    experiment: Experiment, finished: tuple[HeldOutSamplers, Watched]
) -> None:
    _, watched = finished
    assert len(watched.looked) == GROUPS
    for group, looked in enumerate(watched.looked):
        assert len(looked) > 8
        assert not looked & set(experiment.held_out_images(group, GROUPS).tolist())


def test_episodes_show_what_the_model_never_saw(
    experiment: Experiment, finished: tuple[HeldOutSamplers, Watched]
) -> None:
    sources, watched = finished
    assert sorted(c for source in sources.sources for c in source.fakes or ()) == sorted(FOLD.base)
    for i in range(2 * BLOCK):
        source = sources.for_episode(i)
        group = sources.sources.index(source)
        drawn = source.draw(0, i, queries=2)
        images = {*drawn.queries, *(image for supports in drawn.supports for image in supports)}
        assert images <= set(experiment.held_out_images(group, GROUPS).tolist())
        assert not images & watched.looked[group]
        assert drawn.novel[0] not in source.fold.base
        names = source.store.model.card.classes
        assert names == tuple(experiment.train_set.classes[c - 1] for c in source.fold.base)


def test_models_are_trained_like_the_base_model(
    experiment: Experiment, finished: tuple[HeldOutSamplers, Watched]
) -> None:
    """In two thirds of the epochs; a trained encoder is trained anew and read through a bank of its own."""
    own = experiment.model
    for source in finished[0].sources:
        model = source.store.model
        assert model.card.training == own.card.training | {"epochs": 2}
        assert (model.encoder.weights_hash() == own.encoder.weights_hash()) != own.card.trained_encoder
        assert (source.store.bank.folder == experiment.bank("train").folder) != own.card.trained_encoder


def test_finished_models_are_not_trained_again(
    experiment: Experiment, finished: tuple[HeldOutSamplers, Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "train_base", lambda *_, **__: pytest.fail("trained again"))
    again = train_held_out_stage(experiment, GROUPS)
    for first, second in zip(finished[0].sources, again.sources, strict=True):
        assert torch.equal(first.store.rows(), second.store.rows())
        assert (first.fold, first.fakes) == (second.fold, second.fakes)


def test_too_many_parts_are_refused(experiment: Experiment) -> None:
    with pytest.raises(GfssError, match="6 base classes cannot be held out in 4 parts; take fewer parts"):
        train_held_out_stage(experiment, 4)
