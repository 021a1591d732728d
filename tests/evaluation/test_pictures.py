"""Colours and heat maps."""

from __future__ import annotations

import numpy as np
import torch

from gfss.evaluation.pictures import NOVEL_COLOUR, heat_map, overlay, palette


def test_palette_is_the_voc_one() -> None:
    expected = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 3: (128, 128, 0), 15: (192, 128, 128)}
    assert {label: palette(label) for label in expected} == expected


def test_palette_has_no_doubles() -> None:
    assert len({palette(i) for i in range(256)}) == 256


def test_overlay_shows_novel_classes_in_one_colour() -> None:
    image = np.full((1, 3, 3), 100, dtype=np.uint8)
    shown = overlay(image, np.array([[0, 1, 3]]), base=2, strength=1.0)
    assert tuple(shown[0, 2]) == NOVEL_COLOUR
    assert tuple(shown[0, 1]) == palette(1)
    assert (shown[0, 0] < 100).all()


def test_heat_map_goes_from_blue_to_red() -> None:
    picture = heat_map(np.zeros((1, 2, 3), dtype=np.uint8), torch.tensor([[0.0, 1.0]]))
    assert picture[0, 0, 2] > picture[0, 0, 0]
    assert picture[0, 1, 0] > picture[0, 1, 2]
