"""Methods with a calibrator: where they start, what enters and leaves them, and their loss by loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.cases import SIZE, make_context, make_episode, map_labels
from torch import nn

from gfss.data.catalog import VOID
from gfss.methods import build_method
from gfss.methods.losses import calibration_loss
from gfss.methods.pcn import Calibrated, NormalisedScoreFusion, NovelFitter, ScoreFusion
from gfss.models.calibrators.calibrator import PRESETS, Calibrator
from gfss.models.calibrators.pcn_support import build_support_memory, log_odds_scores, similarity_maps
from gfss.models.novel.classifier import NovelOptions

QUICK = NovelOptions(hidden=8, steps=15)


def calibrated_nsf(preset: str = "pcn-support", seed: int = 0) -> Calibrated:
    """PCN with a fresh calibrator that counts as trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        calibrator = Calibrator(replace(PRESETS[preset], dimension=12), SIZE)
    return Calibrated(NormalisedScoreFusion(NovelFitter(QUICK)), calibrator, trained=True)


@pytest.mark.parametrize("novel", [1, 3])
def test_a_zero_head_gives_exactly_nsf(novel: int) -> None:
    episode = make_episode(1, novel)
    options = replace(PRESETS["pcn-as-printed"], zero_head=True)
    method = Calibrated(NormalisedScoreFusion(NovelFitter(QUICK)), Calibrator(options, SIZE), trained=True)
    method.learn(episode.support)
    nsf = NormalisedScoreFusion(NovelFitter(QUICK))
    nsf.learn(episode.support)
    assert torch.equal(method.scores(episode.query.features), nsf.scores(episode.query.features))


@pytest.mark.parametrize("preset", ["pcn-support", "pcn-support-attention"])
@pytest.mark.parametrize("novel", [1, 3])
def test_an_exchange_with_zero_heads_gives_exactly_scaled_nsf(preset: str, novel: int) -> None:
    episode = make_episode(1, novel)
    method = calibrated_nsf(preset)
    assert method.calibrator.class_interaction is not None
    assert method.calibrator.scale is not None
    nn.init.constant_(method.calibrator.scale, 1.7)
    for part in (method.calibrator.attention, method.calibrator.class_interaction):
        for weight in part.head.parameters() if part is not None else ():
            nn.init.zeros_(weight)
    method.learn(episode.support)
    nsf = NormalisedScoreFusion(NovelFitter(QUICK))
    nsf.learn(episode.support)
    expected = method.calibrator.scale * nsf.scores(episode.query.features)
    assert torch.equal(method.scores(episode.query.features), expected)


