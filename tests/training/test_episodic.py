"""Training on episodes: what changes, what repeats, where it starts."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny import make_calibrated, make_context, make_source
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.features.episodes import Episode, EpisodeSampler
from gfss.methods import build_method
from gfss.methods.pcn import Calibrated
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.pcn_support import log_odds_scores
from gfss.training import episode_cache as cache_module
from gfss.training import episodic, loop
from gfss.training.episode_cache import CachedEpisodes, drawn_pairs
from gfss.training.episodic import train_calibrator, train_method
from gfss.training.episodic_options import EpisodicOptions

OPTIONS = EpisodicOptions(iterations=4, batch=3, episodes=5, pairs=2, rate=1e-2, several=0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSampler:
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "CHUNK", 2)  # episodes per file


def weights(trained: Calibrated) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trained.calibrator.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("name", ["pcn-support", "pcn-support-attention"])
@pytest.mark.parametrize("episodes", [5, None], ids=["cached", "fresh"])
def test_training_changes_the_calibrator_alone(source: EpisodeSampler, episodes: int | None, name: str) -> None:
    calibrated = make_calibrated(source, name)
    before = {name: value.clone() for name, value in source.store.model.state_dict().items()}
    start = weights(calibrated)
    options = replace(OPTIONS, episodes=episodes, batch=2, iterations=3)
    losses = train_calibrator(calibrated, source, options, key="key")
    assert len(losses) == 3
    assert calibrated.trained
    assert not same(start, weights(calibrated))
    assert all(torch.equal(value, before[name]) for name, value in source.store.model.state_dict().items())


def test_the_loss_goes_down(source: EpisodeSampler) -> None:
    losses = train_calibrator(make_calibrated(source), source, replace(OPTIONS, iterations=30, batch=5), key="key")
    assert np.mean(losses[-5:]) < 0.8 * losses[0]


def test_pixels_of_the_fake_novel_class_count_more(source: EpisodeSampler) -> None:
    """Before the first step: all else, and so many times the loss of the novel ones."""
    losses = []
    for weight in (0.0, 1.0, 3.0):
        options = replace(OPTIONS, iterations=1, novel_weight=weight)
        losses += train_calibrator(make_calibrated(source), source, options, key="key")
    assert losses[0] < losses[1]
    assert losses[2] - losses[0] == pytest.approx(3 * (losses[1] - losses[0]), rel=1e-4)


def test_the_missed_overlap_counts_as_much_as_it_is_told_to(source: EpisodeSampler) -> None:
    """Before the first step: the cross entropy, and so many times a part between 0 and 1."""
    losses = []
    for overlap in (0.0, 1.0, 3.0):
        options = replace(OPTIONS, iterations=1, overlap=overlap)
        losses += train_calibrator(make_calibrated(source), source, options, key="key")
    assert 0 < losses[1] - losses[0] < 1
    assert losses[2] - losses[0] == pytest.approx(3 * (losses[1] - losses[0]), rel=1e-4)


@pytest.mark.parametrize(("name", "rule"), [("pcn-support", True), ("pcn-support-attention", True), ("pixel", False)])
def test_training_starts_at_nsf_or_with_log_odds_added(source: EpisodeSampler, name: str, rule: bool) -> None:
    calibrated = make_calibrated(source, name)
    train_calibrator(calibrated, source, replace(OPTIONS, iterations=0), key="key")
    episode = source.episode(9, 0, queries=2)
    calibrated.learn(episode.support)
    with torch.no_grad():
        scores = calibrated.scores(episode.query.features)
    nsf = calibrated.fused(episode.query.features)
    shared = calibrated.similarity(episode.query.features, nsf).score_fusion
    expected = nsf + log_odds_scores(shared, 1) if rule else nsf
    assert torch.equal(scores.argmax(dim=1), expected.argmax(dim=1))


@pytest.mark.parametrize("name", ["pcn-support", "pcn-support-attention"])
def test_two_runs_are_equal_whatever_came_before(source: EpisodeSampler, name: str) -> None:
    first, second = make_calibrated(source, name), make_calibrated(source, name)
    losses = train_calibrator(first, source, OPTIONS, key="key")
    second.learn(source.episode(3, 3).support)
    torch.manual_seed(5)
    assert train_calibrator(second, source, OPTIONS, key="key") == losses
    assert same(weights(first), weights(second))


@pytest.mark.parametrize("name", ["pcn-support", "pcn-support-attention"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    source: EpisodeSampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 2)
    whole, stopped, resumed = (make_calibrated(source, name) for _ in range(3))
    train_calibrator(whole, source, OPTIONS, key="key")
    cached_loss = episodic.cached_loss

    def stopping(*arguments):
        if arguments[-1].number == 3:
            raise KeyboardInterrupt
        return cached_loss(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(episodic, "cached_loss", stopping)
        with pytest.raises(KeyboardInterrupt):
            train_calibrator(stopped, source, OPTIONS, key="key", folder=tmp_path)
    assert len(train_calibrator(resumed, source, OPTIONS, key="key", folder=tmp_path, resume=True)) == 2
    assert same(weights(whole), weights(resumed))


def test_methods_without_parameters_have_nothing_to_train(source: EpisodeSampler) -> None:
    nsf = build_method("nsf", make_context(source))
    with pytest.raises(GfssError, match="method 'nsf' has nothing to train"):
        train_method(nsf, source, OPTIONS)


def test_an_untrained_calibrator_is_refused(source: EpisodeSampler) -> None:
    calibrated = make_calibrated(source)
    episode = source.episode(0, 0)
    calibrated.learn(episode.support)
    with pytest.raises(GfssError, match="method 'pcn-support' is not trained yet"):
        calibrated.scores(episode.query.features)


def test_several_shots_are_mixed_with_the_kept_episodes_of_one(source: EpisodeSampler, tmp_path: Path) -> None:
    train_calibrator(make_calibrated(source), source, OPTIONS, key="key")
    (one,) = (tmp_path / "cache" / "episodes").iterdir()
    written = {path: path.stat().st_mtime_ns for path in one.iterdir()}
    mixed = make_calibrated(source)
    train_calibrator(mixed, source, replace(OPTIONS, shots=2), key="key")
    (two,) = set((tmp_path / "cache" / "episodes").iterdir()) - {one}
    assert {path: path.stat().st_mtime_ns for path in one.iterdir()} == written
    assert len(list(two.iterdir())) == 1  # a third of five episodes, two per file
    alone = make_calibrated(source)
    train_calibrator(alone, source, replace(OPTIONS, shots=2, mixed=False), key="key")
    assert not same(weights(mixed), weights(alone))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(1, 1, 30)]),
        ({"shots": 5}, [(5, 1, 10), (1, 1, 30)]),
        ({"shots": 5, "mixed": False}, [(5, 1, 30)]),
        ({"several": 7}, [(1, 1, 30), (1, 1, 30), (1, 5, 7)]),
        ({"several": 7, "shots": 5}, [(5, 1, 10), (1, 1, 30), (1, 5, 7)]),
        ({"several": 7, "shots": 5, "mixed": False}, [(5, 1, 30), (5, 1, 30), (1, 5, 7)]),
    ],
)
def test_kinds_of_kept_episodes_take_turns(changes: dict[str, Any], expected: list[tuple[int, int, int]]) -> None:
    """Shots, ways and number of each: the third of three kinds has several classes."""
    options = replace(OPTIONS, episodes=30, **changes)
    assert [(turn.shots, turn.ways, turn.episodes) for turn in episodic._turns(options, 9)] == expected
    assert {replace(turn, shots=1, ways=1, episodes=30) for turn in episodic._turns(options, 9)} == {
        replace(options, shots=1)
    }


def test_episodes_have_no_more_ways_than_the_source_can_give() -> None:
    options = replace(OPTIONS, several=4)
    assert [turn.ways for turn in episodic._turns(options, 3)] == [1, 1, 3]
    assert episodic._turns(options, 1) == [options]


@pytest.mark.parametrize("name", ["pcn-support", "pcn-support-attention"])
def test_every_third_iteration_has_several_classes(
    source: EpisodeSampler, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen: list[tuple[int, int, int]] = []
    losses = cache_module._group_loss

    def spy(calibrator: Calibrator, episodes: CachedEpisodes, chosen: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        seen.append((episodes.options.shots, episodes.options.ways, episodes.count))
        return losses(calibrator, episodes, chosen)

    monkeypatch.setattr(cache_module, "_group_loss", spy)
    mixed, alone = make_calibrated(source, name), make_calibrated(source, name)
    options = replace(OPTIONS, shots=2, several=2, iterations=6)
    found = train_calibrator(mixed, source, options, key="key")
    assert seen == 2 * [(2, 1, 2), (1, 1, 5), (1, 5, 2)]
    assert np.isfinite(found).all()
    train_calibrator(alone, source, replace(options, several=0), key="key")
    assert not same(weights(mixed), weights(alone))


def test_longer_runs_reuse_the_episodes_of_shorter_ones(source: EpisodeSampler, tmp_path: Path) -> None:
    train_calibrator(make_calibrated(source), source, replace(OPTIONS, episodes=3), key="key")
    (folder,) = (tmp_path / "cache" / "episodes").iterdir()
    first = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(first) == {"00000.npy", "00001-first1.npy"}
    longer, fresh = make_calibrated(source), make_calibrated(source)
    train_calibrator(longer, source, OPTIONS, key="key")
    assert (folder / "00000.npy").stat().st_mtime_ns == first["00000.npy"]
    train_calibrator(fresh, source, OPTIONS, key="another")
    assert same(weights(longer), weights(fresh))


def test_fresh_episodes_are_not_continued_with_another_calibrator(
    source: EpisodeSampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 2)
    options = replace(OPTIONS, episodes=None)
    stopped, other = make_calibrated(source), make_calibrated(source)
    other.calibrator.options = replace(other.calibrator.options, scale=3.0)
    loss = Calibrated.loss

    def stopping(self: Calibrated, episode: Episode) -> tuple[Tensor, Tensor]:
        calls.append(1)
        if len(calls) > 3 * options.batch:
            raise KeyboardInterrupt
        return loss(self, episode)

    calls: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(Calibrated, "loss", stopping)
        with pytest.raises(KeyboardInterrupt):
            train_calibrator(stopped, source, options, key="key", folder=tmp_path)
    with pytest.raises(GfssError, match="settings"):
        train_calibrator(other, source, options, key="key", folder=tmp_path, resume=True)


@pytest.mark.parametrize("name", ["acastle", "capl", "denet", "pfenet"])
def test_a_trained_method_can_be_copied_for_several_threads(source: EpisodeSampler, name: str) -> None:
    method = build_method(name, make_context(source))
    train_method(method, source, replace(OPTIONS, iterations=1, batch=1))
    assert deepcopy(method).trained


def test_the_loss_of_fresh_episodes_is_taken_at_every_so_many_pixels(source: EpisodeSampler) -> None:
    sides: list[int] = []
    method = build_method("acastle", make_context(source))
    loss = method.loss

    def spy(episode: Episode) -> tuple[Tensor, Tensor]:
        sides.append(episode.query.labels.shape[-1])
        return loss(episode)

    method.loss = spy  # type: ignore[method-assign]
    train_method(method, source, replace(OPTIONS, iterations=1, batch=1, label_stride=8))
    assert sides == [5]  # of 33 px


def test_iterations_use_every_pair_of_the_kept_queries() -> None:
    drawn = [pair for number in range(20) for _, pair in drawn_pairs(5, OPTIONS, number)]
    assert set(drawn) == set(range(OPTIONS.pairs))
