"""What a query says for every class by itself, against plain loops, and the properties that this has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods import slow
from tests.models.calibrators.cases import SIZE, make_features, make_scores
from tests.models.calibrators.support_similarity_loops import Vector, inner, unit, vectors
from torch import Tensor

from gfss.models.base_model import Features
from gfss.models.calibrators.pcn_support import self_similarity

NAMES = ("layer3", "layer4", "bottleneck")
BASE, NOVEL = 3, 2
CLASSES = 1 + BASE + NOVEL


def shared_scores(size: tuple[int, int] = SIZE, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random scores of two images that sum to one over the classes."""
    scores = make_scores(BASE, NOVEL, size)
    return (scores / scores.sum(dim=1, keepdim=True)).to(dtype)


def slow_cohesion(query: Features, scores: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """One number at a time."""
    images, classes, height, width = scores.shape
    found = np.zeros((images, classes, len(names), height, width))
    for m, name in enumerate(names):
        maps = vectors(query, name)
        for image, label in np.ndindex(images, classes):
            gathered: Vector = [0.0] * len(maps[image, 0, 0])
            for y, x in np.ndindex(height, width):
                weight = float(scores[image, label, y, x]) ** 2
                gathered = [old + weight * new for old, new in zip(gathered, maps[image, y, x], strict=True)]
            middle = unit(gathered)
            for y, x in np.ndindex(height, width):
                found[image, label, m, y, x] = inner(maps[image, y, x], middle)
    return found


def changed(query: Features, factor: Tensor) -> Features:
    """All maps multiplied."""
    levels = {name: factor * level for name, level in query.levels.items()}
    return replace(query, levels=levels, bottleneck=factor * query.bottleneck)


@pytest.mark.parametrize("names", [NAMES, ("bottleneck", "pooled"), ("layer4",)], ids=" ".join)
@pytest.mark.parametrize("size", [SIZE, (6, 5)])
def test_cohesion_equals_loops(names: tuple[str, ...], size: tuple[int, int]) -> None:
    query, scores = make_features(size), shared_scores(size)
    query.bottleneck[0, :, 1, 2] = 0  # nothing was seen here
    found = self_similarity(query, scores, names)
    assert found.shape == (2, CLASSES, len(names), *size)
    np.testing.assert_allclose(found, slow_cohesion(query, slow.array(scores), names), rtol=0, atol=1e-9)


def test_cohesion_equals_loops_in_single_precision() -> None:
    query, scores = make_features(dtype=torch.float32), shared_scores(dtype=torch.float32)
    found = self_similarity(query, scores, NAMES)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, slow_cohesion(query, slow.array(scores), NAMES), rtol=0, atol=1e-5)


def test_values_are_cosines() -> None:
    """Also where vectors point in all directions; with as many images as classes, none takes the place of the other."""
    generator = torch.Generator().manual_seed(6)
    level = torch.randn(CLASSES, 3, *SIZE, generator=generator, dtype=torch.float64)
    query = Features({"layer4": level}, (), level, level)
    scores = torch.rand(CLASSES, CLASSES, *SIZE, generator=generator, dtype=torch.float64)
    found = self_similarity(query, scores, ("layer4",))
    assert found.abs().max() <= 1 + 1e-9
    assert found.min() < -0.5 < 0.5 < found.max()
    np.testing.assert_allclose(found, slow_cohesion(query, slow.array(scores), ("layer4",)), rtol=0, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(CLASSES)))
def test_permuting_classes_permutes_the_result(order: list[int]) -> None:
    query, scores = make_features(), shared_scores()
    expected = self_similarity(query, scores, NAMES)[:, order]
    torch.testing.assert_close(self_similarity(query, scores[:, order], NAMES), expected, rtol=0, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(0, CLASSES - 1), st.sampled_from([1e-3, 0.2, 30.0]))
def test_lengths_of_features_and_scores_of_a_class_do_not_matter(seed: int, label: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, scores = make_features(), shared_scores()
    expected = self_similarity(query, scores, NAMES)
    lengths = 0.1 + 5 * torch.rand(2, 1, *SIZE, generator=generator, dtype=torch.float64)  # another one everywhere
    torch.testing.assert_close(self_similarity(changed(query, lengths), scores, NAMES), expected, rtol=0, atol=1e-9)
    scaled = scores.clone()
    scaled[:, label] *= factor
    torch.testing.assert_close(self_similarity(query, scaled, NAMES), expected, rtol=0, atol=1e-9)


def test_a_query_that_is_alike_everywhere_is_like_every_class() -> None:
    query, scores = make_features(), shared_scores()
    everywhere = torch.ones(2, 1, *SIZE, dtype=torch.float64)
    same = {name: (level[:, :, 3:4, 3:4].abs() + 0.1) * everywhere for name, level in query.levels.items()}
    alike = replace(query, levels=same, bottleneck=(query.bottleneck[:, :, 2:3, 2:3] + 0.1) * everywhere)
    found = self_similarity(alike, scores, NAMES)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=1e-9)


def test_sure_positions_count_more_than_doubtful_ones() -> None:
    """One class is sure of the left half, another of the right: each is like what it is sure of."""
    level = torch.zeros(1, 2, 4, 6, dtype=torch.float64)
    level[:, 0, :, :3], level[:, 1, :, 3:] = 1, 1
    scores = torch.full((1, 2, 4, 6), 0.1, dtype=torch.float64)
    scores[:, 0, :, :3], scores[:, 1, :, 3:] = 0.9, 0.9
    found = self_similarity(Features({"layer4": level}, (), level, level), scores, ("layer4",))[0, :, 0]
    near, far = 81 / np.hypot(81, 1), 1 / np.hypot(81, 1)  # squares of nine to one
    expected = torch.full((2, 4, 6), far, dtype=torch.float64)
    expected[0, :, :3], expected[1, :, 3:] = near, near
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_images_of_a_batch_do_not_touch_each_other() -> None:
    query, scores = make_features(), shared_scores()
    together = self_similarity(query, scores, NAMES)
    for i in range(2):
        alone = self_similarity(query[[i]], scores[[i]], NAMES)
        torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-12)
