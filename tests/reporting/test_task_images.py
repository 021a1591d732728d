"""Colours and heat maps."""

from __future__ import annotations

import numpy as np
import torch

from gfss.reporting.task_images import NOVEL_COLOUR, heat_map, marked


def test_novel_classes_share_one_colour_that_stands_out() -> None:
    image = np.full((1, 4, 3), 100, dtype=np.uint8)
    background, known, new, newer = marked(image, np.array([[0, 1, 3, 4]]), base=2)[0].astype(float)
    np.testing.assert_allclose(new, 0.2 * 70 + 0.8 * np.array(NOVEL_COLOUR), atol=1)
    assert (new == newer).all()
    assert (background == 70).all()
    assert known.max() > known.min()  # has a colour
    assert known[0] < new[0]


def test_heat_map_goes_from_blue_to_red() -> None:
    image = heat_map(np.zeros((1, 2, 3), dtype=np.uint8), torch.tensor([[0.0, 1.0]]))
    assert image[0, 0, 2] > image[0, 0, 0]
    assert image[0, 1, 0] > image[0, 1, 2]
