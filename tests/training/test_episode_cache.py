"""The episode cache: what it holds, where, and after an interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.tiny import make_calibrated, make_source
from torch import Tensor

from gfss.common.devices import Workers
from gfss.common.errors import GfssError
from gfss.features.episodes import EpisodeSampler
from gfss.methods.losses import calibration_loss
from gfss.methods.pcn import Calibrated
from gfss.models.calibrators.pcn_support import support_similarity_channels
from gfss.training import episode_cache as cache_module
from gfss.training.episode_cache import CachedEpisodes
from gfss.training.episodic_options import EpisodicOptions

OPTIONS = EpisodicOptions(iterations=4, batch=3, episodes=5, pairs=2, rate=1e-2)
SEVERAL = replace(OPTIONS, ways=3, episodes=3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSampler:
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "CHUNK", 2)  # episodes per file


def test_played_episodes_equal_fresh_ones(source: EpisodeSampler) -> None:
    """What is kept are the scores and the similarity that the method computes, in half precision."""
    calibrated = make_calibrated(source)
    episodes = CachedEpisodes(calibrated, source, OPTIONS, "key")
    episodes.fill()
    names = calibrated.calibrator.options.compared
    for i in (4, 0, 3):
        fresh = source.episode(OPTIONS.seed, i, OPTIONS.shots, queries=OPTIONS.pairs)
        calibrated.learn(fresh.support)
        fused = calibrated.fused(fresh.query.features)
        similarity = calibrated.similarity(fresh.query.features, fused)
        for pair in range(OPTIONS.pairs):
            both = slice(2 * pair, 2 * pair + 2)
            scores, maps = episodes.maps(i, pair)
            assert scores.shape == (2, 7, 9, 9)
            assert maps.support.shape == (2, 1, support_similarity_channels(len(names)), 9, 9)
            assert maps.self_similarity.shape == (2, 7, len(names), 9, 9)
            for kept, computed in zip((scores, *maps), (fused, *similarity), strict=True):
                torch.testing.assert_close(kept, computed[both], rtol=1e-3, atol=1e-3)


def test_played_episodes_of_several_classes_equal_fresh_ones(source: EpisodeSampler) -> None:
    """Three of six base classes at once, and any images as queries."""
    calibrated = make_calibrated(source)
    episodes = CachedEpisodes(calibrated, source, SEVERAL, "key")
    episodes.fill()
    names = calibrated.calibrator.options.compared
    for i in (2, 0):
        drawn = source.draw_several(SEVERAL.seed, i, SEVERAL.shots, 3, 2 * SEVERAL.pairs)
        assert episodes.draw(i) == drawn
        fresh = source.materialise(drawn, source.episode_fold(drawn))
        calibrated.learn(fresh.support)
        fused = calibrated.fused(fresh.query.features)
        similarity = calibrated.similarity(fresh.query.features, fused)
        for pair in range(SEVERAL.pairs):
            both = slice(2 * pair, 2 * pair + 2)
            scores, maps = episodes.maps(i, pair)
            assert scores.shape == maps.score_fusion.shape == (2, 7, 9, 9)
            assert maps.support.shape == (2, 3, support_similarity_channels(len(names)), 9, 9)
            assert maps.self_similarity.shape == (2, 7, len(names), 9, 9)
            for kept, computed in zip((scores, *maps), (fused, *similarity), strict=True):
                torch.testing.assert_close(kept, computed[both], rtol=1e-3, atol=1e-3)


def test_one_class_is_drawn_in_pairs_and_several_with_any_images(source: EpisodeSampler) -> None:
    calibrated = make_calibrated(source)
    one, several = (CachedEpisodes(calibrated, source, options, "key") for options in (OPTIONS, SEVERAL))
    for i in range(5):
        assert one.draw(i) == source.draw(OPTIONS.seed, i, OPTIONS.shots, 1, OPTIONS.pairs)
        assert len(several.draw(i).novel) == 3
        assert len(several.draw(i).queries) == len(one.draw(i).queries) == 2 * OPTIONS.pairs


def test_the_loss_of_kept_episodes_is_that_of_what_they_show(source: EpisodeSampler) -> None:
    """Three classes at once: scores by the calibrator from fresh maps, and labels of the fake classes last."""
    calibrated = make_calibrated(source, "pcn-support-attention")
    options = replace(SEVERAL, novel_weight=3.0, overlap=0.7, label_stride=4)
    episodes = CachedEpisodes(calibrated, source, options, "key")
    episodes.fill()
    chosen = [(2, 1), (0, 0)]
    expected, pixels = torch.zeros(()), 0
    for i, pair in chosen:
        drawn = source.draw_several(options.seed, i, options.shots, 3, 2 * options.pairs)
        drawn = replace(drawn, queries=drawn.queries[2 * pair : 2 * pair + 2])
        fresh = source.materialise(drawn, source.episode_fold(drawn), stride=4)
        calibrated.learn(fresh.support)
        fused = calibrated.fused(fresh.query.features)
        similarity = calibrated.similarity(fresh.query.features, fused)
        features = source.store.features(drawn.queries)
        scores = calibrated.calibrator(fused, features, 3, similarity)
        loss, count = calibration_loss(scores, fresh.query.labels, 3, 3.0, 0.7)
        expected, pixels = expected + loss, pixels + int(count)
    found, counted = cache_module._group_loss(calibrated.calibrator, episodes, chosen)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    assert int(counted) == pixels


def test_playing_continues_where_it_stopped(source: EpisodeSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CachedEpisodes(make_calibrated(source), source, OPTIONS, "whole")
    whole.fill()
    stopped = CachedEpisodes(make_calibrated(source), source, OPTIONS, "stopped")
    compute = CachedEpisodes._compute
    numbers: list[int] = []

    def spy(self: CachedEpisodes, method: Calibrated, i: int) -> Tensor:
        if i == 3 and 3 not in numbers:
            numbers.append(i)
            raise KeyboardInterrupt
        numbers.append(i)
        return compute(self, method, i)

    monkeypatch.setattr(CachedEpisodes, "_compute", spy)
    with pytest.raises(KeyboardInterrupt):
        stopped.fill()
    stopped.fill()
    assert sorted(numbers) == [0, 1, 2, 2, 3, 3, 4]  # the file of 2 and 3 was not written yet
    for i in range(5):
        (scores, maps), (others, heard) = stopped.maps(i, 1), whole.maps(i, 1)
        for left, right in zip((scores, *maps), (others, *heard), strict=True):
            assert torch.equal(left, right)


def test_a_kept_episode_is_found_again_by_all_it_depends_on(source: EpisodeSampler) -> None:
    held_out = replace(source, fakes=(3,))
    folders = [
        CachedEpisodes(make_calibrated(source), origin, options, key).folder
        for origin, options, key in (
            (source, OPTIONS, "key"),
            (source, OPTIONS, "other key"),
            (held_out, OPTIONS, "key"),
            (source, replace(OPTIONS, shots=2), "key"),
            (source, replace(OPTIONS, pairs=3), "key"),
            (source, replace(OPTIONS, seed=1), "key"),
            (source, replace(OPTIONS, ways=2), "key"),
            (source, replace(OPTIONS, ways=3), "key"),
        )
    ]
    assert len(set(folders)) == len(folders)
    longer = replace(OPTIONS, iterations=9, episodes=6, rate=0.5, batch=7, label_stride=1, novel_weight=3.0)
    longer = replace(longer, overlap=2.0, several=7)
    assert CachedEpisodes(make_calibrated(source), source, longer, "key").folder == folders[0]
    assert CachedEpisodes(make_calibrated(source, "pixel"), source, OPTIONS, "key").folder == folders[0]
    compared = make_calibrated(source)
    compared.calibrator.options = replace(compared.calibrator.options, compared=("layer4",))
    assert CachedEpisodes(compared, source, OPTIONS, "key").folder not in folders


def test_episodes_that_avoid_images_are_kept_elsewhere(source: EpisodeSampler) -> None:
    folders = {
        CachedEpisodes(make_calibrated(source), replace(source, avoid=avoid), OPTIONS, "key").folder
        for avoid in ((), (0, 1), tuple(range(0, 40, 2)))
    }
    assert len(folders) == 3


def test_fresh_episodes_are_not_kept(source: EpisodeSampler) -> None:
    with pytest.raises(GfssError, match="give a number of episodes"):
        CachedEpisodes(make_calibrated(source), source, replace(OPTIONS, episodes=None), "key")


def test_processes_share_what_is_to_be_computed(source: EpisodeSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = CachedEpisodes._compute
    numbers: list[int] = []

    def spy(self: CachedEpisodes, method: Calibrated, i: int) -> Tensor:
        numbers.append(i)
        return compute(self, method, i)

    monkeypatch.setattr(CachedEpisodes, "_compute", spy)
    for rank in range(2):
        numbers.clear()
        CachedEpisodes(make_calibrated(source), source, OPTIONS, "shared").fill(Workers(rank, 2))
        assert numbers == [[0, 1, 4], [2, 3]][rank]  # files of two
    numbers.clear()
    CachedEpisodes(make_calibrated(source), source, OPTIONS, "shared").fill()
    assert numbers == []
