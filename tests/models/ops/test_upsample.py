"""Upsampling and class maps against torch's own resampling."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gfss.models.ops.upsample import class_map, interpolation_weights, upsample

SIDES = st.integers(1, 9)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def full_argmax(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """What :func:`class_map` stands for: every class upsampled, then the best one taken."""
    return F.interpolate(scores, size=size, mode="bilinear", align_corners=True).argmax(dim=1)


@settings(max_examples=25, deadline=None)
@given(SIDES, SIDES, st.integers(1, 20), st.integers(1, 20))
def test_upsample_is_bilinear_with_aligned_corners(h: int, w: int, height: int, width: int) -> None:
    maps = randn(2, 3, h, w)
    expected = F.interpolate(maps, size=(height, width), mode="bilinear", align_corners=True)
    torch.testing.assert_close(upsample(maps, (height, width)), expected, rtol=0, atol=1e-12)


def test_upsample_has_the_gradient_of_the_resampling_kernel() -> None:
    maps, weights = randn(1, 2, 7, 5).requires_grad_(), randn(1, 2, 25, 17, seed=1)
    (ours,) = torch.autograd.grad((upsample(maps, (25, 17)) * weights).sum(), maps)
    reference = F.interpolate(maps, size=(25, 17), mode="bilinear", align_corners=True)
    (expected,) = torch.autograd.grad((reference * weights).sum(), maps)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_upsample_takes_any_memory_layout() -> None:
    maps = randn(2, 3, 7, 7)
    last = maps.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(upsample(last, (12, 12)), upsample(maps, (12, 12)), rtol=0, atol=1e-12)


def test_interpolation_weights_share_one_among_two_neighbours() -> None:
    weights = interpolation_weights(7, 25, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(25, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (weights >= 0).all()
    assert (weights > 1e-12).sum(dim=1).max() == 2


def test_weights_first_made_in_inference_mode_serve_training_too() -> None:
    interpolation_weights.cache_clear()
    with torch.inference_mode():
        upsample(torch.rand(1, 1, 4, 4), (11, 11))
    maps = torch.rand(1, 1, 4, 4, requires_grad=True)
    upsample(maps, (11, 11)).sum().backward()
    assert maps.grad is not None
    assert float(maps.grad.sum()) == pytest.approx(121, rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), SIDES, SIDES, st.integers(1, 12), st.sampled_from([0.1, 1.0, 30.0]))
def test_class_map_is_the_full_argmax(seed: int, h: int, w: int, classes: int, spread: float) -> None:
    # one offset per class, so that some classes never win and are left out
    scores = randn(2, classes, h, w, seed=seed) + spread * randn(1, classes, 1, 1, seed=seed + 1)
    ours = class_map(scores, (25, 17))
    assert ours.dtype == torch.uint8
    assert torch.equal(ours.long(), full_argmax(scores, (25, 17)))


def test_class_map_of_probabilities_with_one_sure_class() -> None:
    scores = torch.full((2, 4, 7, 7), 0.01)
    scores[0, 2] = 0.9
    scores[1, 3, :3] = 0.9
    scores[1, 1, 3:] = 0.9
    ours = class_map(scores, (25, 25))
    assert (ours[0] == 2).all()
    assert torch.equal(ours.long(), full_argmax(scores, (25, 25)))


def test_class_map_names_256_classes() -> None:
    scores = torch.zeros(1, 256, 4, 4)
    scores[:, 255] = 1
    assert (class_map(scores, (9, 9)) == 255).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(2, 7), st.integers(1, 9), st.integers(1, 6), st.integers(0, 99))
def test_class_map_of_whole_cells_is_the_full_argmax(h: int, w: int, stride: int, sharpness: int, seed: int) -> None:
    scores = (sharpness * randn(2, 6, h, w, seed=seed)).softmax(dim=1)
    size = (stride * (h - 1) + 1, (stride + 1) * (w - 1) + 1)
    assert torch.equal(class_map(scores, size).long(), full_argmax(scores, size))


def test_class_map_of_whole_cells_gives_ties_to_the_first_class() -> None:
    scores = randn(1, 2, 4, 4)[:, [0, 1, 0, 1]]
    ours = class_map(scores, (25, 25))
    assert set(ours.unique().tolist()) == {0, 1}
