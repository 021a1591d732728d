"""The base model: encoder, pyramid head (PSPNet), optional decoder and base classifier, and the features they give."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError, unknown
from gfss.models.encoders.base import Encoder, select_levels, to_size
from gfss.models.ops.upsample import mix_upsampled, pool_bins, upsample

BINS = (1, 2, 3, 6)
SHORTEST = 1e-12  # vectors are not taken as shorter when they are brought to length one


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


@dataclass(frozen=True)
class BaseCard:
    """What a base model is, in words and numbers.

    Attributes:
        encoder: name of the encoder.
        output_stride: input pixels per position of the maps.
        encoder_hash: hash of the encoder's weights.
        trained_encoder: whether the encoder's weights belong to the model (else they are the pretrained ones).
        size: side of the square input.
        classes: names of the base classes, in label order (label 1 first).
        novel: names of the classes that were held out.
        data: name of the data set.
        fold: fold number, or None for a model of all classes.
        training: how it was trained.
        files: fingerprint of the training images, empty where it was not written down.
    """

    encoder: str
    output_stride: int
    encoder_hash: str
    trained_encoder: bool
    size: int
    classes: tuple[str, ...]
    novel: tuple[str, ...]
    data: str
    fold: int | None
    training: dict[str, Any] = field(default_factory=dict)
    files: str = ""

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "files" or value}

    @staticmethod
    def from_json(content: dict[str, Any]) -> BaseCard:
        return BaseCard(**{**content, "classes": tuple(content["classes"]), "novel": tuple(content["novel"])})


class BaseModel(nn.Module):
    """G_base over F: images in, features and base scores out."""

    def __init__(self, encoder: Encoder, head: PyramidHead, card: BaseCard) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.card = card

    def forward(self, images: Tensor) -> Features:
        """Features of images (batch, 3, size, size), RGB in [0, 1]."""
        return self.head(self.levels(images))

    def logits(self, images: Tensor) -> Tensor:
        """Base logits of images alone, (batch, classes, h, w)."""
        return self.head.logits(self.levels(images))

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        """Encoder levels of images, at their own resolutions where the head has a decoder."""
        if self.head.decoder is None:
            return self.encoder(images)
        levels = self.encoder.fine_levels(images)
        return {name: levels[name] for name in self.encoder.channels}

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width of the feature maps."""
        if self.head.decoder is None:
            side = self.encoder.map_size(self.card.size)
            return side, side
        level = self.encoder.level_sizes(self.card.size)[self.head.decoder.level]
        return level[0], level[1]

    def freeze(self, keep: Callable[[str], bool] = lambda name: False) -> None:
        """Stop gradients of all parameters but those whose name is kept."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(keep(name))
