"""ACASTLE against its formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.cases import SIZE, make_context, make_episode
from tests.methods.slow import Array, array, classify, cross_entropy, masked_sum, ready, shares, softmax, unit

from gfss.common.errors import GfssError
from gfss.features.episodes import Support
from gfss.methods.acastle import PUBLISHED, Acastle


def slow_prototypes(support: Support) -> list[Array]:
    prototypes: list[Array] = []
    for position in range(support.novel):
        means: list[Array] = []
        for image, owner in enumerate(support.owners):
            if owner == position:
                mask = shares(support.labels[image], support.base + 1 + position, SIZE)
                means.append(masked_sum(array(support.features.bottleneck[image]), mask) / mask.sum())
        prototypes.append(sum(means) / len(means))
    return prototypes


def slow_rows(p: dict[str, Array], support: Support) -> list[Array]:
    return slow_synthesis(p, [*array(support.base_rows), *slow_prototypes(support)])


def slow_synthesis(p: dict[str, Array], entering: list[Array]) -> list[Array]:
    rows = [unit(row) for row in entering]
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


def test_the_published_loss_is_the_mean_over_tasks_of_five_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task some fake novel classes have their prototypes as rows, the others those of the base classifier."""
    assert (PUBLISHED.drawn, PUBLISHED.ways, PUBLISHED.tasks) == (16, 5, 256)
    method = Acastle(make_context(base=5).model.head, replace(PUBLISHED, ways=1, tasks=2))
    p = ready(method)
    episode = make_episode(novel=2, base=4)
    fake = torch.randn(2, episode.support.base_rows.shape[1], generator=torch.Generator().manual_seed(1))
    episode = replace(episode, support=replace(episode.support, fake_rows=fake))
    orders = iter([torch.tensor([0, 1]), torch.tensor([1, 0])])
    monkeypatch.setattr(torch, "randperm", lambda count: next(orders))
    prototypes = slow_prototypes(episode.support)
    expected, pixels = 0.0, 0
    for chosen in (0, 1):
        rows = [*array(episode.support.base_rows), *array(fake)]
        rows[5 + chosen] = prototypes[chosen]
        for maps, labels in zip(episode.query.features.bottleneck, episode.query.labels, strict=True):
            part, count = cross_entropy(classify(array(maps), slow_synthesis(p, rows)), labels)
            expected += part / 2
            pixels += count
    total, counted = method.loss(episode)
    assert int(counted) == pixels / 2
    assert float(total) / int(counted) == pytest.approx(expected / int(counted), abs=1e-5)


def test_true_novel_classes_have_no_rows_of_the_base_classifier() -> None:
    method = Acastle(make_context().model.head, PUBLISHED)
    with pytest.raises(GfssError, match="no rows of true novel classes"):
        method.loss(make_episode())


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
