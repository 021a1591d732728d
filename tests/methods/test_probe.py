"""Logistic regression against scikit-learn, and the linear probe built on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.cases import STRIDE, make_episode, map_labels

from gfss.common.errors import GfssError
from gfss.methods.probe import LinearProbe, ProbeOptions, fit_probe, position_labels
from gfss.models.base_model import Features

EXACT = ProbeOptions(iterations=2000, tolerance=1e-10)


def reference(samples: np.ndarray, labels: np.ndarray, weights: dict[int, float] | None = None) -> Any:
    """scikit-learn's regression, run to the end."""
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is the reference here")
    return linear_model.LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000, class_weight=weights).fit(samples, labels)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_scikit_learn(classes: int, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(classes)
    samples = torch.randn(90, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (90,), generator=generator)
    weights = torch.arange(1.0, classes + 1) if weighted else None
    found = fit_probe(samples, labels, classes, EXACT, weights)
    expected = reference(
        samples.numpy(), labels.numpy(), dict(enumerate(weights.tolist())) if weights is not None else None
    )
    rows, biases = found.rows.numpy(), found.biases.numpy()
    if classes == 2:
        rows, biases = rows[1:] - rows[:1], biases[1:] - biases[:1]
    else:  # a constant added to all biases changes nothing
        biases, expected.intercept_ = biases - biases.mean(), expected.intercept_ - expected.intercept_.mean()
    np.testing.assert_allclose(rows, expected.coef_, atol=1e-5)
    np.testing.assert_allclose(biases, expected.intercept_, atol=1e-5)


def test_refuses_features_that_are_no_numbers() -> None:
    with pytest.raises(GfssError, match="NaN"):
        fit_probe(torch.full((2, 3), torch.nan), torch.tensor([0, 1]), 2, ProbeOptions())


def test_small_objects_keep_a_position() -> None:
    support = make_episode().support
    assert torch.equal(position_labels(support).long(), map_labels(support.labels, support.features.size))
    labels = torch.zeros_like(support.labels)
    labels[0, 2 * STRIDE + 1 : 2 * STRIDE + 3, 5 * STRIDE + 2] = support.base + 1  # between the positions
    found = position_labels(replace(support, labels=labels))
    assert int((found == support.base + 1).sum()) == 1
    y, x = (found[0] == support.base + 1).nonzero()[0].tolist()
    assert abs(y - 2) <= 1
    assert abs(x - 5) <= 1


def test_linear_probe_equals_the_slow_implementation() -> None:
    """Normalised levels, weights of "none" positions / own positions, softmax of each classifier."""
    episode = make_episode(2, 2, dtype=torch.float64)
    support, query = episode.support, episode.query.features
    method = LinearProbe(options=EXACT)
    method.learn(support)
    found = method.scores(query)

    labels = map_labels(support.labels, support.features.size)
    samples, targets = [], []
    for i, y, x in np.ndindex(*labels.shape):
        if labels[i, y, x] != 255:
            samples.append(slow_sample(support.features, i, y, x))
            targets.append(max(0, int(labels[i, y, x]) - support.base))
    counts = np.bincount(targets)
    model = reference(np.stack(samples), np.array(targets), {c: counts[0] / counts[c] for c in range(3)})
    for i, y, x in np.ndindex(found.shape[0], *query.size):
        base = np.exp(query.base[i, :, y, x].numpy())
        novel = model.predict_proba(slow_sample(query, i, y, x)[None])[0]
        expected = np.concatenate([base / base.sum(), novel[1:]])
        np.testing.assert_allclose(found[i, :, y, x].numpy(), expected, atol=1e-5)


def slow_sample(features: Features, image: int, y: int, x: int) -> np.ndarray:
    """What a linear classifier reads at one position: three maps, each scaled to length one."""
    parts = [features.levels["layer3"], features.levels["layer4"], features.bottleneck]
    vectors = [part[image, :, y, x].numpy() for part in parts]
    return np.concatenate([vector / max(np.sqrt((vector**2).sum()), 1e-12) for vector in vectors])
