from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.errors import GfssError
from gfss.models.pspnet import BINS, Features
from gfss.training.kept_features import KeptFeatures, keep


def make_features(images: int = 4) -> Features:
    def random(channels: int, side: int = 7) -> Tensor:
        return torch.randn(images, channels, side, side).half().float()

    levels = {"layer2": random(3), "layer3": random(5), "layer4": random(6)}
    bottleneck = random(8).contiguous(memory_format=torch.channels_last)
    bottleneck[:, :, 2, 3] = 0  # a vector without length
    return Features(levels, tuple(random(2, bins) for bins in BINS), bottleneck, random(9))


def test_kept_features_are_those_of_the_batch_in_any_order() -> None:
    features = make_features()
    images = keep(features)
    order = [2, 0, 0, 3]
    found, expected = KeptFeatures([images[i] for i in order]), features[order]
    assert len(found) == 4
    assert found.size == (7, 7)
    for name in ("layer2", "layer3", "layer4", "bottleneck", "pooled"):
        assert torch.equal(found.named([name]), expected.named([name]))
    assert torch.equal(found.base, expected.base)
    assert found.levels.keys() == expected.levels.keys()
    assert torch.equal(found.levels["layer3"], expected.levels["layer3"])
    assert torch.equal(found[1:3].bottleneck, expected[1:3].bottleneck)


@pytest.mark.parametrize("names", [["layer3"], ["layer4", "bottleneck"], ["pooled"], ["layer2", "pooled", "layer3"]])
@pytest.mark.parametrize("first", [(), ("layer3", "layer4", "bottleneck"), ("bottleneck",)])
def test_vectors_of_length_one(names: list[str], first: tuple[str, ...]) -> None:
    features = make_features()
    found = KeptFeatures(keep(features))
    if first:
        found.unit(*first)
    expected = torch.cat([F.normalize(features.named([name]), dim=1) for name in names], dim=1)
    torch.testing.assert_close(found.unit(*names), expected)
    torch.testing.assert_close(features.unit(*names), expected)
    torch.testing.assert_close(found.unit(*names), expected)


def test_unknown_maps_are_refused() -> None:
    found = KeptFeatures(keep(make_features()))
    with pytest.raises(GfssError, match="unknown feature 'layer5'"):
        found.named(["layer5"])
    with pytest.raises(GfssError, match="unknown feature 'layer5'"):
        found.unit("layer5")
