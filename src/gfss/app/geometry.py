"""From small score maps to masks and probabilities of an image's own size.

Up to twice the size of the network's view, every pixel takes the class map of the evaluation protocol at the nearest
position, so that the mask of an image that the network sees in its own or a smaller size scores exactly what the
harness counts. Larger images interpolate the scores, for smooth edges.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gfss.data.transforms import fitted_size
from gfss.models.ops.upsample import class_map, upsample

STRIP = 256  # rows that are interpolated at once
SMOOTH_FROM = 2.0  # enlargement from which scores are interpolated


def label_map(scores: Tensor, size: int, shape: tuple[int, int]) -> np.ndarray:
    """The class of every pixel of an image, (height, width) uint8.

    Args:
        scores: logits (classes, h, w) of the squared image.
        size: side of the square.
        shape: height and width of the image.
    """
    if _is_enlarged(size, shape):
        parts = [strip.argmax(dim=0).to(torch.uint8).numpy() for strip in _smooth(scores, size, shape)]
        return np.concatenate(parts)
    rows, columns = _nearest(size, shape)
    return class_map(scores[None], (size, size))[0].numpy()[rows][:, columns]


def probabilities(scores: Tensor, size: int, shape: tuple[int, int]) -> np.ndarray:
    """The probability of every class at every pixel, (classes, height, width) float32; arguments as above."""
    if _is_enlarged(size, shape):
        return np.concatenate([strip.softmax(dim=0).numpy() for strip in _smooth(scores, size, shape)], axis=1)
    rows, columns = _nearest(size, shape)
    return upsample(scores[None], (size, size))[0].softmax(dim=0).numpy()[:, rows][:, :, columns]


def _is_enlarged(size: int, shape: tuple[int, int]) -> bool:
    return any(side > SMOOTH_FROM * fit for side, fit in zip(shape, fitted_size(*shape, size), strict=True))


def _nearest(size: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the squared image that each row and column of the image shows."""
    fit = fitted_size(*shape, size)
    rows, columns = (
        ((np.arange(side) + 0.5) * (f / side)).astype(np.int64) for side, f in zip(shape, fit, strict=True)
    )
    return rows, columns


def _smooth(scores: Tensor, size: int, shape: tuple[int, int]) -> Iterator[Tensor]:
    """Interpolated scores of an image, strip by strip: (classes, rows, width)."""
    fit = fitted_size(*shape, size)
    down, across = (
        _weights(side, f, size, length) for side, f, length in zip(shape, fit, scores.shape[1:], strict=True)
    )
    wide = scores @ across.T
    for start in range(0, shape[0], STRIP):
        yield down[start : start + STRIP] @ wide


def _weights(side: int, fit: int, size: int, length: int) -> Tensor:
    """Linear interpolation (side, length) from a map of a square to the pixels that an image has along one side."""
    pixels = ((torch.arange(side, dtype=torch.float64) + 0.5) * (fit / side) - 0.5).clamp(0, fit - 1)
    places = pixels * ((length - 1) / (size - 1))
    distance = (places[:, None] - torch.arange(length, dtype=torch.float64)).abs()
    return (1 - distance).clamp_min(0).float()
