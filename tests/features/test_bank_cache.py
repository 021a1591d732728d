"""Kept features against the batches they come from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.features.bank import CachedFeatures, cached_images
from gfss.features.episodes import Support
from gfss.methods.pcn import NovelFitter
from gfss.models.base_model import BINS, Features
from gfss.models.novel.classifier import NovelOptions


def make_features(images: int = 4) -> Features:
    def random(channels: int, side: int = 7) -> Tensor:
        return torch.randn(images, channels, side, side).half().float()

    levels = {"layer2": random(3), "layer3": random(5), "layer4": random(6)}
    bottleneck = random(8).contiguous(memory_format=torch.channels_last)
    bottleneck[:, :, 2, 3] = 0  # a vector without length
    return Features(levels, tuple(random(2, bins) for bins in BINS), bottleneck, random(9))


def test_kept_features_are_those_of_the_batch_in_any_order() -> None:
    features = make_features()
    images = cached_images(features)
    order = [2, 0, 0, 3]
    found, expected = CachedFeatures([images[i] for i in order]), features[order]
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
    found = CachedFeatures(cached_images(features))
    if first:
        found.unit(*first)
    expected = torch.cat([F.normalize(features.named([name]), dim=1) for name in names], dim=1)
    torch.testing.assert_close(found.unit(*names), expected)
    torch.testing.assert_close(features.unit(*names), expected)
    torch.testing.assert_close(found.unit(*names), expected)


def test_unknown_maps_are_refused() -> None:
    found = CachedFeatures(cached_images(make_features()))
    with pytest.raises(GfssError, match="unknown feature 'layer5'"):
        found.named(["layer5"])
    with pytest.raises(GfssError, match="unknown feature 'layer5'"):
        found.unit("layer5")


def test_what_methods_make_of_an_image_is_made_once() -> None:
    features, made = make_features(), []

    def compute(image: Features) -> Tensor:
        made.append(image)
        return image.base.mean(dim=1, keepdim=True)

    assert features.cached("mean", compute) is None
    images = cached_images(features)
    whole = CachedFeatures(images).cached("mean", compute)
    torch.testing.assert_close(whole, features.base.mean(dim=1, keepdim=True), rtol=1e-3, atol=1e-3)
    again = CachedFeatures([images[2], images[0]]).cached("mean", compute)
    assert torch.equal(again, whole[[2, 0]])
    assert len(made) == 4
    assert torch.equal(CachedFeatures(images).cached("another", lambda image: image.base), features.base)


def test_novel_scores_of_kept_features_are_those_of_plain_ones() -> None:
    features = make_features(6)
    labels = torch.zeros(2, 25, 25, dtype=torch.uint8)
    labels[:, 5:15, 5:18] = 9
    support = Support(features[:2], labels, 1, torch.zeros(9, 8), (0, 0), tuple(range(9)))
    fitter = NovelFitter(NovelOptions(hidden=16, steps=20))
    fitter.fit(support)
    plain = fitter.logits(features[2:])
    kept = fitter.logits(CachedFeatures(cached_images(features[2:])))
    assert plain.std() > 0.2
    torch.testing.assert_close(kept, plain, rtol=0, atol=1e-3)  # half precision
