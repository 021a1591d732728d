"""BCM: only the confused class is ever overruled, and the regression is scikit-learn's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.cases import BASE, STRIDE, make_episode, map_labels
from tests.methods.test_probe import EXACT, reference, slow_sample
from torch import Tensor
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.features.episodes import Support
from gfss.methods.bcm import BaseClassMining
from gfss.models.base_model import Features
from gfss.models.ops.upsample import class_map, upsample


def taken_for(features: Features, labels: Tensor, meaning: dict[int, int], base: int = BASE) -> Features:
    """The features under a base model that takes label L for class ``meaning[L]``, and others for what they are.

    Novel labels without a meaning are taken for background.
    """
    table = torch.arange(256)
    table[base + 1 :] = 0
    for label, taken in meaning.items():
        table[label] = taken
    scores = F.one_hot(table[map_labels(labels, features.size)], base + 1).permute(0, 3, 1, 2) * 4.0
    return replace(features, base=scores.to(features.base))


def said(support: Support, meaning: dict[int, int]) -> Support:
    """The support set under such a base model."""
    return replace(support, features=taken_for(support.features, support.labels, meaning))


@pytest.mark.parametrize(
    ("meaning", "groups"),
    [({6: 0, 7: 0}, [[6, 7]]), ({6: 3, 7: 0}, [[7], [6]]), ({6: 2, 7: 2}, [[6, 7]])],
    ids=["both background", "different classes", "both one base class"],
)
def test_equals_the_slow_implementation(meaning: dict[int, int], groups: list[list[int]]) -> None:
    episode = make_episode(2, 2, seed=3, dtype=torch.float64)
    support = said(episode.support, meaning)
    query = taken_for(episode.query.features, episode.query.labels, meaning)
    method = BaseClassMining(options=EXACT)
    method.learn(support)
    assert [[support.base + 1 + i for i in confusion.novel] for confusion in method.confusions] == groups
    found = method.scores(query)

    labels = map_labels(support.labels, support.features.size)
    expected = query.base.argmax(dim=1)
    for group in groups:
        confused = meaning[group[0]]
        samples, targets = [], []
        for i, y, x in np.ndindex(*labels.shape):
            label = int(labels[i, y, x])
            taken = int(support.features.base[i, :, y, x].argmax())
            if label in group:
                targets.append(label)
            elif label <= support.base and taken == confused:
                targets.append(confused)
            else:
                continue
            samples.append(slow_sample(support.features, i, y, x))
        model = reference(np.stack(samples), np.array(targets))
        order = model.classes_.tolist()
        for i, y, x in np.ndindex(*expected.shape):
            logs = model.predict_log_proba(slow_sample(query, i, y, x)[None])[0]
            odds = [logs[order.index(label)] - logs[order.index(confused)] for label in group]
            if int(query.base[i, :, y, x].argmax()) == confused:
                expected[i, y, x] = group[int(np.argmax(odds))] if max(odds) > 0 else confused
                scores = found[i, group, y, x] - found[i, confused, y, x]
                np.testing.assert_allclose(scores.numpy(), odds, atol=1e-5)
    assert torch.equal(found.argmax(dim=1), expected)
    assert (expected > support.base).any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), novel=st.integers(1, 3), shots=st.integers(1, 2))
def test_other_decisions_never_change(seed: int, novel: int, shots: int) -> None:
    episode = make_episode(shots, novel, seed=seed % 50)
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(episode.query.features.base.shape, generator=generator).round(decimals=1)  # with ties
    query = replace(episode.query.features, base=base)
    method = BaseClassMining()
    method.learn(episode.support)
    scores = method.scores(query)
    assert torch.equal(scores[:, : base.shape[1]], base)
    confused = torch.tensor([confusion.confused for confusion in method.confusions])
    before, after = base.argmax(dim=1), scores.argmax(dim=1)
    may_change = torch.isin(before, confused)
    assert torch.equal(before[~may_change], after[~may_change])
    changed = before != after
    assert (after[changed] >= base.shape[1]).all()  # only ever to a novel class

    # at image size: a pixel changes only if one of the four positions around it may
    size = ((query.size[0] - 1) * STRIDE + 1, (query.size[1] - 1) * STRIDE + 1)
    far = upsample(may_change[:, None].float(), size)[:, 0] == 0
    assert torch.equal(class_map(base, size)[far], class_map(scores, size)[far])


def test_supports_without_the_confused_class_use_all_other_positions() -> None:
    support = said(make_episode().support, {6: 4, 4: 0})  # only the novel object is taken for class 4
    method = BaseClassMining()
    method.learn(support)
    assert method.confusions[0].confused == 4
    assert torch.isfinite(method.confusions[0].classifier.rows).all()


def test_refuses_supports_that_show_only_the_class() -> None:
    support = make_episode().support
    only = replace(support, labels=torch.full_like(support.labels, support.base + 1))
    with pytest.raises(GfssError, match="leave some background"):
        BaseClassMining().learn(only)


def test_a_class_is_found_where_it_was_taken_for_background() -> None:
    """On easy features the override finds the object and leaves base objects alone."""
    episode = make_episode(5, 1, queries=4)
    features = taken_for(episode.query.features, episode.query.labels, {})
    method = BaseClassMining()
    method.learn(said(episode.support, {}))
    found = method.scores(features).argmax(dim=1)
    truth = map_labels(episode.query.labels, features.size)
    valid = truth != 255
    assert (found == truth)[valid].float().mean() > 0.9


def test_several_base_classes_may_be_overruled() -> None:
    """An object that is taken for two classes: with one of them mined half of it is found, with two all of it."""
    episode = make_episode(3, 1, queries=4, seed=1)

    def split(features: Features, labels: Tensor) -> Features:
        """The left part of the maps takes the object for class 2, the right part for background."""
        left, right = (taken_for(features, labels, {6: taken}) for taken in (2, 0))
        base = right.base.clone()
        base[..., : base.shape[-1] // 2] = left.base[..., : base.shape[-1] // 2]
        return replace(features, base=base)

    support = replace(episode.support, features=split(episode.support.features, episode.support.labels))
    query = split(episode.query.features, episode.query.labels)
    truth = map_labels(episode.query.labels, query.size) == 6
    shares = []
    for mined in (1, 2):
        method = BaseClassMining(mined=mined, balanced=True)
        method.learn(support)
        found = method.scores(query).argmax(dim=1)
        assert len(method.confusions) == mined
        assert (found == 6)[~torch.isin(query.base.argmax(dim=1), torch.tensor([0, 2]))].sum() == 0
        shares.append((found == 6)[truth].float().mean())
    assert shares[1] > shares[0] + 0.2


def test_balanced_negatives_weigh_as_much_as_the_novel_positions() -> None:
    support = said(make_episode(2, 1, seed=3, dtype=torch.float64).support, {6: 0})
    method = BaseClassMining(options=EXACT, balanced=True)
    method.learn(support)
    labels = map_labels(support.labels, support.features.size)
    samples, targets = [], []
    for i, y, x in np.ndindex(*labels.shape):
        if int(labels[i, y, x]) != 255:
            samples.append(slow_sample(support.features, i, y, x))
            targets.append(int(labels[i, y, x] == 6))
    share = min(1.0, sum(targets) / (len(targets) - sum(targets)))
    model = reference(np.stack(samples), np.array(targets), {0: share, 1: 1.0})
    found = method.confusions[0].classifier
    np.testing.assert_allclose((found.rows[1] - found.rows[0]).numpy(), model.coef_[0], atol=1e-4)
