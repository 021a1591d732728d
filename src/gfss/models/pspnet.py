"""Pyramid pooling, bottleneck and base classifier: the part of the base model after the encoder."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gfss.common.errors import GfssError, unknown
from gfss.models.decoder import Decoder, separable_convolution
from gfss.models.encoders.base import select_levels, to_size
from gfss.models.ops.pyramid import mix_upsampled, pool_bins
from gfss.models.ops.upsample import upsample

BINS = (1, 2, 3, 6)
SHORTEST = 1e-12  # vectors are not taken as shorter when they are brought to length one


@dataclass(frozen=True)
class Features:
    """Everything the base model says of a batch of images; all that methods ever see.

    Attributes:
        levels: encoder levels, name -> (batch, channels, h, w); those that the head reads are standardised per channel.
        pooled: pyramid branches at their own resolution: (batch, channels, bin, bin) for every bin.
        bottleneck: (batch, channels, h, w), what the base classifier reads.
        base: base logits (batch, base classes + 1, h, w), background first.
    """

    levels: dict[str, Tensor]
    pooled: tuple[Tensor, ...]
    bottleneck: Tensor
    base: Tensor
    _unit: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the maps."""
        return self.base.shape[-2], self.base.shape[-1]

    def __len__(self) -> int:
        return self.base.shape[0]

    def __getitem__(self, images: Sequence[int] | slice) -> Features:
        """Features of some of the images."""
        index = images if isinstance(images, slice) else list(images)
        return self.map(lambda tensor: tensor[index])

    def map(self, function: Callable[[Tensor], Tensor]) -> Features:
        """The same function applied to every tensor."""
        return Features(
            {name: function(level) for name, level in self.levels.items()},
            tuple(function(branch) for branch in self.pooled),
            function(self.bottleneck),
            function(self.base),
        )

    def named(self, names: Sequence[str]) -> Tensor:
        """Maps by name, concatenated over channels: encoder levels, ``pooled``, ``bottleneck``.

        ``pooled`` is every pyramid branch, upsampled.
        """
        maps = [maps for name in names for maps in self._maps(name)]
        return maps[0] if len(maps) == 1 else torch.cat(maps, dim=1)

    def _maps(self, name: str) -> list[Tensor]:
        if name == "pooled":
            return [upsample(branch, self.size) for branch in self.pooled]
        if name == "bottleneck":
            return [self.bottleneck]
        if name in self.levels:
            return [self.levels[name]]
        raise unknown("feature", name, [*self.levels, "pooled", "bottleneck"])

    def unit(self, *names: str) -> Tensor:
        """Maps by name, each with vectors of length one at every position, concatenated over channels."""
        for name in names:
            if name not in self._unit:
                maps = self.named([name])
                self._unit[name] = maps * unit_factors(maps)
        parts = [self._unit[name] for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def cached(self, key: Hashable, compute: Callable[[Features], Tensor]) -> Tensor | None:
        """A map that is the same in every task, from the cache of its images; None where features are not cached.

        Args:
            key: names the map.
            compute: makes it from the features of one image, (1, channels, h, w).
        """
        return None


def unit_factors(maps: Tensor) -> Tensor:
    """What brings every vector over channels to length one, (batch, 1, h, w).

    Squares and their sum are faster than torch's norm over a dimension that is not the last.
    """
    return maps.square().sum(dim=1, keepdim=True).sqrt().clamp_min(SHORTEST).reciprocal()


def concatenate(parts: Sequence[Features]) -> Features:
    """Several batches as one."""
    return Features(
        {name: torch.cat([p.levels[name] for p in parts]) for name in parts[0].levels},
        tuple(torch.cat(branches) for branches in zip(*(p.pooled for p in parts), strict=True)),
        torch.cat([p.bottleneck for p in parts]),
        torch.cat([p.base for p in parts]),
    )


class PyramidHead(nn.Module):
    """PSPNet after its encoder.

    The paper: ``levels=("layer4",)``, ``pyramid=512``, ``width=512``: 2048 + 4 * 512 = 4096 channels enter
    the 3x3 bottleneck. The frozen recipes read several levels and are slimmer.

    Levels may come at their own resolutions. The pyramid works on the resolution of the coarsest of its levels, and so
    do the features that come out, unless a decoder brings them to that of a finer level.

    Args:
        channels: encoder levels that enter the pyramid, name -> channels.
        classes: outputs of the base classifier, background included.
        pyramid: channels of each pyramid branch.
        width: channels of the bottleneck.
        separable: 1x1, depthwise 3x3 and 1x1 instead of one full 3x3 (a ninth of the work).
        dropout: rate of channel dropout before the classifier.
        decoder: options of :class:`Decoder`, for finer maps; none without.
        bias: give the classifier one.
    """

    feature_mean: Tensor
    feature_std: Tensor

    def __init__(
        self,
        channels: Mapping[str, int],
        classes: int,
        pyramid: int = 512,
        width: int = 512,
        separable: bool = False,
        dropout: float = 0.1,
        decoder: Mapping[str, Any] | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.config = {
            "channels": dict(channels),
            "classes": classes,
            "pyramid": pyramid,
            "width": width,
            "separable": separable,
            "dropout": dropout,
            **({"decoder": dict(decoder)} if decoder else {}),
            **({"bias": True} if bias else {}),
        }
        self.channels = dict(channels)
        entering = sum(channels.values())
        self.register_buffer("feature_mean", torch.zeros(1, entering, 1, 1))
        self.register_buffer("feature_std", torch.ones(1, entering, 1, 1))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(entering, pyramid, 1, bias=False), nn.BatchNorm2d(pyramid), nn.ReLU()) for _ in BINS
        )
        joined = entering + pyramid * len(BINS)
        if separable:
            self.mix = nn.Conv2d(joined, width, 1, bias=False)
            self.bottleneck = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), *separable_convolution(width, width))
        else:
            self.mix = nn.Conv2d(joined, width, 3, padding=1, bias=False)
            self.bottleneck = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())
        self.decoder = Decoder(width, **decoder) if decoder else None
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(width, classes, 1, bias=bias)

    @property
    def needs(self) -> dict[str, int]:
        """Encoder levels that the head reads, name -> channels."""
        return self.channels | ({self.decoder.level: self.decoder.channels} if self.decoder else {})

    def standardise(self, levels: Mapping[str, Tensor]) -> None:
        """Set the statistics of the entering features from a sample, so that each channel has mean 0, spread 1."""
        entering = self._entering(levels)
        self.feature_mean.copy_(entering.mean(dim=(0, 2, 3), keepdim=True))
        self.feature_std.copy_(entering.std(dim=(0, 2, 3), keepdim=True).clamp_min(1e-5))
        if self.decoder:
            self.decoder.standardise(levels)

    def forward(self, levels: Mapping[str, Tensor]) -> Features:
        """From encoder levels, name -> (batch, channels, h, w), to all features."""
        entering, pooled, bottleneck = self._read(levels)
        base = self.classifier(self.dropout(bottleneck))
        parts = dict(zip(self.channels, entering.split(list(self.channels.values()), dim=1), strict=True))
        others = {name: level for name, level in levels.items() if name not in parts}  # for ablations only
        if self.decoder:
            others[self.decoder.level] = self.decoder.standardised(levels)
        return Features(
            {name: to_size(level, base.shape[-2:]) for name, level in (others | parts).items()},
            pooled,
            bottleneck,
            base,
        )

    def logits(self, levels: Mapping[str, Tensor]) -> Tensor:
        """Base logits alone, (batch, classes, h, w)."""
        return self.classifier(self.dropout(self._read(levels)[2]))

    def _entering(self, levels: Mapping[str, Tensor]) -> Tensor:
        """The levels that enter the pyramid, concatenated at the resolution of the last of them."""
        chosen = select_levels(levels, list(self.channels))
        return torch.cat([to_size(level, chosen[-1].shape[-2:]) for level in chosen], dim=1)

    def _read(self, levels: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Entering features (standardised), pyramid branches and what the classifier reads."""
        entering = self._entering(levels)
        if entering.shape[1] != self.feature_mean.shape[1]:
            raise GfssError(
                f"these features have {entering.shape[1]} channels, the pyramid head was made for "
                f"{self.feature_mean.shape[1]} ({self.channels}); use the encoder it was trained with"
            )
        entering = torch.addcmul(-self.feature_mean / self.feature_std, entering, 1 / self.feature_std)
        size = (entering.shape[-2], entering.shape[-1])
        pooled = tuple(branch(mean) for branch, mean in zip(self.branches, pool_bins(entering, BINS), strict=True))
        if self.mix.kernel_size == (1, 1):
            mixed = mix_upsampled(self.mix.weight[:, :, 0, 0], entering, pooled)
        else:
            mixed = self.mix(torch.cat([entering, *(upsample(branch, size) for branch in pooled)], dim=1))
        bottleneck = self.bottleneck(mixed)
        return entering, pooled, self.decoder(bottleneck, levels) if self.decoder else bottleneck
