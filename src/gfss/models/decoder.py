"""Decoder: brings the pyramid's coarse output to the resolution of a finer encoder level."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.encoders.base import select_levels, to_size


class Decoder(nn.Module):
    """Upsampled coarse maps, corrected by what a finer level adds.

    As in the decoder of DeepLab v3+ (Chen et al., "Encoder-Decoder with Atrous Separable Convolution for Semantic Image
    Segmentation", ECCV 2018, https://arxiv.org/abs/1802.02611) both are mixed by 1x1 convolutions and then by a
    separable 3x3 one; here the result is added to the upsampled maps and starts at zero, so that training starts from
    the head without a decoder. A 1x1 convolution and upsampling commute, so the coarse maps go through theirs before
    they are upsampled.

    Args:
        width: channels of the coarse maps, and of those that come out.
        level: name of the finer level.
        channels: of that level.
        inner: channels in which both are mixed.
    """

    level_mean: Tensor
    level_std: Tensor

    def __init__(self, width: int, level: str, channels: int, inner: int) -> None:
        super().__init__()
        self.level, self.channels = level, channels
        self.register_buffer("level_mean", torch.zeros(1, channels, 1, 1))
        self.register_buffer("level_std", torch.ones(1, channels, 1, 1))
        self.coarse = nn.Conv2d(width, inner, 1, bias=False)
        self.fine = nn.Conv2d(channels, inner, 1, bias=False)
        self.norm = nn.BatchNorm2d(inner)
        *separable, last, _ = separable_convolution(inner, width)
        self.correct = nn.Sequential(*separable, last)
        nn.init.zeros_(last.weight)

    def standardise(self, levels: Mapping[str, Tensor]) -> None:
        """Set the statistics of the finer level from a sample."""
        (level,) = select_levels(levels, [self.level])
        self.level_mean.copy_(level.mean(dim=(0, 2, 3), keepdim=True))
        self.level_std.copy_(level.std(dim=(0, 2, 3), keepdim=True).clamp_min(1e-5))

    def standardised(self, levels: Mapping[str, Tensor]) -> Tensor:
        """The finer level with mean 0 and spread 1 in each channel."""
        (level,) = select_levels(levels, [self.level])
        if level.shape[1] != self.channels:
            raise GfssError(
                f"level {self.level} has {level.shape[1]} channels, the decoder was made for {self.channels}; use the "
                "encoder it was trained with"
            )
        return torch.addcmul(-self.level_mean / self.level_std, level, 1 / self.level_std)

    def forward(self, bottleneck: Tensor, levels: Mapping[str, Tensor]) -> Tensor:
        """From coarse maps (batch, width, h, w) to (batch, width, H, W) at the resolution of the finer level."""
        fine = self.fine(self.standardised(levels))
        mixed = F.relu(self.norm(fine + to_size(self.coarse(bottleneck), fine.shape[-2:])))
        return F.relu(to_size(bottleneck, fine.shape[-2:]) + self.correct(mixed))


def separable_convolution(width: int, out: int) -> tuple[nn.Conv2d, nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
    """Depthwise 3x3 and 1x1 convolution, batch norm, ReLU."""
    return (
        nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
        nn.Conv2d(width, out, 1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    )
