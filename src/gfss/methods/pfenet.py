"""PFENet: a binary network guided by a support vector and a prior mask tells a novel class from the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.features.episodes import Episode, Support
from gfss.methods.learned import Learned, images_of, level_channels, trainable
from gfss.methods.losses import calibration_loss
from gfss.methods.probe import position_labels
from gfss.models.base_model import Features, PyramidHead
from gfss.models.novel.classifier import support_labels
from gfss.models.ops.upsample import mask_shares, upsample

AREA_FLOOR = 5e-4  # added to a mask's area
PRIOR_FLOOR = 1e-7  # added to the range of a prior mask


@dataclass(frozen=True)
class PfenetOptions:
    """What PFENet is made of; :data:`PUBLISHED` differs in width, prior and bins.

    Attributes:
        middle: encoder levels of the features: those of them that the base model reads, or if it reads none, all
            that there are.
        high: encoder level of the prior mask.
        width: channels of every layer; the default is for processors without GPU.
        scales: sizes of the enrichment's maps from fine to coarse: up to 1 as fractions of the map size, else in
            positions.
        rounded: fractions of the map size are rounded, and not cut off as published.
        sampled: the prior mask compares with the support positions whose pixel is in the mask, as published, and not
            with all that the mask touches.
        reduction_dropout: channel dropout of the reduced features.
        dropout: channel dropout before the outputs.
        inner: weight of the losses at the single scales.
    """

    middle: tuple[str, ...] = ("layer2", "layer3")
    high: str = "layer4"
    width: int = 64
    scales: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125)
    rounded: bool = True
    sampled: bool = False
    reduction_dropout: float = 0.5
    dropout: float = 0.1
    inner: float = 1.0


PUBLISHED = PfenetOptions(width=256, scales=(60, 30, 15, 8), rounded=False, sampled=True)
PUBLISHED_COCO = replace(PUBLISHED, scales=PfenetOptions.scales)


@dataclass(frozen=True)
class Guide:
    """What PFENet knows of a class.

    Attributes:
        vector: masked average of the reduced features (width,).
        pixels: high-level features of the class's positions in each support, of length one: (positions, channels).
    """

    vector: Tensor
    pixels: Sequence[Tensor]


class Enrichment(nn.Module):
    """Reduction of the features, and the feature enrichment module over several scales with its outputs.

    Args:
        channels: of the middle features.
    """

    def __init__(self, channels: int, options: PfenetOptions) -> None:
        super().__init__()
        width, scales = options.width, len(options.scales)
        self.options = options

        def layers(*widths: int, kernel: int = 1) -> nn.Sequential:
            parts: list[nn.Module] = []
            for entering, leaving in pairwise(widths):
                parts += [nn.Conv2d(entering, leaving, kernel, padding=kernel // 2, bias=False), nn.ReLU()]
            return nn.Sequential(*parts)

        def output() -> nn.Sequential:
            hidden = layers(width, width, kernel=3)
            return nn.Sequential(*hidden, nn.Dropout2d(options.dropout), nn.Conv2d(width, 2, 1))

        self.reduce_query = layers(channels, width)
        self.reduce_support = layers(channels, width)
        self.reduction_dropout = nn.Dropout2d(options.reduction_dropout)
        self.enter = nn.ModuleList(layers(2 * width + 1, width) for _ in range(scales))
        self.merge = nn.ModuleList(layers(2 * width, width) for _ in range(scales - 1))
        self.refine = nn.ModuleList(layers(width, width, width, kernel=3) for _ in range(scales))
        self.inner = nn.ModuleList(output() for _ in range(scales))
        self.join = layers(scales * width, width)
        self.join_refine = layers(width, width, width, kernel=3)
        self.output = output()

    def forward(self, query: Tensor, vector: Tensor, prior: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (queries, 2, h, w), "not the class" first, and the enriched maps of every scale.

        Args:
            query: reduced query features (queries, width, h, w).
            vector: of the class (width,).
            prior: (queries, 1, h, w) in [0, 1].
        """
        size = (query.shape[2], query.shape[3])
        maps: list[Tensor] = []
        for number, scale in enumerate(self.options.scales):
            small = scaled_size(size, scale, self.options.rounded)
            pooled = F.adaptive_avg_pool2d(query, small)
            guide = vector[:, None, None].expand_as(pooled)
            x = self.enter[number](torch.cat([pooled, guide, upsample(prior, small)], dim=1))
            if number:
                finer = upsample(maps[-1], small)
                x = x + self.merge[number - 1](torch.cat([x, finer], dim=1))
            maps.append(x + self.refine[number](x))
        joined = self.join(torch.cat([upsample(x, size) for x in maps], dim=1))
        return self.output(joined + self.join_refine(joined)), maps


