"""Score maps at the size of the image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gfss.app.network import label_map, probabilities
from gfss.data.images import fitted_size, square_label
from gfss.models.ops.upsample import class_map, upsample

SIZE = 65


def scores(seed: int = 0, classes: int = 4) -> torch.Tensor:
    return torch.randn(classes, 17, 17, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 300), st.integers(8, 300), st.integers(0, 9))
def test_masks_have_the_image_size_and_follow_the_probabilities(height: int, width: int, seed: int) -> None:
    mask = label_map(scores(seed), SIZE, (height, width))
    shares = probabilities(scores(seed), SIZE, (height, width))
    assert mask.shape == (height, width)
    assert shares.shape == (4, height, width)
    assert np.allclose(shares.sum(axis=0), 1, atol=1e-5)
    # the winner by logits is the winner by probability, up to ties in rounding
    chosen = np.take_along_axis(shares, mask[None].astype(np.int64), axis=0)[0]
    assert (chosen >= shares.max(axis=0) - 1e-6).all()


@pytest.mark.parametrize("shape", [(64, 48), (48, 64), (67, 40), (100, 80), (120, 80)])
def test_masks_score_what_the_harness_counts(shape: tuple[int, int]) -> None:
    """Brought back to the protocol's geometry, a mask is the harness's class map, pixel for pixel."""
    mask = label_map(scores(), SIZE, shape)
    height, width = fitted_size(*shape, SIZE)
    harness = class_map(scores()[None], (SIZE, SIZE))[0].numpy()[:height, :width]
    assert (square_label(mask, SIZE)[:height, :width] == harness).all()


def test_large_images_get_interpolated_scores() -> None:
    shape = (640, 512)
    height, width = fitted_size(*shape, SIZE)
    crop = upsample(scores()[None], (SIZE, SIZE))[:, :, :height, :width]
    smooth = torch.nn.functional.interpolate(crop, size=shape, mode="bilinear", align_corners=False)[0]
    shares = probabilities(scores(), SIZE, shape)
    # interpolating twice and once differ only between positions of the square
    assert np.abs(shares - smooth.softmax(dim=0).numpy()).max() < 0.1
    assert (label_map(scores(), SIZE, shape) == smooth.argmax(dim=0).numpy()).mean() > 0.99
    assert np.abs(np.diff(shares, axis=1)).max() < 0.05
