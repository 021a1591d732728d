"""From an image of any size to the square tensor that an encoder takes, and labels likewise.

The geometry is that of the evaluation protocol: the long side becomes ``size`` (floored to a
multiple of 8), the aspect ratio is kept, the rest is padded at the bottom and right with zeros
(before normalisation) for images and with 255 for labels.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gfss.data.catalog import VOID

MULTIPLE = 8


def fitted_size(height: int, width: int, size: int) -> tuple[int, int]:
    """Height and width after the aspect-keeping resize into a ``size`` x ``size`` square.

    >>> fitted_size(375, 500, 417)
    (312, 416)
    """
    scale = size / max(height, width)
    fit = [max(MULTIPLE, int(side * scale + 1e-6) // MULTIPLE * MULTIPLE) for side in (height, width)]
    return fit[0], fit[1]


def square_image(image: np.ndarray, size: int) -> np.ndarray:
    """Resize (bilinear) and pad an image (height, width, 3) uint8 to (size, size, 3) uint8."""
    image = _fitted_image(image, size)
    out = np.zeros((size, size, 3), dtype=np.uint8)
    out[: image.shape[0], : image.shape[1]] = image
    return out


def mirrored_image(image: np.ndarray, size: int, scale: float = 1.0) -> np.ndarray:
    """As :func:`square_image`, but the image is mirrored into the frame around it.

    An encoder then sees ordinary content beyond the border, where black would look like an object of its own.

    Args:
        scale: of the image within the square, at most 1.
    """
    image = _fitted_image(image, int(size * scale))
    rest = [(0, size - side) for side in image.shape[:2]]
    return np.pad(image, [*rest, (0, 0)], mode="reflect")


def _fitted_image(image: np.ndarray, size: int) -> np.ndarray:
    height, width = fitted_size(image.shape[0], image.shape[1], size)
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def square_label(label: np.ndarray, size: int, scale: float = 1.0) -> np.ndarray:
    """Resize (nearest) and pad a label map (height, width) uint8 to (size, size) with 255.

    Args:
        scale: of the label map within the square, at most 1.
    """
    height, width = fitted_size(label.shape[0], label.shape[1], int(size * scale))
    if label.shape != (height, width):
        label = np.asarray(Image.fromarray(label).resize((width, height), Image.Resampling.NEAREST))
    out = np.full((size, size), VOID, dtype=np.uint8)
    out[:height, :width] = label
    return out


def to_tensor(images: np.ndarray) -> Tensor:
    """(batch, height, width, 3) uint8 to (batch, 3, height, width) float32 in [0, 1], as encoders take it."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div_(255)