class Pfenet(Learned):
    """PFENet on our frozen features, beside the base classifier.

    Tian, Zhao, Shu, Yang, Li, Jia: Prior Guided Feature Enrichment Network for Few-Shot Segmentation (2020),
    https://arxiv.org/abs/2008.01449. A prior mask (similarity of high-level features to the object's) and the
    object's mean feature guide a network over several scales that tells one class from the rest. The original has
    its own ResNet; here the middle and high features are our standardised encoder levels. The original computes the
    support's high features from masked lower ones; ours are computed once for the whole image and masked after.
    PFENet itself tells one class from the rest, and the base classifier says what the rest is: PFENet's odds of a
    novel class are those against all base classes together.

        guides  per novel class: vector (width,), support pixels (positions, channels)
        scores  (queries, background + base + novel, h, w)

    Args:
        channels: of the encoder levels that features carry; those that the base model reads if left out.
    """

    name = "pfenet"

    def __init__(
        self, head: PyramidHead, options: PfenetOptions | None = None, channels: Mapping[str, int] | None = None
    ) -> None:
        self.options = options or PfenetOptions()
        channels = channels or head.channels
        read, there = ([name for name in self.options.middle if name in some] for some in (head.channels, channels))
        self.middle = tuple(read or there)
        if not self.middle:
            raise GfssError(
                f"method '{self.name}' needs encoder level {' or '.join(self.options.middle)}, but there is only "
                f"{', '.join(channels)}; keep one of them in the feature bank too"
            )
        level_channels(channels, [self.options.high])  # refuses where it is missing
        self.net = Enrichment(level_channels(channels, self.middle), self.options)
        super().__init__(self.net)

    @property
    def settings(self) -> dict[str, Any]:
        return {"published": self.options in (PUBLISHED, PUBLISHED_COCO)}

    def learn(self, support: Support) -> None:
        support.check()
        maps = self.net.reduction_dropout(self.net.reduce_support(support.features.named(self.middle)))
        high = F.normalize(support.features.named([self.options.high]), dim=1)
        labels = position_labels(support)
        self.guides: list[Guide] = []
        for position, label in enumerate(support.novel_labels):
            own = images_of(support, position)
            shares = mask_shares(support.labels[own], label, support.features.size).to(maps)
            sums = torch.einsum("schw,shw->sc", maps[own], shares)
            vector = (sums / (shares.sum(dim=(1, 2)) + AREA_FLOOR)[:, None]).mean(dim=0)
            inside = labels[own] == label if self.options.sampled else shares > 0
            pixels = [high[image][:, mask].T for image, mask in zip(own, inside, strict=True)]
            self.guides.append(Guide(vector, pixels))

    def logits(self, query: Features) -> Tensor:
        rest = query.base.logsumexp(dim=1, keepdim=True)
        odds = [logits[:, 1:] - logits[:, :1] for logits, _ in self.segment(query, self.guides)]
        return torch.cat([query.base, *(rest + one for one in odds)], dim=1)

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        episode = trainable(episode)
        self.learn(episode.support)
        total, pixels = episode.query.features.base.new_zeros(()), torch.zeros((), dtype=torch.long)
        outcomes = self.segment(episode.query.features, self.guides)
        for label, (logits, maps) in zip(episode.support.novel_labels, outcomes, strict=True):
            target = support_labels(episode.query.labels, [label])
            main, count = calibration_loss(logits, target)
            inner = [calibration_loss(out(x), target)[0] for out, x in zip(self.net.inner, maps, strict=True)]
            total = total + main + self.options.inner * torch.stack(inner).mean()
            pixels = pixels + count
        return total, pixels

    def segment(self, query: Features, guides: Sequence[Guide]) -> list[tuple[Tensor, list[Tensor]]]:
        """For every class its logits (queries, 2, h, w) and the enriched maps of every scale."""
        maps = self.net.reduction_dropout(self.net.reduce_query(query.named(self.middle)))
        high = F.normalize(query.named([self.options.high]), dim=1)
        return [self.net(maps, guide.vector, prior_mask(high, guide.pixels)) for guide in guides]


def scaled_size(size: tuple[int, int], scale: float, rounded: bool) -> tuple[int, int]:
    """Size of the maps of one scale.

    >>> scaled_size((27, 27), 0.25, rounded=False), scaled_size((27, 27), 0.25, rounded=True)
    ((6, 6), (7, 7))
    >>> scaled_size((27, 27), 30, rounded=False)
    (30, 30)
    """
    if scale > 1:
        return int(scale), int(scale)
    whole = round if rounded else int
    return max(1, whole(scale * size[0])), max(1, whole(scale * size[1]))


def prior_mask(high: Tensor, pixels: Sequence[Tensor]) -> Tensor:
    """How much each query position is like the class at first sight, (queries, 1, h, w) in [0, 1].

    The largest cosine with any support position (positions outside the mask count as 0), scaled to its range in the
    image, mean over supports.

    Args:
        high: query features of length one, (queries, channels, h, w).
        pixels: as in :class:`Guide`.
    """
    masks: list[Tensor] = []
    for support in pixels:
        # image by image: the products of a whole batch would need much memory
        likeness = torch.stack([(support @ image.flatten(1)).amax(dim=0).clamp_min(0) for image in high])
        low, top = likeness.amin(dim=1, keepdim=True), likeness.amax(dim=1, keepdim=True)
        masks.append((likeness - low) / (top - low + PRIOR_FLOOR))
    return torch.stack(masks).mean(dim=0).view(len(high), 1, *high.shape[2:])
