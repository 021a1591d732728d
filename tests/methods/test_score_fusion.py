"""Fusions and rules: their formulas by loops, and the properties they promise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.cases import make_episode

from gfss.common.errors import GfssError
from gfss.data.catalog import VOID
from gfss.features.bank import CachedFeatures, cached_images
from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.methods.pcn import RULES, NormalisedScoreFusion, NovelFitter, RuleFusion, ScoreFusion
from gfss.methods.prototypes import Imprint, NormalisedParameterFusion
from gfss.models.novel.classifier import NovelOptions

QUICK = NovelOptions(hidden=8, steps=15)
seeds = st.integers(0, 40)


def taught(method: Method, support: Support) -> Method:
    """The method after learning."""
    method.learn(support)
    return method


@settings(max_examples=10, deadline=None)
@given(seed=seeds, novel=st.integers(1, 3))
def test_nsf_blocks_sum_to_one(seed: int, novel: int) -> None:
    episode = make_episode(1, novel, seed=seed)
    fitter = NovelFitter(QUICK)
    scores = taught(NormalisedScoreFusion(fitter), episode.support).scores(episode.query.features)
    known = episode.support.base + 1
    none = fitter.logits(episode.query.features).softmax(dim=1)[:, 0]
    ones = torch.ones_like(none)
    torch.testing.assert_close(scores[:, :known].sum(dim=1), ones)
    torch.testing.assert_close(scores[:, known:].sum(dim=1) + none, ones)


def test_fusions_equal_loops() -> None:
    episode = make_episode(2, 2, dtype=torch.float64)
    query = episode.query.features
    fitter = NovelFitter(QUICK)
    score = taught(ScoreFusion(fitter), episode.support).scores(query)
    nsf = taught(NormalisedScoreFusion(fitter), episode.support).scores(query)
    novel = fitter.logits(query)
    for i, y, x in np.ndindex(len(query), *query.size):
        base_here, novel_here = query.base[i, :, y, x].tolist(), novel[i, :, y, x].tolist()
        np.testing.assert_allclose(score[i, :, y, x], base_here + novel_here[1:], atol=1e-9)
        np.testing.assert_allclose(nsf[i, :, y, x], _softmax(base_here) + _softmax(novel_here)[1:], atol=1e-9)


def test_prototype_methods_equal_loops() -> None:
    episode = make_episode(2, 2)
    support, query = episode.support, episode.query.features
    prototypes = slow_prototypes(support)
    base = support.base_rows.numpy()
    lengths = np.sqrt((base**2).sum(axis=1))
    unit = prototypes / np.sqrt((prototypes**2).sum(axis=1, keepdims=True))
    rows = {
        "npf": np.concatenate([base / lengths[:, None], unit]),
        "imprint": np.concatenate([base, unit * lengths[1:].mean()]),
    }
    for method in (NormalisedParameterFusion(), Imprint()):
        found = taught(method, support).scores(query)
        for i, y, x in np.ndindex(len(query), *query.size):
            expected = [float(row @ query.bottleneck[i, :, y, x].numpy()) for row in rows[method.name]]
            np.testing.assert_allclose(found[i, :, y, x], expected, atol=1e-5)


def slow_prototypes(support: Support) -> np.ndarray:
    """Average feature weighted by the class's share of every position's cell, mean over the class's supports."""
    height, width = support.features.size
    full_height, full_width = support.labels.shape[1:]
    prototypes = []
    for position, label in enumerate(support.novel_labels):
        means = []
        for image, owner in enumerate(support.owners):
            if owner != position:
                continue
            total, area = np.zeros(support.features.bottleneck.shape[1]), 0.0
            for y, x in np.ndindex(height, width):
                top, bottom = y * full_height // height, math.ceil((y + 1) * full_height / height)
                left, right = x * full_width // width, math.ceil((x + 1) * full_width / width)
                share = float((support.labels[image, top:bottom, left:right] == label).double().mean())
                total += share * support.features.bottleneck[image, :, y, x].numpy()
                area += share
            means.append(total / area)
        prototypes.append(np.mean(means, axis=0))
    return np.stack(prototypes)


