"""Geometry of the protocol: long side, multiples of 8, padding."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gfss.data.images import fitted_size, mirrored_image, square_image, square_label, to_tensor

sides = st.integers(1, 700)


@given(height=sides, width=sides, size=st.integers(8, 500))
def test_fitted_size_fills_the_square_in_multiples_of_8(height: int, width: int, size: int) -> None:
    fitted = fitted_size(height, width, size)
    assert all(side % 8 == 0 and 8 <= side <= size for side in fitted)
    assert max(fitted) == size // 8 * 8
    assert (fitted[0] >= fitted[1]) == (height >= width) or fitted[0] == fitted[1]


def test_fitted_size_of_the_paper() -> None:
    assert fitted_size(500, 375, 417) == (416, 312)
    assert fitted_size(416, 416, 417) == (416, 416)
    assert fitted_size(333, 500, 417) == (272, 416)


@settings(deadline=None, max_examples=25)
@given(height=st.integers(8, 80), width=st.integers(8, 80), size=st.integers(16, 96))
def test_labels_are_padded_with_void_and_invent_no_value(height: int, width: int, size: int) -> None:
    label = np.random.default_rng(height).integers(0, 5, (height, width), dtype=np.uint8)
    out = square_label(label, size)
    h, w = fitted_size(height, width, size)
    assert out.shape == (size, size)
    assert (out[h:] == 255).all()
    assert (out[:, w:] == 255).all()
    assert set(np.unique(out[:h, :w])) <= set(np.unique(label))


def test_images_are_padded_with_zeros_at_bottom_and_right() -> None:
    out = square_image(np.full((40, 80, 3), 200, np.uint8), 65)
    assert out.shape == (65, 65, 3)
    assert (out[:32, :64] == 200).all()
    assert (out[32:] == 0).all()
    assert (out[:, 64:] == 0).all()


def test_image_and_label_stay_aligned() -> None:
    label = np.zeros((60, 90), np.uint8)
    label[20:40, 30:60] = 1
    image = np.repeat(label[..., None] * 255, 3, axis=2)
    bright = square_image(image, 48)[..., 0] > 127
    marked = square_label(label, 48) == 1
    assert (bright != marked).sum() <= 0.1 * marked.sum()


def test_to_tensor() -> None:
    images = np.zeros((2, 4, 6, 3), np.uint8)
    images[1, 0, 5] = (255, 0, 51)
    tensor = to_tensor(images)
    assert tensor.shape == (2, 3, 4, 6)
    assert tensor.dtype == torch.float32
    torch.testing.assert_close(tensor[1, :, 0, 5], torch.tensor([1.0, 0.0, 0.2]))


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 90), st.integers(8, 90), st.sampled_from([1.0, 0.66]))
def test_a_mirrored_image_is_the_image_and_its_reflections(height: int, width: int, scale: float) -> None:
    size = 65
    image = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    found = mirrored_image(image, size, scale)
    inside = square_image(image, int(size * scale))
    rows, columns = fitted_size(height, width, int(size * scale))
    expected = np.empty_like(found)
    for row in range(size):
        for column in range(size):
            place = [at % (2 * side - 2) for at, side in ((row, rows), (column, columns))]
            y, x = (min(at, 2 * side - 2 - at) for at, side in zip(place, (rows, columns), strict=True))
            expected[row, column] = inside[y, x]
    assert (found == expected).all()
    labels = square_label(np.ones((height, width), dtype=np.uint8), size, scale)
    assert (labels[:rows, :columns] == 1).all()
    assert (labels == 255).sum() == size * size - rows * columns  # reflections are never labelled
