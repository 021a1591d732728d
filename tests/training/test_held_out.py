"""Episodes whose fake novel classes and images the base model never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.tiny import FOLD, LEVELS, SIZE, make_calibrated, make_dataset, make_model

from gfss.data.episodes import Fold
from gfss.features import episodes as source_module
from gfss.features.bank import Bank, build_bank
from gfss.features.episodes import BLOCK, EpisodeSampler, FeatureStore, HeldOutSamplers
from gfss.methods.losses import calibration_loss
from gfss.models.base_model import BaseModel
from gfss.training import episode_cache as cache_module
from gfss.training.episode_cache import CachedEpisodes
from gfss.training.episodic import train_calibrator
from gfss.training.episodic_options import EpisodicOptions


def make_sources(folder: Path) -> HeldOutSamplers:
    """Two groups of base classes and of images (even and odd ones), each held out once."""
    dataset = make_dataset(folder)
    model = make_model(dataset)
    bank = build_bank(model.encoder, dataset, SIZE, LEVELS, folder / "banks")
    groups = (FOLD.base[:3], FOLD.base[3:])
    folds = [Fold(tuple(c for c in FOLD.base if c not in group), group) for group in groups]
    others = (range(1, len(dataset), 2), range(0, len(dataset), 2))
    return HeldOutSamplers(
        tuple(
            EpisodeSampler(FeatureStore(model, bank), dataset, fold, fakes=fold.novel, avoid=avoid)
            for fold, avoid in zip(folds, others, strict=True)
        )
    )


def test_blocks_of_episodes_take_turns(tmp_path: Path) -> None:
    held_out = make_sources(tmp_path)
    turns = [held_out.for_episode(i) for i in range(3 * BLOCK)]
    first, second = held_out.sources
    assert turns == [first] * BLOCK + [second] * BLOCK + [first] * BLOCK


def test_fake_novel_classes_are_those_left_out(tmp_path: Path) -> None:
    held_out = make_sources(tmp_path)
    for i in range(0, 4 * BLOCK, 7):
        source = held_out.for_episode(i)
        drawn = source.draw(0, i)
        assert drawn.novel[0] in source.fold.novel
        fold = source.episode_fold(drawn)
        assert fold.base == source.fold.base
        table = fold.label_table(drawn.novel)
        assert table[drawn.novel[0]] == len(fold.base) + 1
        others = [c for c in (*FOLD.novel, *source.fold.novel) if c != drawn.novel[0]]
        assert (table[others] == 255).all()


def test_episodes_use_images_of_their_part_alone(tmp_path: Path) -> None:
    held_out = make_sources(tmp_path)
    used: dict[int, set[int]] = {0: set(), 1: set()}
    for i in range(4 * BLOCK):
        source = held_out.for_episode(i)
        part = held_out.sources.index(source)
        drawn = source.draw(0, i, queries=2)
        used[part] |= {*drawn.queries, *(image for group in drawn.supports for image in group)}
    assert {image % 2 for image in used[0]} == {0}
    assert {image % 2 for image in used[1]} == {1}
    assert min(len(images) for images in used.values()) > 8


def test_training_looks_at_images_of_the_part_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Played episodes and the loss on them: supports, queries and labels."""
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source_module, "BLOCK", 2)
    held_out = make_sources(tmp_path)
    looked: set[int] = set()
    for name in ("features", "labels"):
        read = getattr(Bank, name)

        def spy(bank: Bank, images: Sequence[int], *rest: object, read: Any = read) -> object:
            looked.update(int(i) for i in images)
            return read(bank, images, *rest)

        monkeypatch.setattr(Bank, name, spy)
    method = make_calibrated(held_out.sources[0], "pcn-support-attention")
    options = EpisodicOptions(iterations=3, batch=2, episodes=2, pairs=2, several=2)  # all of the first part
    train_calibrator(method, held_out, options, key="key")
    assert looked
    assert {image % 2 for image in looked} == {0}


def test_kept_episodes_and_their_loss_are_those_of_their_own_base_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An episode of the second part: its model's scores, its fold's labels."""
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source_module, "BLOCK", 2)
    first, second = make_sources(tmp_path).sources
    other = make_model(second.dataset, seed=1)
    other = replace_head(first.store.model, other)
    second = replace(second, store=FeatureStore(other, first.store.bank))
    held_out = HeldOutSamplers((first, second))
    method = make_calibrated(first)
    options = EpisodicOptions(episodes=4, pairs=2, several=0, label_stride=4)
    episodes = CachedEpisodes(method, held_out, options, "key")
    episodes.fill()
    assert not torch.equal(first.store.rows(), second.store.rows())
    drawn = replace(second.draw(options.seed, 3, 1, 1, 2), queries=second.draw(options.seed, 3, 1, 1, 2).queries[2:])
    fresh = second.materialise(drawn, second.episode_fold(drawn), stride=4)
    method.learn(fresh.support)
    fused = method.fused(fresh.query.features)
    scores, _ = episodes.maps(3, 1)
    torch.testing.assert_close(scores, fused, rtol=1e-3, atol=1e-3)
    calibrated = method.calibrator(fused, None, 1, method.similarity(fresh.query.features, fused))
    expected, pixels = calibration_loss(calibrated, fresh.query.labels, 1, options.novel_weight, options.overlap)
    found, counted = cache_module._group_loss(method.calibrator, episodes, [(3, 1)])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    assert int(counted) == int(pixels)


def replace_head(model: BaseModel, other: BaseModel) -> BaseModel:
    """A base model with the encoder of one and the head of another."""
    return BaseModel(model.encoder, other.head, model.card).eval()
