"""From small score maps to class maps at image size."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F


def upsample(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, corners aligned: position i of a map is pixel i * stride of the image.

    Written as two matrix products, one per axis: on a CPU that is several times faster than the resampling
    kernel, forward and backward.

    Args:
        maps: (batch, channels, h, w).
        size: height and width of the result.
    """
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    down = interpolation_weights(maps.shape[-2], size[0], maps.dtype, maps.device)
    across = interpolation_weights(maps.shape[-1], size[1], maps.dtype, maps.device)
    return (down @ maps.contiguous()) @ across.T


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a cached tensor of inference mode could never take part in training
def interpolation_weights(length: int, target: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Linear interpolation with aligned corners along one axis, (target, length)."""
    place = torch.linspace(0, length - 1, target, dtype=torch.float64)
    low = place.floor().long().clamp(0, max(0, length - 2))
    share = place - low
    weights = torch.zeros(target, length, dtype=torch.float64)
    rows = torch.arange(target)
    weights[rows, low] += 1 - share
    if length > 1:
        weights[rows, low + 1] += share
    return weights.to(device=device, dtype=dtype)


def class_map(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """The best class of every pixel: argmax of the upsampled scores, (batch, height, width) uint8.

    Exact, but only classes that can win somewhere are upsampled: inside a cell of four positions an
    interpolated score lies between the corners' smallest and largest, so a class whose largest corner is
    below another's smallest corner in every cell never wins.

    Args:
        scores: (batch, classes, h, w), at most 256 classes.
        size: height and width of the result.
    """
    return torch.stack([_class_map(image, size) for image in scores])


def _class_map(scores: Tensor, size: tuple[int, int]) -> Tensor:
    cell = (min(2, scores.shape[-2]), min(2, scores.shape[-1]))
    largest = F.max_pool2d(scores, cell, stride=1)
    surely_reached = (-F.max_pool2d(-scores, cell, stride=1)).amax(dim=0)
    able = (largest >= surely_reached - 1e-6 * surely_reached.abs()).flatten(1).any(dim=1)
    candidates = able.nonzero().squeeze(1)
    if len(candidates) == 1:
        return candidates.to(torch.uint8).expand(size[0] * size[1]).reshape(size)
    first, *others = upsample(scores[candidates][None], size)[0]
    winner = torch.full(size, int(candidates[0]), dtype=torch.uint8, device=scores.device)
    for label, score in zip(candidates[1:].tolist(), others, strict=True):  # argmax over a few maps, one by one
        winner.masked_fill_(score > first, label)
        first = torch.maximum(first, score)
    return winner
