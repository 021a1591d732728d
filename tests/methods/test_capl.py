"""CAPL against its formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.cases import SIZE, make_context, make_episode
from tests.methods.slow import (
    Array,
    array,
    convolve,
    cosine,
    cross_entropy,
    masked_sum,
    ready,
    relu,
    shares,
    sigmoid,
    softmax,
    unit,
)

from gfss.features.episodes import Support
from gfss.methods.capl import PUBLISHED, Capl, CaplOptions

KEPT = (0, 1, 2, 4, 5)  # base class 3 plays the novel class


def slow_embed(p: dict[str, Array], maps: Array, raw: bool = False) -> Array:
    x = convolve(maps, p["project.weight"])
    if raw:
        return x
    return np.stack([[unit(x[:, i, j]) for j in range(x.shape[2])] for i in range(x.shape[1])]).transpose(2, 0, 1)


def slow_register(p: dict[str, Array], support: Support, raw: bool = False, training: bool = False) -> list[Array]:
    """The rows P' of all classes after registration."""
    embedded = [slow_embed(p, array(maps), raw and not training) for maps in support.features.bottleneck]

    def mean(position: int, label: int) -> Array | None:
        own = [image for image, owner in enumerate(support.owners) if owner == position]
        masks = [shares(support.labels[image], label, SIZE) for image in own]
        area = sum(mask.sum() for mask in masks)
        if area == 0:
            return None
        return sum(masked_sum(embedded[image], mask) for image, mask in zip(own, masks, strict=True)) / area

    rows: list[Array] = []
    for label, full in enumerate(support.base_labels):
        known = p["prototypes"][full]
        known = unit(known) if raw and training else known
        means = [mean(position, label) for position in range(support.novel)]
        seen = sum(known if m is None else m for m in means) / support.novel
        if not (raw and training):
            seen, known = unit(seen), unit(known) if raw else known
        hidden = relu(p["gate.0.weight"] @ np.concatenate([known, seen]) + p["gate.0.bias"])
        gate = sigmoid(float(p["gate.2.weight"][0] @ hidden + p["gate.2.bias"][0]))
        row = gate * known + (1 - gate) * seen
        rows.append(row if raw and training else unit(row))
    for position, label in enumerate(support.novel_labels):
        row = mean(position, label)
        assert row is not None
        rows.append(unit(row))
    return rows


def slow_enriched(p: dict[str, Array], support: Support, rows: list[Array], x: Array) -> list[Array]:
    """Base rows D + P' for one query; novel rows stay."""
    out: list[Array] = []
    pixels = [x[:, i, j] for i in range(x.shape[1]) for j in range(x.shape[2])]
    for label, row in enumerate(rows):
        if label >= len(support.base_labels):
            out.append(row)
            continue
        known = p["prototypes"][support.base_labels[label]]
        attention = softmax([10 * cosine(pixel, known) for pixel in pixels])
        summary = sum(a * pixel for a, pixel in zip(attention, pixels, strict=True))
        trust = max(0.0, cosine(summary, known))
        out.append(trust * summary + (1 - trust) * known + row)
    return out


def slow_scores(x: Array, rows: list[Array]) -> Array:
    return np.array(
        [[[10 * cosine(x[:, i, j], row) for j in range(x.shape[2])] for i in range(x.shape[1])] for row in rows]
    )


def test_scores_and_loss_follow_the_formulas() -> None:
    method = Capl(make_context(base=5).model.head)
    p = ready(method)
    episode = make_episode(shots=2, novel=2, base=4)
    support = replace(episode.support, base_labels=KEPT)
    rows = slow_register(p, support)
    queries = [slow_embed(p, array(maps)) for maps in episode.query.features.bottleneck]
    enriched = [slow_scores(x, slow_enriched(p, support, rows, x)) for x in queries]
    method.learn(support)
    np.testing.assert_allclose(array(method.scores(episode.query.features)), enriched, atol=1e-5)

    expected, pixels = 0.0, 0
    for x, scores, labels in zip(queries, enriched, episode.query.labels, strict=True):
        part, count = cross_entropy(scores, labels)
        expected += 0.5 * part + 0.5 * cross_entropy(slow_scores(x, rows), labels)[0]
        pixels += count
    total, counted = method.loss(replace(episode, support=support))
    assert int(counted) == pixels
    assert float(total) / pixels == pytest.approx(expected / pixels, abs=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_the_published_form_mixes_raw_vectors(training: bool) -> None:
    method = Capl(make_context(base=5).model.head, replace(PUBLISHED, background=1.0))
    p = ready(method)
    episode = make_episode(shots=2, novel=1, base=4)
    support = replace(episode.support, base_labels=KEPT)
    method.net.train(training)
    rows = slow_register(p, support, raw=True, training=training)
    queries = [slow_embed(p, array(maps), raw=True) for maps in episode.query.features.bottleneck]
    expected = [slow_scores(x, slow_enriched(p, support, rows, x)) for x in queries]
    method.learn(support)
    np.testing.assert_allclose(array(method.scores(episode.query.features)), expected, atol=1e-5)


def test_it_starts_at_the_cosine_with_the_base_classifier() -> None:
    context = make_context()
    method = Capl(context.model.head)
    maps = make_episode().query.features.bottleneck
    rows = context.model.head.classifier.weight[:, :, 0, 0]
    expected = 10 * torch.cosine_similarity(maps[:, None], rows[None, :, :, None, None], dim=2)
    x = method.net.embed(make_episode().query.features)
    torch.testing.assert_close(method.net.cosine(x, method.net.prototypes), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_background_takes_part_in_training_as_often_as_asked(share: float) -> None:
    method = Capl(make_context().model.head, CaplOptions(background=share))
    support = make_episode().support
    method.learn(support)
    at_test = method.rows
    method.net.train()
    method.learn(support)
    plain = torch.nn.functional.normalize(method.net.prototypes[0], dim=0)
    torch.testing.assert_close(method.rows[0], at_test[0] if share else plain)
    torch.testing.assert_close(method.rows[1:], at_test[1:])
    assert not torch.allclose(at_test[0], plain)
