"""Which images a base model is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.training.tiny import FOLD, LEVELS, SIZE, make_dataset

from gfss.common.errors import GfssError
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold
from gfss.features.bank import Bank, build_bank
from gfss.models.encoders import build_encoder
from gfss.training.base import BaseData, BaseOptions, train_base
from gfss.training.batches import training_images

FROZEN = BaseOptions(levels=LEVELS, pyramid=4, width=12, epochs=1, batch=8, rate=1e-2)
SCRATCH = replace(FROZEN, levels=("layer4",), separable=False, train_encoder=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def bank(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    return build_bank(build_encoder("tiny"), dataset, SIZE, LEVELS, root=tmp_path_factory.mktemp("banks"))


def test_images_with_novel_objects_are_kept(dataset: Dataset) -> None:
    kept = training_images(dataset, FOLD)
    shown = [set(np.unique(dataset.mask(i))) for i in range(len(dataset))]
    assert kept.tolist() == [i for i, classes in enumerate(shown) if classes & set(FOLD.base)]
    assert any(shown[i] & set(FOLD.novel) for i in kept)
    assert len(kept) < len(dataset)


def test_avoided_images_are_left_out(dataset: Dataset) -> None:
    everything, avoid = training_images(dataset, FOLD), np.arange(0, len(dataset), 3)
    kept = training_images(dataset, FOLD, avoid)
    assert kept.tolist() == [i for i in everything if i % 3]
    assert training_images(dataset, FOLD, avoid.tolist()).tolist() == kept.tolist()
    with pytest.raises(GfssError, match="tiny train has no image of a base class"):
        training_images(dataset, FOLD, everything)


@pytest.mark.parametrize("options", [FROZEN, SCRATCH], ids=["frozen", "scratch"])
def test_training_never_looks_at_avoided_images(
    dataset: Dataset, bank: Bank, options: BaseOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: set[int] = set()
    for kind, names in ((Bank, ("features", "labels")), (Dataset, ("image", "mask"))):
        for name in names:
            read = getattr(kind, name)

            def spy(owner: object, images: int | Sequence[int], *rest: object, read: Any = read) -> object:
                looked.update(int(i) for i in np.atleast_1d(images))
                return read(owner, images, *rest)

            monkeypatch.setattr(kind, name, spy)
    own = None if options.train_encoder else bank
    avoid = range(0, len(dataset), 2)
    train_base(BaseData(dataset, FOLD, bank=own, avoid=avoid), build_encoder("tiny"), "tiny", options, size=SIZE)
    assert len(looked) >= options.batch
    assert looked <= {int(i) for i in training_images(dataset, FOLD) if i % 2}


def test_no_image_to_train_on_is_said(dataset: Dataset) -> None:
    with pytest.raises(GfssError, match="tiny train has no image of a base class"):
        training_images(replace(dataset, ids=dataset.ids[:1], images=dataset.images[:1], masks=dataset.masks[:1]), FOLD)


def test_folds_without_novel_classes_train_on_everything(dataset: Dataset) -> None:
    assert len(training_images(dataset, Fold(tuple(range(1, 9)), ()))) == len(dataset)