@pytest.mark.parametrize("preset", ["pcn-support", "pcn-support-attention"])
@pytest.mark.parametrize("novel", [1, 3])
def test_a_fresh_exchange_adds_the_log_odds_of_score_fusion_to_nsf(preset: str, novel: int) -> None:
    episode = make_episode(1, novel)
    method = calibrated_nsf(preset)
    method.learn(episode.support)
    nsf = method.inner.scores(episode.query.features)
    score = ScoreFusion(NovelFitter(QUICK))
    score.learn(episode.support)
    shared = score.scores(episode.query.features).softmax(dim=1)
    expected = nsf + log_odds_scores(shared, novel)
    torch.testing.assert_close(method.scores(episode.query.features), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("preset", PRESETS)
def test_evidence_is_what_support_and_query_say(preset: str) -> None:
    """The query's side of it comes from score fusion, where NSF enters the calibrator."""
    episode = make_episode(2, 2)
    support, query = episode.support, episode.query.features
    method = calibrated_nsf(preset)
    method.learn(support)
    names = method.calibrator.options.compared
    score = ScoreFusion(NovelFitter(QUICK))
    score.learn(support)
    memory = build_support_memory(support.features, support.labels, support.novel_labels, names)
    expected = similarity_maps(memory, query, score.scores(query).softmax(dim=1))
    assert not torch.allclose(expected.score_fusion, method.fused(query))
    for left, right in zip(method.similarity(query, method.fused(query)), expected, strict=True):
        assert torch.equal(left, right)
    found = method.calibrator(method.fused(query), query, 2, expected)
    assert torch.equal(method.scores(query), found)


def test_a_second_support_replaces_the_first() -> None:
    method, other = calibrated_nsf(), calibrated_nsf()
    _disturb(method.calibrator)
    _disturb(other.calibrator)
    first, second = make_episode(1, 2), make_episode(1, 1, seed=1)
    method.learn(first.support)
    method.learn(second.support)
    other.learn(second.support)
    assert torch.equal(method.scores(second.query.features), other.scores(second.query.features))


def test_queries_do_not_touch_each_other() -> None:
    episode = make_episode(1, 2, queries=3)
    method, query = calibrated_nsf(), episode.query.features
    _disturb(method.calibrator)
    method.learn(episode.support)
    torch.testing.assert_close(method.scores(query)[1:2], method.scores(query[[1]]), rtol=1e-5, atol=1e-5)


def test_scores_that_are_no_probabilities_are_softmaxed_before_calibration() -> None:
    episode = make_episode()
    query = episode.query.features
    inner = ScoreFusion(NovelFitter(QUICK))
    method = Calibrated(inner, Calibrator(PRESETS["pixel"], SIZE))
    assert method.name == "score+T"
    method.learn(episode.support)
    fused = inner.scores(query).softmax(dim=1)
    torch.testing.assert_close(method.fused(query), fused)
    assert torch.equal(method.similarity(query, fused).score_fusion, fused)


def test_an_episode_leaves_inner_method_and_base_rows_alone() -> None:
    episode = make_episode()
    rows = episode.support.base_rows.clone()
    method = Calibrated(NormalisedScoreFusion(NovelFitter(QUICK)), Calibrator(PRESETS["pcn-support"], SIZE))
    total, pixels = method.loss(episode)
    (total / pixels).backward()
    assert torch.equal(episode.support.base_rows, rows)
    assert pixels == (episode.query.labels != VOID).sum()


@pytest.mark.parametrize(("novel", "weight"), [(0, 1.0), (0, 3.0), (1, 1.5), (2, 0.25)])
def test_calibration_loss_equals_loops(novel: int, weight: float) -> None:
    """Pixels of the last classes count more or less; the number of pixels is plain."""
    episode = make_episode(dtype=torch.float64)
    scores = episode.query.features.base
    labels = map_labels(episode.query.labels, SIZE)
    labels = labels.where(labels < scores.shape[1], torch.tensor(VOID))  # base scores know no novel label
    labels[0, 0, :4] = torch.arange(scores.shape[1] - 4, scores.shape[1])  # all of the last classes are shown
    total, pixels = calibration_loss(scores, labels, novel, weight)  # at map size, so nothing is upsampled
    expected, count = 0.0, 0
    for i, y, x in np.ndindex(*labels.shape):
        label = int(labels[i, y, x])
        if label != VOID:
            counted = weight if label >= scores.shape[1] - novel else 1.0
            expected -= counted * math.log(_softmax(scores[i, :, y, x].tolist())[label])
            count += 1
    assert float(total) == pytest.approx(expected)
    assert int(pixels) == count
    if novel == 0:
        assert torch.equal(total, calibration_loss(scores, labels)[0])


def _disturb(calibrator: Calibrator) -> None:
    """Random weights in place of zero layers, which would hide what comes before them."""
    generator = torch.Generator().manual_seed(5)
    for weight in calibrator.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)


def _softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(value) for value in logits]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("name", ["nsf", "log-odds", "linear-probe", "score", "npf"])
def test_probabilities_enter_a_calibrator_as_they_are(name: str) -> None:
    episode = make_episode(1, 1)
    inner = build_method(name, make_context(SIZE))
    method = Calibrated(inner, Calibrator(PRESETS["pcn-as-printed"], SIZE), trained=True)
    method.learn(episode.support)
    fused, scores = method.fused(episode.query.features), inner.scores(episode.query.features)
    assert torch.equal(fused, scores) == inner.probabilities
    assert torch.equal(fused, scores.softmax(dim=1)) != inner.probabilities
    assert fused.min() >= 0
    assert fused.max() <= 1
