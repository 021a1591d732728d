"""Guided upsampling against a slow reference, and what it leaves alone."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gfss.models.ops.upsample import EVENNESS, LIMIT, colour_slopes, with_detail


def windows(row: int, column: int, height: int, width: int) -> list[tuple[int, int]]:
    """Positions around one, those beyond the border repeated."""
    return [
        (min(max(row + i, 0), height - 1), min(max(column + j, 0), width - 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)
    ]


def slow_slopes(scores: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Ridge regression of the score on the colour in every window, averaged over the windows around a position."""
    height, width = scores.shape
    fitted = np.zeros((3, height, width))
    for row in range(height):
        for column in range(width):
            places = windows(row, column, height, width)
            x = np.array([colours[:, i, j] for i, j in places], dtype=np.float64)
            y = np.array([np.clip(scores[i, j], -LIMIT, LIMIT) for i, j in places])
            x, y = x - x.mean(axis=0), y - y.mean()
            fitted[:, row, column] = np.linalg.solve(x.T @ x / 9 + EVENNESS * np.eye(3), x.T @ y / 9)
    smooth = np.zeros_like(fitted)
    for row in range(height):
        for column in range(width):
            places = windows(row, column, height, width)
            smooth[:, row, column] = np.mean([fitted[:, i, j] for i, j in places], axis=0)
    return smooth


@given(st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_slopes_are_those_of_ridge_regression_in_every_window(seed):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(2, 5, 6, generator=generator, dtype=torch.float64) * 4
    colours = torch.rand(3, 5, 6, generator=generator, dtype=torch.float64)
    found = colour_slopes(maps, colours)
    for number in range(2):
        assert np.allclose(found[number].numpy(), slow_slopes(maps[number].numpy(), colours.numpy()), atol=1e-6)


def test_an_even_image_adds_nothing():
    maps, colours = torch.randn(1, 5, 5), torch.full((3, 5, 5), 0.3)
    assert colour_slopes(maps, colours).abs().max() < 1e-3


def test_a_score_that_is_a_function_of_colour_is_found_again_at_every_pixel():
    image = torch.rand(3, 9, 9)
    slopes = torch.tensor([2.0, -1.0, 0.5])[None, :, None, None].expand(1, 3, 9, 9)
    coarse = image.mean(dim=(1, 2), keepdim=True).expand(3, 9, 9)
    found = with_detail((slopes * coarse).sum(dim=1), slopes, coarse, image)
    assert torch.allclose(found, (slopes * image).sum(dim=1), atol=1e-5)
