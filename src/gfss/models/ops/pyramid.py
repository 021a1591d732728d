"""Pyramid pooling and the 1x1 convolution over its upsampled branches, as few matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.models.ops.upsample import upsample


def pool_bins(maps: Tensor, bins: tuple[int, ...]) -> list[Tensor]:
    """``F.adaptive_avg_pool2d(maps, b)`` for every b of ``bins``: (batch, channels, b, b) each."""
    size = (maps.shape[-2], maps.shape[-1])
    means = maps.flatten(2) @ pooling_weights(size, bins, maps.dtype, maps.device)
    parts = means.split([count * count for count in bins], dim=2)
    return [part.unflatten(2, (count, count)) for part, count in zip(parts, bins, strict=True)]


def mix_upsampled(weight: Tensor, maps: Tensor, branches: Sequence[Tensor]) -> Tensor:
    """A 1x1 convolution of maps and upsampled branches, all concatenated: (batch, width, h, w).

    A 1x1 convolution and upsampling commute, so the branches go through it at their own resolution, and all of them
    are upsampled by one product.

    Args:
        weight: (width, channels of maps and branches).
        maps: (batch, channels, h, w).
        branches: (batch, channels, bins, bins) each.
    """
    size = (maps.shape[-2], maps.shape[-1])
    own, *others = weight.split([maps.shape[1], *(branch.shape[1] for branch in branches)], dim=1)
    small = torch.cat([rows @ branch.flatten(2) for rows, branch in zip(others, branches, strict=True)], dim=2)
    bins = tuple(branch.shape[-1] for branch in branches)
    upsampled = small @ upsampling_weights(size, bins, maps.dtype, maps.device)
    mixed = torch.baddbmm(upsampled, own.expand(len(maps), -1, -1), maps.flatten(2)).unflatten(2, size)
    return mixed.contiguous(memory_format=torch.channels_last)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # a cached tensor of inference mode could never take part in training
def pooling_weights(size: tuple[int, int], bins: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Average pooling to all bins of a pyramid as one matrix, (h w, sum of bins squared)."""
    each = torch.eye(size[0] * size[1], dtype=torch.float64).view(-1, 1, *size)
    return torch.cat([F.adaptive_avg_pool2d(each, count).flatten(1) for count in bins], dim=1).to(device, dtype)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def upsampling_weights(
    size: tuple[int, int], bins: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Bilinear upsampling from all bins of a pyramid as one matrix, (sum of bins squared, h w)."""
    each = (torch.eye(count**2, dtype=torch.float64).view(-1, 1, count, count) for count in bins)
    return torch.cat([upsample(maps, size).flatten(1) for maps in each]).to(device, dtype)
