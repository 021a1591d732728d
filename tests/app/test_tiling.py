"""Large images in tiles."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gfss.app.segmentation import OVERLAP, tile_starts, tiled_probabilities

SIZE, TILE = 65, 64


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5000), st.integers(16, 512))
def test_tiles_cover_a_side_with_overlap(length: int, tile: int) -> None:
    starts = tile_starts(length, tile)
    assert starts[0] == 0
    assert starts[-1] == max(0, length - tile)
    steps = np.diff(starts)
    assert (steps > 0).all()
    assert (steps <= np.ceil(tile * (1 - OVERLAP))).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(20, 260), st.integers(20, 260))
def test_constant_scores_stay_constant(height: int, width: int) -> None:
    logits = torch.tensor([0.0, 1.0, -1.0])[:, None, None].expand(3, 17, 17)
    whole = np.concatenate(list(tiled_probabilities(np.zeros((height, width, 3), np.uint8), SIZE, lambda _: logits)), 1)
    assert whole.shape == (3, height, width)
    assert np.allclose(whole, logits[:, :1, :1].softmax(dim=0).numpy(), atol=1e-6)


def test_every_pixel_is_judged_where_it_is() -> None:
    """Scores that say "bright here" find a bright square in a large image at its place."""

    def bright(square: np.ndarray) -> torch.Tensor:
        value = torch.from_numpy(square[::4, ::4, 0].astype(np.float32)) / 255
        return torch.stack([1 - value, value]) * 20

    image = np.zeros((200, 330, 3), dtype=np.uint8)
    image[96:144, 196:260] = 255
    mask = np.concatenate([strip.argmax(axis=0) for strip in tiled_probabilities(image, SIZE, bright)])
    truth = image[..., 0] == 255
    assert (mask == truth).mean() > 0.98
    assert mask[100:140, 200:256].all()


def test_one_tile_is_the_whole_image() -> None:
    logits = torch.randn(3, 17, 17, generator=torch.Generator().manual_seed(1))
    (strip,) = tiled_probabilities(np.zeros((TILE, TILE, 3), np.uint8), SIZE, lambda _: logits)
    from gfss.app.network import probabilities

    assert np.allclose(strip, probabilities(logits, SIZE, (TILE, TILE)), atol=1e-6)
