"""A 3x3 convolution as one matrix product."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def convolve(maps: Tensor, weights: Tensor) -> Tensor:
    """``F.conv2d(maps, weights, padding=1)``, (images, hidden, h, w).

    One matrix product for all nine taps, then their results are shifted and added. With many channels and few results
    that is faster on a CPU than a convolution; as a part of an exported network it is one.

    Args:
        maps: (images, channels, h, w).
        weights: (hidden, channels, 3, 3).
    """
    if torch.compiler.is_exporting():
        return F.conv2d(maps, weights, padding=1)
    images, channels, height, width = maps.shape
    taps = weights.permute(2, 3, 0, 1).reshape(-1, channels) @ maps.flatten(2)
    taps = taps.view(images, 3, 3, len(weights), height, width)
    out = taps[:, 1, 1].clone()
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if (down, right) != (0, 0):
                to_y, from_y = shifted(down, height)
                to_x, from_x = shifted(right, width)
                out[:, :, to_y, to_x] += taps[:, 1 + down, 1 + right, :, from_y, from_x]
    return out


def shifted(offset: int, length: int) -> tuple[slice, slice]:
    """Slices (to, from) with from = to + offset inside a length."""
    low, high = max(0, -offset), min(length, length - offset)
    return slice(low, high), slice(low + offset, high + offset)
