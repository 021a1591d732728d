from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.tiny import make_context, make_source
from torch import Tensor

from gfss.errors import GfssError
from gfss.methods import build_method
from gfss.methods.fitted import Calibrated
from gfss.training import episodic, loop
from gfss.training.episodic import EpisodicOptions, PlayedEpisodes, train_calibrator, train_method
from gfss.training.source import EpisodeSource

OPTIONS = EpisodicOptions(iterations=4, batch=3, episodes=5, pairs=2, rate=1e-2)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSource:
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(episodic, "CHUNK", 2)  # episodes per file


def method(source: EpisodeSource, name: str = "pcn") -> Calibrated:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = build_method(name, make_context(source))
    assert isinstance(built, Calibrated)
    return built


def weights(trained: Calibrated) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trained.calibrator.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_played_episodes_equal_fresh_ones(source: EpisodeSource) -> None:
    calibrated = method(source)
    played = PlayedEpisodes(calibrated, source, OPTIONS, "key")
    played.play()
    for i in (4, 0, 3):
        fresh = source.episode(OPTIONS.seed, i, OPTIONS.shots, queries=OPTIONS.pairs)
        calibrated.learn(fresh.support)
        fused = calibrated.fused(fresh.query.features)
        for pair in range(OPTIONS.pairs):
            kept = played.fused(i, pair)
            assert kept.shape == (2, 7, 9, 9)
            torch.testing.assert_close(kept, fused[2 * pair : 2 * pair + 2], rtol=1e-3, atol=1e-3)


def test_playing_continues_where_it_stopped(source: EpisodeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PlayedEpisodes(method(source), source, OPTIONS, "whole")
    whole.play()
    stopped = PlayedEpisodes(method(source), source, OPTIONS, "stopped")
    play = PlayedEpisodes._play
    numbers: list[int] = []

    def spy(self: PlayedEpisodes, i: int) -> Tensor:
        if i == 3 and 3 not in numbers:
            numbers.append(i)
            raise KeyboardInterrupt
        numbers.append(i)
        return play(self, i)

    monkeypatch.setattr(PlayedEpisodes, "_play", spy)
    with pytest.raises(KeyboardInterrupt):
        stopped.play()
    stopped.play()
    assert numbers == [0, 1, 2, 3, 2, 3, 4]  # the file of 2 and 3 was not written yet
    for i in range(5):
        assert torch.equal(stopped.fused(i, 1), whole.fused(i, 1))


def test_a_kept_episode_is_found_again_by_all_it_depends_on(source: EpisodeSource) -> None:
    held_out = EpisodeSource(source.store, source.dataset, source.fold, fakes=(3,))
    folders = [
        PlayedEpisodes(method(source), origin, options, key).folder
        for origin, options, key in (
            (source, OPTIONS, "key"),
            (source, OPTIONS, "other key"),
            (held_out, OPTIONS, "key"),
            (source, replace(OPTIONS, episodes=6), "key"),
            (source, replace(OPTIONS, shots=2), "key"),
            (source, replace(OPTIONS, pairs=3), "key"),
            (source, replace(OPTIONS, seed=1), "key"),
        )
    ]
    assert len(set(folders)) == len(folders)
    longer = replace(OPTIONS, iterations=9, rate=0.5, batch=7, label_stride=1)
    assert PlayedEpisodes(method(source), source, longer, "key").folder == folders[0]


def test_fresh_episodes_are_not_kept(source: EpisodeSource) -> None:
    with pytest.raises(GfssError, match="give a number of episodes"):
        PlayedEpisodes(method(source), source, replace(OPTIONS, episodes=None), "key")


@pytest.mark.parametrize("episodes", [5, None], ids=["played", "fresh"])
def test_training_changes_the_calibrator_alone(source: EpisodeSource, episodes: int | None) -> None:
    calibrated = method(source)
    before = {name: value.clone() for name, value in source.store.model.state_dict().items()}
    start = weights(calibrated)
    options = replace(OPTIONS, episodes=episodes, batch=2, iterations=3)
    losses = train_calibrator(calibrated, source, options, key="key")
    assert len(losses) == 3
    assert calibrated.trained
    assert not same(start, weights(calibrated))
    assert all(torch.equal(value, before[name]) for name, value in source.store.model.state_dict().items())


def test_the_loss_goes_down(source: EpisodeSource) -> None:
    losses = train_calibrator(method(source), source, replace(OPTIONS, iterations=30, batch=5), key="key")
    assert np.mean(losses[-5:]) < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["pcn", "pixel"])
def test_without_training_decisions_are_those_of_nsf(source: EpisodeSource, name: str) -> None:
    calibrated = method(source, name)
    train_calibrator(calibrated, source, replace(OPTIONS, iterations=0), key="key")
    episode = source.episode(9, 0, queries=2)
    calibrated.learn(episode.support)
    with torch.no_grad():
        scores = calibrated.scores(episode.query.features)
    nsf = calibrated.fused(episode.query.features)
    assert torch.equal(scores.argmax(dim=1), nsf.argmax(dim=1))


def test_two_runs_are_equal_whatever_came_before(source: EpisodeSource) -> None:
    first, second = method(source), method(source)
    losses = train_calibrator(first, source, OPTIONS, key="key")
    second.learn(source.episode(3, 3).support)
    torch.manual_seed(5)
    assert train_calibrator(second, source, OPTIONS, key="key") == losses
    assert same(weights(first), weights(second))


def test_a_resumed_run_equals_an_uninterrupted_one(
    source: EpisodeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 2)
    whole, stopped, resumed = (method(source) for _ in range(3))
    train_calibrator(whole, source, OPTIONS, key="key")
    played_loss = episodic._played_loss

    def stopping(*arguments):
        if arguments[-1].number == 3:
            raise KeyboardInterrupt
        return played_loss(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(episodic, "_played_loss", stopping)
        with pytest.raises(KeyboardInterrupt):
            train_calibrator(stopped, source, OPTIONS, key="key", folder=tmp_path)
    assert len(train_calibrator(resumed, source, OPTIONS, key="key", folder=tmp_path, resume=True)) == 2
    assert same(weights(whole), weights(resumed))


def test_methods_without_parameters_have_nothing_to_train(source: EpisodeSource) -> None:
    nsf = build_method("nsf", make_context(source))
    with pytest.raises(GfssError, match="method 'nsf' has nothing to train"):
        train_method(nsf, source, OPTIONS)


def test_an_untrained_calibrator_is_refused(source: EpisodeSource) -> None:
    calibrated = method(source)
    episode = source.episode(0, 0)
    calibrated.learn(episode.support)
    with pytest.raises(GfssError, match="method 'pcn' is not trained yet"):
        calibrated.scores(episode.query.features)
