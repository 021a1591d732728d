"""Colours and heat maps."""

from __future__ import annotations

import numpy as np
import torch

from gfss.data.sheet import class_colours
from gfss.evaluation.pictures import NOVEL_COLOUR, heat_map, marked


def test_novel_classes_share_one_colour_and_background_is_darkened() -> None:
    image = np.full((1, 4, 3), 100, dtype=np.uint8)
    shown = marked(image, np.array([[0, 1, 3, 4]]), base=2).astype(float)
    np.testing.assert_allclose(shown[0, 2], 0.4 * 100 + 0.6 * np.array(NOVEL_COLOUR), atol=1)
    assert (shown[0, 2] == shown[0, 3]).all()
    np.testing.assert_allclose(shown[0, 1], 0.4 * 100 + 0.6 * class_colours(2)[1].astype(float), atol=1)
    assert (shown[0, 0] < 100).all()


def test_heat_map_goes_from_blue_to_red() -> None:
    picture = heat_map(np.zeros((1, 2, 3), dtype=np.uint8), torch.tensor([[0.0, 1.0]]))
    assert picture[0, 0, 2] > picture[0, 0, 0]
    assert picture[0, 1, 0] > picture[0, 1, 2]
