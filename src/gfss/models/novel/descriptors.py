"""Dense descriptors: a small network that joins encoder levels into one map that rows of taught classes also read.

An encoder that was trained to name whole images says little about surfaces and parts. The descriptors were trained to
name every pixel of scenes with many classes of things and stuff; their classifier is thrown away. They know nothing of
the classes that they are used for. Ours, not the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.models.ops.upsample import pool_bins, upsample

FLATTEST = 1e-4  # channels are not taken as less spread when they are standardised
BINS = 5  # cells of a side of the map that context is averaged over


class DenseDescriptors(nn.Module):
    """Encoder levels to descriptors on the grid of the finest level that enters.

    Args:
        channels: levels that enter, name -> channels; the first is the finest, the others share a coarser grid.
        width: channels of the descriptors.
        mid: channels on the coarse grid.
        context: channels of the means over the image and over parts of it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: Mapping[str, int], width: int = 96, mid: int = 128, context: int = 48) -> None:
        super().__init__()
        self.config: dict[str, Any] = {"channels": dict(channels), "width": width, "mid": mid, "context": context}
        self.channels = dict(channels)
        self.width = width
        finest, *others = self.channels.values()
        self.register_buffer("mean", torch.zeros(finest + sum(others)))
        self.register_buffer("std", torch.ones(finest + sum(others)))
        self.whole = _layer(sum(others), context)
        self.parts = _layer(sum(others), context)
        self.mix = nn.Conv2d(sum(others) + 2 * context, mid, 1, bias=False)
        self.wide = nn.Sequential(nn.BatchNorm2d(mid), nn.ReLU(), *_separable(mid, dilation=2), nn.ReLU())
        self.near = nn.Sequential(*_separable(mid), nn.ReLU())
        self.narrow = nn.Conv2d(mid, width, 1, bias=False)
        self.fine = nn.Conv2d(finest, width, 1, bias=False)
        self.join = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), *_separable(width))

    def standardise(self, levels: Mapping[str, Tensor]) -> None:
        """Set mean and spread of the entering channels from a sample, name -> (images, channels, h, w)."""
        sample = [levels[name] for name in self.channels]
        self.mean.copy_(torch.cat([level.mean(dim=(0, 2, 3)) for level in sample]))
        self.std.copy_(torch.cat([level.std(dim=(0, 2, 3)) for level in sample]).clamp_min(FLATTEST))

    def forward(self, levels: Mapping[str, Tensor]) -> Tensor:
        """Descriptors (batch, width, h, w) of levels, name -> (batch, channels, h, w); not negative."""
        widths = list(self.channels.values())
        fine, *others = (
            (levels[name] - mean[:, None, None]) / std[:, None, None]
            for name, mean, std in zip(self.channels, self.mean.split(widths), self.std.split(widths), strict=True)
        )
        deep = torch.cat(others, dim=1)
        size = (deep.shape[-2], deep.shape[-1])
        whole = self.whole(deep.mean(dim=(2, 3), keepdim=True)).expand(-1, -1, *size)
        parts = upsample(self.parts(pool_bins(deep, (BINS,))[0]), size)
        x = self.wide(self.mix(torch.cat([deep, whole, parts], dim=1)))
        x = x + self.near(x)
        x = upsample(self.narrow(x), (fine.shape[-2], fine.shape[-1])) + self.fine(fine)
        return F.relu(self.join(x))


def _layer(entering: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(entering, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


def _separable(width: int, dilation: int = 1) -> list[nn.Module]:
    depthwise = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, groups=width, bias=False)
    return [depthwise, nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)]
