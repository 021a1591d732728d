"""ACASTLE against its formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.cases import SIZE, make_context, make_episode
from tests.methods.slow import Array, array, classify, cross_entropy, masked_sum, ready, shares, softmax, unit

from gfss.features.episodes import Support
from gfss.methods.acastle import Acastle


def slow_rows(p: dict[str, Array], support: Support) -> list[Array]:
    prototypes: list[Array] = []
    for position in range(support.novel):
        means: list[Array] = []
        for image, owner in enumerate(support.owners):
            if owner == position:
                mask = shares(support.labels[image], support.base + 1 + position, SIZE)
                means.append(masked_sum(array(support.features.bottleneck[image]), mask) / mask.sum())
        prototypes.append(sum(means) / len(means))
    rows = [unit(row) for row in [*array(support.base_rows), *prototypes]]
    known = [*rows, *p["dictionary"]]
    out: list[Array] = []
    for row in rows:
        query = p["query.weight"] @ row
        attention = softmax([query @ (p["key.weight"] @ other) / np.sqrt(len(row)) for other in known])
        taken = sum(a * (p["value.weight"] @ other) for a, other in zip(attention, known, strict=True))
        out.append(unit(row + p["out.weight"] @ taken))
    return out


def test_scores_and_loss_follow_the_formulas() -> None:
    method = Acastle(make_context(base=5).model.head)
    p = ready(method)
    episode = make_episode(shots=2, novel=2, base=4)
    rows = slow_rows(p, episode.support)
    expected = [classify(array(maps), rows) for maps in episode.query.features.bottleneck]
    method.learn(episode.support)
    np.testing.assert_allclose(array(method.scores(episode.query.features)), expected, atol=1e-5)
    parts = [cross_entropy(s, labels) for s, labels in zip(expected, episode.query.labels, strict=True)]
    total, pixels = method.loss(episode)
    assert int(pixels) == sum(count for _, count in parts)
    assert float(total / pixels) == pytest.approx(sum(part for part, _ in parts) / int(pixels), abs=1e-5)


def test_the_dictionary_has_two_entries_per_base_class() -> None:
    assert Acastle(make_context(base=5).model.head).synthesis.dictionary.shape[0] == 10


def test_dropout_acts_in_training_only() -> None:
    method = Acastle(make_context().model.head)
    episode = make_episode()

    def learned() -> torch.Tensor:
        method.learn(episode.support)
        return method.rows

    assert torch.equal(learned(), learned())
    method.synthesis.train()
    assert not torch.equal(learned(), learned())
