"""Training only the encoder's last stages, from an inner level in the bank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training.tiny import FOLD, make_dataset

from gfss.common.errors import GfssError
from gfss.features.bank import build_bank
from gfss.models.encoders import build_encoder
from gfss.training.base import BaseData, BaseOptions, train_base
from gfss.training.base_checkpoints import load_base
from gfss.training.loop import TrainingRun

OPTIONS = BaseOptions(pyramid=4, width=8, epochs=1, batch=8, frozen_until="layer3")


def test_later_levels_follow_from_an_inner_one() -> None:
    encoder = build_encoder("lite0", pretrained=False)
    levels = encoder(torch.rand(1, 3, 65, 65, generator=torch.Generator().manual_seed(0)))
    again = encoder.levels_from("layer3", levels["layer3"])
    assert list(again) == ["layer3", "layer4"]
    torch.testing.assert_close(again["layer4"], levels["layer4"])


def test_only_the_stages_after_the_level_change(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, count=16)
    encoder = build_encoder("lite0", pretrained=False)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    bank = build_bank(encoder, dataset, 65, ("layer3", "layer4"), tmp_path / "banks")
    folder = tmp_path / "base"
    model = train_base(
        BaseData(dataset, FOLD, bank=bank), encoder, "lite0", OPTIONS, size=65, run=TrainingRun(folder=folder)
    )
    changed = {name for name, value in model.encoder.state_dict().items() if not torch.equal(value, before[name])}
    blocks = {int(name.split(".")[1]) for name in changed}
    assert blocks == {11, 12, 13, 14, 15}  # stages 6 and 7
    assert model.card.trained_encoder
    loaded = load_base(folder)
    image = torch.rand(1, 3, 65, 65, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loaded(image).base, model(image).base)


def test_an_encoder_that_cannot_be_entered_says_so(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, count=16)
    encoder = build_encoder("tiny")
    bank = build_bank(encoder, dataset, 33, ("layer3", "layer4"), tmp_path / "banks")
    with pytest.raises(GfssError, match="cannot be entered at an inner level"):
        train_base(BaseData(dataset, FOLD, bank=bank), encoder, "tiny", OPTIONS, size=33)
