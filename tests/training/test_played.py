"""Episodes that are played once and kept: what is kept, where, and after an interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.tiny import make_calibrated, make_source
from torch import Tensor

from gfss.errors import GfssError
from gfss.methods.fitted import Calibrated
from gfss.models.evidence import evidence_channels
from gfss.training import episodic
from gfss.training.episodic import EpisodicOptions, PlayedEpisodes
from gfss.training.source import EpisodeSource

OPTIONS = EpisodicOptions(iterations=4, batch=3, episodes=5, pairs=2, rate=1e-2)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSource:
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(episodic, "CHUNK", 2)  # episodes per file


def test_played_episodes_equal_fresh_ones(source: EpisodeSource) -> None:
    """What is kept are the scores and the evidence that the method computes, in half precision."""
    calibrated = make_calibrated(source)
    played = PlayedEpisodes(calibrated, source, OPTIONS, "key")
    played.play()
    names = calibrated.calibrator.options.compared
    for i in (4, 0, 3):
        fresh = source.episode(OPTIONS.seed, i, OPTIONS.shots, queries=OPTIONS.pairs)
        calibrated.learn(fresh.support)
        fused, evidence = calibrated.fused(fresh.query.features), calibrated.evidence(fresh.query.features)
        for pair in range(OPTIONS.pairs):
            both = slice(2 * pair, 2 * pair + 2)
            scores, said = played.maps(i, pair)
            assert scores.shape == (2, 7, 9, 9)
            assert said.shape == (2, 1, evidence_channels(names), 9, 9)
            torch.testing.assert_close(scores, fused[both], rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(said, evidence[both], rtol=1e-3, atol=1e-3)


def test_playing_continues_where_it_stopped(source: EpisodeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PlayedEpisodes(make_calibrated(source), source, OPTIONS, "whole")
    whole.play()
    stopped = PlayedEpisodes(make_calibrated(source), source, OPTIONS, "stopped")
    play = PlayedEpisodes._play
    numbers: list[int] = []

    def spy(self: PlayedEpisodes, method: Calibrated, i: int) -> Tensor:
        if i == 3 and 3 not in numbers:
            numbers.append(i)
            raise KeyboardInterrupt
        numbers.append(i)
        return play(self, method, i)

    monkeypatch.setattr(PlayedEpisodes, "_play", spy)
    with pytest.raises(KeyboardInterrupt):
        stopped.play()
    stopped.play()
    assert sorted(numbers) == [0, 1, 2, 2, 3, 3, 4]  # the file of 2 and 3 was not written yet
    for i in range(5):
        for left, right in zip(stopped.maps(i, 1), whole.maps(i, 1), strict=True):
            assert torch.equal(left, right)


def test_a_kept_episode_is_found_again_by_all_it_depends_on(source: EpisodeSource) -> None:
    held_out = replace(source, fakes=(3,))
    folders = [
        PlayedEpisodes(make_calibrated(source), origin, options, key).folder
        for origin, options, key in (
            (source, OPTIONS, "key"),
            (source, OPTIONS, "other key"),
            (held_out, OPTIONS, "key"),
            (source, replace(OPTIONS, shots=2), "key"),
            (source, replace(OPTIONS, pairs=3), "key"),
            (source, replace(OPTIONS, seed=1), "key"),
        )
    ]
    assert len(set(folders)) == len(folders)
    longer = replace(OPTIONS, iterations=9, episodes=6, rate=0.5, batch=7, label_stride=1, novel_weight=3.0)
    assert PlayedEpisodes(make_calibrated(source), source, longer, "key").folder == folders[0]
    assert PlayedEpisodes(make_calibrated(source, "pixel"), source, OPTIONS, "key").folder == folders[0]
    compared = make_calibrated(source)
    compared.calibrator.options = replace(compared.calibrator.options, compared=("layer4",))
    assert PlayedEpisodes(compared, source, OPTIONS, "key").folder not in folders


def test_episodes_that_avoid_images_are_kept_elsewhere(source: EpisodeSource) -> None:
    folders = {
        PlayedEpisodes(make_calibrated(source), replace(source, avoid=avoid), OPTIONS, "key").folder
        for avoid in ((), (0, 1), tuple(range(0, 40, 2)))
    }
    assert len(folders) == 3


def test_fresh_episodes_are_not_kept(source: EpisodeSource) -> None:
    with pytest.raises(GfssError, match="give a number of episodes"):
        PlayedEpisodes(make_calibrated(source), source, replace(OPTIONS, episodes=None), "key")
