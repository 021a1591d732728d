"""Rows that join the base classifier: fitted ones and centred prototypes, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.cases import make_episode, map_labels
from torch.nn import functional as F

from gfss.features.episodes import Support
from gfss.methods.prototypes import RATE, STEPS, Imprint, NormalisedParameterFusion, fitted_rows, novel_prototypes


def samples_of(support: Support) -> tuple[np.ndarray, list[int]]:
    """Features and labels (0 for no novel class) of the support positions that are not void."""
    labels = map_labels(support.labels, support.features.size)
    rows, truth = [], []
    for i, y, x in np.ndindex(*labels.shape):
        label = int(labels[i, y, x])
        if label != 255:
            rows.append(support.features.bottleneck[i, :, y, x].double().numpy())
            truth.append(max(0, label - support.base))
    return np.stack(rows), truth


def test_rows_are_fitted_as_the_paper_fits_its_classifier() -> None:
    assert (STEPS, RATE) == (50, 0.1)


@pytest.mark.parametrize(("shots", "novel"), [(1, 1), (2, 1), (1, 3)])
def test_fitted_rows_equal_plain_descent(shots: int, novel: int) -> None:
    support = make_episode(shots, novel, dtype=torch.float64).support
    samples, truth = samples_of(support)
    counts = np.bincount(truth, minlength=novel + 1)
    start = torch.rand(novel + 1, samples.shape[1], generator=torch.Generator().manual_seed(0))
    rows = (2 * start.double().numpy() - 1) / np.sqrt(samples.shape[1])
    for _ in range(STEPS):
        step, total = np.zeros_like(rows), 0.0
        for x, label in zip(samples, truth, strict=True):
            powers = np.exp(rows @ x - (rows @ x).max())
            p = powers / powers.sum()
            p[label] -= 1
            weight = counts[0] / counts[label]
            step += weight * np.outer(p, x)
            total += weight
        rows = rows - RATE * step / total
    np.testing.assert_allclose(fitted_rows(support).numpy(), rows[1:], atol=1e-6)


def test_fitted_rows_leave_the_start_to_the_seed() -> None:
    support = make_episode().support
    torch.manual_seed(1)
    first = fitted_rows(support)
    torch.manual_seed(2)
    assert torch.equal(first, fitted_rows(support))


@pytest.mark.parametrize(("shots", "novel"), [(1, 1), (2, 3)])
def test_centred_imprinting_is_the_distance_from_the_mean(shots: int, novel: int) -> None:
    episode = make_episode(shots, novel, dtype=torch.float64)
    support, query = episode.support, episode.query.features
    method = Imprint(centred=True)
    method.learn(support)
    samples, _ = samples_of(support)
    mean = torch.from_numpy(samples.mean(axis=0))
    length = support.base_rows[1:].norm(dim=1).mean()
    rows = F.normalize(novel_prototypes(support) - mean, dim=1) * length
    expected = torch.einsum("nc,qchw->qnhw", rows, query.bottleneck - mean[:, None, None])
    torch.testing.assert_close(method.scores(query)[:, support.base + 1 :], expected)
    torch.testing.assert_close(method.scores(query)[:, : support.base + 1], query.base)


def test_names() -> None:
    methods = (Imprint(), Imprint(centred=True), NormalisedParameterFusion(), NormalisedParameterFusion(fitted=True))
    assert [method.name for method in methods] == ["imprint", "imprint-centred", "npf", "npf-fitted"]
