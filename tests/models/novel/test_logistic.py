"""Logistic regression over levels of several strides, against slow references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.novel.logistic import (
    LogisticHead,
    LogisticOptions,
    features_at,
    finest_grid,
    fit_logistic,
    unit_maps,
)

SHAPES = {"fine": (3, 17), "middle": (4, 9), "deep": (5, 5)}


def maps(seed: int = 0, batch: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return unit_maps({n: torch.randn(batch, c, s, s, generator=generator) for n, (c, s) in SHAPES.items()})


def upsampled(levels: dict[str, Tensor]) -> Tensor:
    """All levels at the finest resolution, as torch does it."""
    size = finest_grid(levels)
    return torch.cat([F.interpolate(x, size=size, mode="bilinear", align_corners=True) for x in levels.values()], dim=1)


def newton(features: np.ndarray, labels: np.ndarray, weights: np.ndarray, l2: float) -> tuple[np.ndarray, float]:
    """The same objective in plain numpy, by Newton's method with halved steps, until the gradient is gone."""
    weights = weights / weights.sum()
    mean = weights @ features
    spread = np.sqrt(weights @ (features - mean) ** 2)
    inputs = np.hstack([(features - mean) / spread, np.ones((len(features), 1))])
    penalty = l2 * np.append(np.ones(features.shape[1]), 0)
    row = np.zeros(inputs.shape[1])

    def objective(row: np.ndarray) -> float:
        odds = inputs @ row
        return float(weights @ (np.logaddexp(0, odds) - labels * odds) + (penalty * row**2).sum() / 2)

    for _ in range(100):
        found = 1 / (1 + np.exp(-inputs @ row))
        gradient = inputs.T @ (weights * (found - labels)) + penalty * row
        if np.abs(gradient).max() < 1e-12:
            break
        curvature = (inputs * (weights * found * (1 - found))[:, None]).T @ inputs + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        while objective(row - step) > objective(row) and np.abs(step).max() > 1e-14:
            step = step / 2
        row = row - step
    weight = row[:-1] / spread
    return weight, float(row[-1] - weight @ mean)


@pytest.mark.parametrize("l2", [0.003, 0.03, 1.0])
@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_the_fit_is_that_of_newtons_method(l2: float, overlap: float) -> None:
    rng = np.random.default_rng(3)
    labels = rng.random(120) < 0.3
    features = rng.normal(size=(120, 6)) * [1, 5, 0.1, 1, 1, 2] + 7
    features[:, 0] += labels * (1 if overlap else 9)
    weights = rng.uniform(0.1, 1, 120)
    weight, bias = newton(features, labels.astype(float), weights, l2)
    found, offset = fit_logistic(
        torch.tensor(features), torch.tensor(labels), torch.tensor(weights), LogisticOptions(l2, 500)
    )
    expected = features @ weight + bias
    assert np.allclose(features @ found.numpy() + float(offset), expected, atol=0.01 * np.abs(expected).max())


def test_a_given_mean_and_spread_only_change_the_penalty() -> None:
    """Twice the spread is four times the penalty."""
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(60, 4, generator=generator), torch.arange(60) % 2
    weights = torch.ones(60)
    own = (torch.zeros(4), torch.ones(4))
    wide = (torch.full((4,), 3.0), torch.full((4,), 2.0))
    first = fit_logistic(features, labels, weights, LogisticOptions(0.02, 500), own)
    second = fit_logistic(features, labels, weights, LogisticOptions(0.005, 500), wide)
    assert torch.allclose(features @ first[0] + first[1], features @ second[0] + second[1], atol=2e-3)


def test_one_kind_of_positions_and_numbers_that_are_none_are_refused() -> None:
    features, weights = torch.randn(4, 2), torch.ones(4)
    for labels in (torch.zeros(4), torch.ones(4)):
        with pytest.raises(GfssError, match="one kind is missing"):
            fit_logistic(features, labels, weights)
    features[0, 0] = float("nan")
    with pytest.raises(GfssError, match="NaN or infinite"):
        fit_logistic(features, torch.tensor([0, 1, 0, 1]), weights)


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(40)))
def test_the_order_of_positions_changes_nothing_but_rounding(order: list[int]) -> None:
    generator = torch.Generator().manual_seed(5)
    features, labels = torch.randn(40, 5, generator=generator), torch.arange(40) % 3 == 0
    weights = torch.rand(40, generator=generator) + 0.1
    options = LogisticOptions(iterations=300)
    weight, bias = fit_logistic(features, labels, weights, options)
    other, offset = fit_logistic(features[order], labels[order], weights[order], options)
    assert torch.allclose(features @ weight + bias, features @ other + offset, atol=2e-3)


def test_logits_are_the_row_on_upsampled_levels() -> None:
    generator = torch.Generator().manual_seed(1)
    head = LogisticHead(torch.randn(2, 12, generator=generator), torch.randn(2, generator=generator))
    levels = maps(batch=3)
    expected = torch.einsum("kc,bchw->bkhw", head.weight, upsampled(levels)) + head.bias[:, None, None]
    assert torch.allclose(head.logits(levels), expected, atol=1e-5)
    assert torch.allclose(torch.stack(head.parts(levels)).sum(dim=0) + head.bias[:, None, None], expected, atol=1e-5)


def test_other_features_than_those_it_was_fitted_on_are_refused() -> None:
    head = LogisticHead(torch.zeros(1, 11), torch.zeros(1))
    with pytest.raises(GfssError, match="fitted on 11 channels, these features have 12"):
        head.logits(maps())


def test_features_at_positions_are_those_of_upsampled_levels() -> None:
    levels = maps()
    rows, columns = torch.meshgrid(torch.arange(17), torch.arange(17), indexing="ij")
    found = features_at(levels, rows.flatten(), columns.flatten())
    assert torch.allclose(found.T.view(12, 17, 17), upsampled(levels)[0], atol=1e-5)


def test_unit_maps_have_length_one_and_zeros_stay_zero() -> None:
    level = torch.randn(1, 6, 3, 3)
    level[..., 0, 0] = 0
    lengths = unit_maps({"a": level})["a"].norm(dim=1)[0]
    assert lengths[0, 0] == 0
    assert torch.allclose(lengths.flatten()[1:], torch.ones(8))