@pytest.mark.parametrize("rule", RULES)
def test_rules_equal_loops(rule: str) -> None:
    episode = make_episode(1, 2, dtype=torch.float64)
    query = episode.query.features
    fitter = NovelFitter(QUICK)
    fused = taught(NormalisedScoreFusion(fitter), episode.support).scores(query)
    found = taught(RuleFusion(fitter, rule), episode.support).scores(query)
    for i, y, x in np.ndindex(len(query), *query.size):
        background, *rest = fused[i, :, y, x].tolist()
        known, new = rest[:-2], rest[-2:]
        if rule == "gated":
            expected = [background, *known, *(p * (1 - max(known)) for p in new)]
        elif rule == "background-share":
            expected = [background * (1 - new[0]) * (1 - new[1]), *known, *(background * p for p in new)]
        else:
            held = [min(max(p, 1e-6), 1 - 1e-6) for p in new]
            expected = [background, *known, *(background * p / (1 - p) for p in held)]
            expected = [value / sum(expected) for value in expected]
        np.testing.assert_allclose(found[i, :, y, x], expected, atol=1e-9)


def test_another_class_never_changes_base_scores() -> None:
    two = make_episode(1, 2)
    first = replace(two.support, features=two.support.features[:1], labels=two.support.labels[:1], novel=1, owners=(0,))
    query = two.query.features
    known = two.support.base + 1
    for fusion in (ScoreFusion, NormalisedScoreFusion):
        one = taught(fusion(NovelFitter(QUICK)), first).scores(query)
        both = taught(fusion(NovelFitter(QUICK)), two.support).scores(query)
        assert torch.equal(one[:, :known], both[:, :known])


def test_methods_with_one_fitter_fit_a_support_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import gfss.methods.pcn as fitted

    calls: list[int] = []
    fit = fitted.fit_novel

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return fit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(fitted, "fit_novel", counted)
    fitter, episode = NovelFitter(QUICK), make_episode()
    for method in (ScoreFusion(fitter), NormalisedScoreFusion(fitter), RuleFusion(fitter, "gated")):
        taught(method, episode.support).scores(episode.query.features)
    assert len(calls) == 1
    taught(ScoreFusion(fitter), make_episode(seed=1).support)
    assert len(calls) == 2


def bad_labels(support: Support, value: int) -> Support:
    return replace(support, labels=torch.full_like(support.labels, value))


@pytest.mark.parametrize(
    ("value", "message"),
    [(0, "no pixel of the class"), (VOID, "no pixel of the class"), (6, "only the class and nothing else")],
    ids=["without the class", "all void", "only the class"],
)
def test_bad_masks_are_refused_in_one_sentence(value: int, message: str) -> None:
    support = bad_labels(make_episode().support, value)
    with pytest.raises(GfssError, match=message) as caught:
        NormalisedScoreFusion(NovelFitter(QUICK)).learn(support)
    assert "\n" not in str(caught.value)


def test_features_that_are_no_numbers_are_refused() -> None:
    support = make_episode().support
    broken = replace(support, features=support.features.map(lambda tensor: tensor * torch.nan))
    with pytest.raises(GfssError, match="NaN"):
        NormalisedScoreFusion(NovelFitter(QUICK)).learn(broken)


def _softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(value) for value in logits]
    return [power / sum(powers) for power in powers]


def test_a_fitter_forgets_the_logits_of_the_last_support() -> None:
    query = make_episode().query.features
    fitter = NovelFitter(QUICK)
    fitter.fit(make_episode(seed=1).support)
    fitter.logits(query)
    fitter.fit(make_episode(seed=2).support)
    fresh = NovelFitter(QUICK)
    fresh.fit(make_episode(seed=2).support)
    assert torch.equal(fitter.logits(query), fresh.logits(query))


def test_fitters_of_other_seeds_and_options_share_kept_images() -> None:
    """What is kept of an image belongs to the weights at which fitting begins."""
    episode = make_episode()
    kept = CachedFeatures(cached_images(episode.query.features))
    for fitter in (NovelFitter(QUICK, seed=0), NovelFitter(QUICK, seed=1), NovelFitter(replace(QUICK, hidden=4))):
        fitter.fit(episode.support)
        alone = CachedFeatures(cached_images(episode.query.features))
        torch.testing.assert_close(fitter.logits(kept), replace(fitter, _query=None, _logits=None).logits(alone))


def test_a_last_class_too_thin_for_the_stride_is_heard() -> None:
    support = make_episode(novel=2).support
    labels = support.labels.clone()
    last = support.novel_labels[1]
    labels[labels == last] = 0
    labels[-1, 1, 1] = last  # between every fourth pixel
    fitter = NovelFitter(replace(QUICK, label_stride=4))
    every = NovelFitter(replace(QUICK, label_stride=1))
    small = replace(support, labels=labels)
    assert torch.equal(fitter.fit(small).first, every.fit(small).first)
