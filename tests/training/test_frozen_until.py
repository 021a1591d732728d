"""Training only the encoder's last stages, from an inner level in the bank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.tiny import FOLD, make_dataset
from torch import nn

from gfss.common.errors import GfssError
from gfss.data.datasets.base import Dataset
from gfss.data.images import square_image, to_tensor
from gfss.features.bank import Bank, build_bank
from gfss.models.base_model import BaseModel
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder
from gfss.training.base import BankBatches, BaseData, BaseOptions, train_base, untrained_base
from gfss.training.checkpoints import load_base
from gfss.training.loop import TrainingRun

LEVELS = ("layer2", "layer3", "layer4")
OPTIONS = BaseOptions(pyramid=4, width=8, epochs=1, batch=8, frozen_until="layer3")
SIZE = 65


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path, count=16)


@pytest.fixture
def encoder() -> Encoder:
    """Random weights, and batch norms that suit them, so that no level vanishes in half precision."""
    encoder = build_encoder("lite0", pretrained=False).train()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    encoder(torch.rand(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)))
    return encoder.eval()


@pytest.fixture
def bank(dataset: Dataset, encoder: Encoder, tmp_path: Path) -> Bank:
    return build_bank(encoder, dataset, SIZE, LEVELS, tmp_path / "banks", own_sizes=True)


def test_later_levels_follow_from_an_inner_one(encoder: Encoder) -> None:
    levels = encoder.fine_levels(torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)))
    for entry in ("layer2", "layer3"):
        again = encoder.levels_from(entry, levels[entry])
        assert list(again) == list(LEVELS[LEVELS.index(entry) :])
        torch.testing.assert_close(again["layer4"], levels["layer4"])


def test_a_bank_keeps_levels_at_their_own_sizes(dataset: Dataset, encoder: Encoder, bank: Bank, tmp_path: Path) -> None:
    chosen = [3, 0, 15]
    images = to_tensor(np.stack([square_image(dataset.image(i), SIZE) for i in chosen]))
    with torch.inference_mode():
        expected = encoder.fine_levels(images)
    read = bank.features(chosen)
    assert {name: level.shape[-1] for name, level in read.items()} == {"layer2": 9, "layer3": 5, "layer4": 5}
    for name in LEVELS:
        scale = expected[name].abs().max()
        torch.testing.assert_close(read[name] / scale, expected[name] / scale, rtol=2e-3, atol=2e-3)  # fp16
    assert bank.map_size == 5
    again = build_bank(encoder, dataset, SIZE, LEVELS, tmp_path / "banks", own_sizes=True)
    assert again.folder == bank.folder
    assert build_bank(encoder, dataset, SIZE, LEVELS, tmp_path / "banks").folder != bank.folder


@pytest.mark.parametrize("options", [replace(OPTIONS, frozen_until="layer2"), replace(OPTIONS, decoder=6)])
@torch.no_grad()
def test_training_sees_the_maps_of_the_whole_network(
    dataset: Dataset, encoder: Encoder, bank: Bank, options: BaseOptions
) -> None:
    data = BaseData(dataset, FOLD, bank=bank)
    model: BaseModel = untrained_base(data, encoder, "lite0", options, SIZE, seed=0).eval()
    images = to_tensor(np.stack([square_image(dataset.image(i), SIZE) for i in (2, 5)]))
    logits, _ = BankBatches(model, data, options)([2, 5], np.zeros((2, 5), dtype=int))
    expected = model(images).base
    assert logits.shape == expected.shape
    assert expected.shape[-2:] == model.map_size
    torch.testing.assert_close(logits / expected.std(), expected / expected.std(), rtol=0.02, atol=0.02)  # fp16 bank


def test_only_the_stages_after_the_level_change(dataset: Dataset, encoder: Encoder, bank: Bank, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    folder = tmp_path / "base"
    options = replace(OPTIONS, encoder_rate=1e-4, decoder=6)
    model = train_base(
        BaseData(dataset, FOLD, bank=bank), encoder, "lite0", options, size=SIZE, run=TrainingRun(folder=folder)
    )
    after = model.encoder.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    blocks = {int(name.split(".")[1]) for name in changed}
    assert blocks == {11, 12, 13, 14, 15}  # stages 6 and 7
    assert not any("running" in name for name in changed), "statistics of batch norms must stay"
    assert model.card.trained_encoder
    loaded = load_base(folder)
    image = torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loaded(image).base, model(image).base)


def test_the_encoder_moves_at_its_own_rate(dataset: Dataset, encoder: Encoder, bank: Bank) -> None:
    before = {name: value.clone() for name, value in encoder.named_parameters()}
    options = replace(OPTIONS, encoder_rate=1e-6, weight_decay=0)
    train_base(BaseData(dataset, FOLD, bank=bank), encoder, "lite0", options, size=SIZE)
    steps = 2  # 16 images in batches of 8; a step of AdamW is never longer than the rate
    moved = max(float((value - before[name]).detach().abs().max()) for name, value in encoder.named_parameters())
    assert 0 < moved < 1.5 * steps * 1e-6


def test_a_bank_of_one_size_is_refused(dataset: Dataset, encoder: Encoder, tmp_path: Path) -> None:
    bank = build_bank(encoder, dataset, SIZE, LEVELS, tmp_path / "banks")
    with pytest.raises(GfssError, match="own sizes"):
        train_base(BaseData(dataset, FOLD, bank=bank), encoder, "lite0", OPTIONS, size=SIZE)


def test_an_encoder_that_cannot_be_entered_says_so(dataset: Dataset, tmp_path: Path) -> None:
    tiny = build_encoder("tiny")
    bank = build_bank(tiny, dataset, 33, ("layer3", "layer4"), tmp_path / "banks", own_sizes=True)
    with pytest.raises(GfssError, match="cannot be entered at an inner level"):
        train_base(BaseData(dataset, FOLD, bank=bank), tiny, "tiny", OPTIONS, size=33)
