"""Figures of the base classifier against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.training.tiny import CLASSES, FOLD, LEVELS, SIZE, make_dataset, make_model

from gfss.data.catalog import VOID
from gfss.data.datasets.base import Dataset
from gfss.evaluation.base_model import base_miou
from gfss.features.bank import Bank, build_bank
from gfss.models.encoders import build_encoder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def bank(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    return build_bank(build_encoder("tiny"), dataset, SIZE, LEVELS, root=tmp_path_factory.mktemp("banks"))


def test_base_miou_counts_like_plain_loops(dataset: Dataset, bank: Bank) -> None:
    model = make_model(dataset, bank)
    found = base_miou(model, bank, dataset, FOLD)
    table = FOLD.label_table()
    with torch.no_grad():
        logits = model.head(bank.features(range(bank.count))).base
    full = torch.nn.functional.interpolate(logits, size=(SIZE, SIZE), mode="bilinear", align_corners=True)
    predicted, truth = full.argmax(dim=1).numpy(), bank.labels(range(bank.count), table).numpy()
    valid = truth != VOID
    for label, name in enumerate(("background", *CLASSES[2:])):
        both = ((predicted == label) & (truth == label)).sum()
        either = (((predicted == label) | (truth == label)) & valid).sum()
        assert found[name] == pytest.approx(100 * both / max(either, 1), abs=0.2)  # ties may fall either way
    assert found["base"] == pytest.approx(np.mean([found[name] for name in CLASSES[2:]]))
    assert next(iter(found)) == "base"


def test_a_class_that_is_neither_there_nor_predicted_has_no_figure(
    dataset: Dataset, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(dataset, bank)

    def counted(predicted: torch.Tensor, truth: torch.Tensor, classes: int) -> torch.Tensor:
        counts = torch.ones(len(truth), classes, 3, dtype=torch.int64)
        counts[:, 2] = 0
        return counts

    monkeypatch.setattr("gfss.evaluation.base_model.image_counts", counted)
    found = base_miou(model, bank, dataset, FOLD)
    assert found.pop(model.card.classes[1]) is None
    assert set(found.values()) == {100.0}
