"""Pyramid pooling and mixing as matrix products against torch's own."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from gfss.models.ops.upsample import mix_upsampled, pool_bins

MAPS = torch.randn(2, 5, 7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BINS = (1, 2, 3, 6)


def test_pooling() -> None:
    for count, pooled in zip(BINS, pool_bins(MAPS, BINS), strict=True):
        torch.testing.assert_close(pooled, F.adaptive_avg_pool2d(MAPS, count), rtol=0, atol=1e-12)


def test_mixing_is_a_convolution_over_upsampled_branches() -> None:
    branches = pool_bins(MAPS, BINS)
    weight = torch.randn(4, 5 * 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    upsampled = [F.interpolate(branch, (7, 9), mode="bilinear", align_corners=True) for branch in branches]
    expected = F.conv2d(torch.cat([MAPS, *upsampled], dim=1), weight[..., None, None])
    torch.testing.assert_close(mix_upsampled(weight, MAPS, branches), expected, rtol=0, atol=1e-12)
