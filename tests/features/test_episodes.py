from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.tiny import FOLD, make_source
from torch import Tensor

from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.data.episodes import Fold, Task, joint_episode, task
from gfss.features import episodes as source_module
from gfss.features.bank import Bank, cached_images
from gfss.features.episodes import EpisodeSampler, FeatureStore, HeldOutSamplers
from gfss.models.base_model import BaseCard, BaseModel, Features, PyramidHead
from gfss.models.encoders import build_encoder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSampler:
    return make_source(tmp_path_factory.mktemp("source"))


def tensors(features: Features) -> list[Tensor]:
    return [*features.levels.values(), *features.pooled, features.bottleneck, features.base]


def test_features_are_the_models_in_any_chunks(source: EpisodeSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [9, 3, 3, 30, 1]
    monkeypatch.setattr(source_module, "CHUNK", 2)
    found = source.store.features(images)
    with torch.no_grad():
        expected = source.store.model.head(source.store.bank.features(images))
    for left, right in zip(tensors(found), tensors(expected), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_kept_features_are_the_same_to_half_precision(source: EpisodeSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = FeatureStore(source.store.model, source.store.bank, cache=True)
    images = [9, 3, 3, 30, 1]
    first = kept.features(images)
    for left, right in zip(tensors(first), tensors(source.store.features(images)), strict=True):
        torch.testing.assert_close(left, right, rtol=2e-3, atol=2e-3)
    monkeypatch.setattr(type(kept.bank), "features", lambda *_: pytest.fail("read again"))
    again = kept.features(images[::-1])
    for left, right in zip(tensors(again), tensors(first), strict=True):
        assert torch.equal(left.flip(0), right)


def test_kept_features_do_not_depend_on_what_was_asked_for_with_them() -> None:
    """At the size of real heads, where products of one image and of eight round in another way."""
    torch.manual_seed(0)
    channels = {"layer3": 112, "layer4": 320}
    head = PyramidHead(channels, 16, pyramid=64, width=256, separable=True).eval()
    levels = {name: torch.rand(8, width, 27, 27) for name, width in channels.items()}

    class Given(Bank):
        def features(self, images: Sequence[int], device: torch.device = CPU) -> dict[str, Tensor]:
            return {name: level[list(images)] for name, level in levels.items()}

    model = BaseModel(build_encoder("tiny"), head, BaseCard("", 4, "", False, 33, (), (), "", None))
    stores = [FeatureStore(model, Given(Path(), 33, channels, 8), cache=True) for _ in range(2)]
    together = stores[0].features(range(8))
    for i in (5, 0):
        alone = stores[1].features([i])
        for left, right in zip(tensors(alone), tensors(together), strict=True):
            assert torch.equal(left, right[i : i + 1])


def test_a_task_keeps_all_base_classes(source: EpisodeSampler) -> None:
    drawn = task(source.dataset, FOLD, 0, 0, 2)
    episode = source.materialise(drawn, FOLD)
    support, query = episode.support, episode.query
    classifier = source.store.model.head.classifier.weight[:, :, 0, 0]
    assert torch.equal(support.base_rows, classifier)
    assert support.base_labels == tuple(range(7))
    assert support.owners == (0, 0)
    assert query.features.base.shape[1] == 7
    assert len(query.features) == len(query.labels) == len(drawn.queries)
    support.check()


@pytest.mark.parametrize("number", range(4))
def test_the_fake_novel_class_leaves_scores_and_rows(source: EpisodeSampler, number: int) -> None:
    drawn = source.draw(0, number, shots=2, queries=3)
    episode = source.episode(0, number, shots=2, queries=3, stride=4)
    position = FOLD.base.index(drawn.novel[0]) + 1
    keep = [i for i in range(7) if i != position]
    classifier = source.store.model.head.classifier.weight[:, :, 0, 0]
    assert episode.support.base_labels == tuple(keep)
    assert torch.equal(episode.support.base_rows, classifier[keep])
    all_scores = source.store.features(drawn.queries).base
    assert torch.equal(episode.query.features.base, all_scores[:, keep])
    assert episode.support.features.base.shape[1] == 6


def test_labels_of_an_episode(source: EpisodeSampler) -> None:
    """The fake class is the last label, remaining base classes move up, true novel classes are void."""
    drawn = Task((5,), ((4,),), (0, 1, 4))
    fold = source.episode_fold(drawn)
    assert fold.base == (3, 4, 6, 7, 8)
    labels = source.materialise(drawn, fold, stride=2).query.labels
    masks = source.store.bank.labels(drawn.queries)[:, ::2, ::2]
    names = {0: 0, 1: 255, 2: 255, 3: 1, 4: 2, 5: 6, 6: 3, 7: 4, 8: 5, 255: 255}
    expected = torch.tensor([[[names[int(v)] for v in row] for row in image] for image in masks])
    assert torch.equal(labels.long(), expected)


def test_an_episode_never_touches_the_base_classifier(source: EpisodeSampler) -> None:
    weight = source.store.model.head.classifier.weight
    before = weight.clone()
    support = source.episode(0, 0).support
    support.base_rows.zero_()
    support.features.base.zero_()
    assert torch.equal(weight, before)


def test_episodes_are_the_same_in_any_order(source: EpisodeSampler) -> None:
    forward = [source.episode(1, i) for i in range(3)]
    backward = [source.episode(1, i) for i in reversed(range(3))][::-1]
    for left, right in zip(forward, backward, strict=True):
        assert torch.equal(left.query.labels, right.query.labels)
        assert torch.equal(left.support.features.bottleneck, right.support.features.bottleneck)


@pytest.mark.parametrize("number", range(3))
def test_several_fake_novel_classes_leave_scores_and_rows(source: EpisodeSampler, number: int) -> None:
    drawn = source.draw_several(2, number, shots=2, ways=3, queries=5)
    assert drawn == joint_episode(source.dataset, FOLD.base, 2, number, 2, 3, 5)
    fold = source.episode_fold(drawn)
    assert fold.base == tuple(c for c in FOLD.base if c not in drawn.novel)
    episode = source.materialise(drawn, fold)
    keep = [0, *(FOLD.base.index(c) + 1 for c in fold.base)]
    assert episode.support.base_labels == tuple(keep)
    assert episode.support.owners == (0, 0, 1, 1, 2, 2)
    assert torch.equal(episode.query.features.base, source.store.features(drawn.queries).base[:, keep])
    masks, labels = source.store.bank.labels(drawn.queries), episode.query.labels
    for place, class_id in enumerate(drawn.novel):
        assert torch.equal(labels == 4 + place, masks == class_id)


def test_several_classes_keep_to_fakes_and_images_of_the_source(source: EpisodeSampler) -> None:
    avoid = range(0, len(source.dataset), 2)
    part = EpisodeSampler(source.store, source.dataset, FOLD, fakes=(3, 6, 7), avoid=avoid)
    seen: set[tuple[int, ...]] = set()
    for i in range(20):
        drawn = part.draw_several(0, i, shots=1, ways=2, queries=4)
        seen.add(tuple(sorted(drawn.novel)))
        assert not {*drawn.queries, *drawn.supports[0], *drawn.supports[1]} & set(avoid)
    assert seen == {(3, 6), (3, 7), (6, 7)}


@pytest.mark.parametrize(
    ("base", "fakes", "most"),
    [((3, 4, 5, 6, 7, 8), None, 5), ((3, 4, 5), (3, 4), 2), ((3, 4), (5, 6, 7, 8), 1), ((3, 4, 5, 6), (7,), 1)],
)
def test_an_episode_has_as_many_classes_as_the_source_says_and_no_more(
    source: EpisodeSampler, base: tuple[int, ...], fakes: tuple[int, ...] | None, most: int
) -> None:
    """Classes that play the novel ones may be base classes or not; a base class always remains."""
    part = EpisodeSampler(source.store, source.dataset, Fold(base, FOLD.novel), fakes=fakes)
    assert part.most_ways == most
    assert len(part.draw_several(0, 0, 1, most, 2).novel) == most
    with pytest.raises(GfssError, match="ask for fewer ways"):
        part.draw_several(0, 0, 1, most + 1, 2)
    assert HeldOutSamplers((source, part)).most_ways == HeldOutSamplers((part, source)).most_ways == most


def test_only_named_classes_play_the_novel_one(source: EpisodeSampler) -> None:
    held_out = EpisodeSampler(source.store, source.dataset, FOLD, fakes=(3, 7))
    assert {held_out.draw(0, i).novel[0] for i in range(20)} == {3, 7}


def test_avoided_images_are_in_no_episode_but_in_tasks(source: EpisodeSampler) -> None:
    avoid = np.arange(0, len(source.dataset), 3)
    part = EpisodeSampler(source.store, source.dataset, FOLD, avoid=avoid)
    for i in range(20):
        drawn = part.draw(0, i, shots=2, queries=2)
        assert not {*drawn.queries, *drawn.supports[0]} & set(avoid.tolist())
    drawn = Task((1,), ((0,),), (3, 4))
    assert len(part.materialise(drawn, FOLD).query.features) == 2


def test_kept_features_leave_memory_and_stay_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(tmp_path, keep=True)
    whole = source.store.features(range(10)).bottleneck
    assert len(source.store._cached) == 10
    (image,) = cached_images(source.store._head([0]))
    monkeypatch.setattr(source_module, "free_memory", lambda: 8 * image.bytes)
    few = FeatureStore(source.store.model, source.store.bank, cache=True)
    for _ in range(2):
        assert torch.equal(few.features(range(10)).bottleneck, whole)
        assert len(few._cached) == 4  # half of the free memory
