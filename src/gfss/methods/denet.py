"""DENet: a classifier of learned base rows, extended by gated prototypes of the novel classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.features.episodes import Support
from gfss.methods.learned import Learned, images_of, level_channels
from gfss.models.base_model import Features, PyramidHead
from gfss.models.ops.upsample import mask_shares

AREA_FLOOR = 1e-3  # added to a mask's area
GROUPS = 8  # of the group norm


@dataclass(frozen=True)
class DenetOptions:
    """What DENet is made of; the defaults are for hundreds of iterations without a GPU.

    :data:`PUBLISHED` is meant for 150,000 iterations: half of everything is dropped, and in hundreds of iterations its
    base rows do not become useful.

    Attributes:
        levels: encoder levels that are embedded.
        width: channels of every layer.
        rates: dilations of the pyramid.
        dropout: of the embedding's channels and of the gate.
        row_dropout: how often a learned row is dropped, so that prototypes cannot lean on the base rows.
    """

    levels: tuple[str, ...] = ("layer3", "layer4")
    width: int = 64
    rates: tuple[int, ...] = (6, 12, 18)
    dropout: float = 0.1
    row_dropout: float = 0.1


PUBLISHED = DenetOptions(levels=("layer3",), width=256, dropout=0.5, row_dropout=0.5)


class Embedding(nn.Module):
    """From encoder levels to the map that is classified: dilated convolution, atrous pyramid, convolution."""

    def __init__(self, channels: int, options: DenetOptions) -> None:
        super().__init__()
        width = options.width

        def layer(entering: int, kernel: int, dilation: int = 1) -> nn.Sequential:
            padding = dilation * (kernel // 2)
            convolution = nn.Conv2d(entering, width, kernel, padding=padding, dilation=dilation)
            return nn.Sequential(convolution, nn.ReLU(), nn.Dropout2d(options.dropout))

        self.enter = layer(channels, 3, dilation=2)
        self.local = nn.ModuleList([layer(width, 1), *(layer(width, 3, rate) for rate in options.rates)])
        self.image = layer(width, 1)
        self.join = layer(width * (len(self.local) + 1), 1)
        self.leave = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(math.gcd(GROUPS, width), width),
            nn.ReLU(),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """(images, channels, h, w) to (images, width, h, w)."""
        x = self.enter(maps)
        parts = [branch(x) for branch in self.local]
        whole = self.image(x.mean(dim=(2, 3), keepdim=True)).expand_as(parts[0])
        return self.leave(self.join(torch.cat([*parts, whole], dim=1)))


class DynamicClassifier(nn.Module):
    """Learned rows W of the base classes, and what makes rows of novel classes from supports.

    Args:
        classes: background and base classes.
    """

    def __init__(self, classes: int, options: DenetOptions) -> None:
        super().__init__()
        width = options.width
        self.row_dropout = options.row_dropout
        self.rows = nn.Parameter(torch.empty(classes, width))
        nn.init.kaiming_uniform_(self.rows, a=math.sqrt(5))  # as the published program starts, and torch's layers do
        self.attention = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Dropout(options.dropout), nn.Sigmoid()
        )
        self.transfer = nn.Linear(width, width)

    def base_rows(self, labels: tuple[int, ...]) -> Tensor:
        """Rows of some classes; in training each is dropped at random."""
        rows = self.rows[list(labels)]
        return rows * F.dropout(rows.new_ones(len(rows), 1), self.row_dropout, self.training)

    def novel_row(self, maps: Tensor, shares: Tensor) -> Tensor:
        """Row of a class (width,): guided attention, gated masked average, mean over supports.

        Args:
            maps: embedded supports (supports, width, h, w).
            shares: the class's share of every position (supports, h, w).
        """
        masked = torch.einsum("schw,shw->sc", maps, shares)
        gate = self.attention(masked / shares[0].numel())
        average = gate * masked / (shares.sum(dim=(1, 2)) + AREA_FLOOR)[:, None]
        return self.transfer(average).mean(dim=0)


class Denet(Learned):
    """DENet on our frozen features.

    Liu, Cao, Liu, Gao, Wei, Wu, Wang: Dynamic Extension Nets for Few-shot Semantic Segmentation (2020),
    https://doi.org/10.1145/3394171.3413915. A classifier with learned base rows is extended by a gated prototype of
    every novel class, and both score an embedding of the image. The original has its own ResNet-50; here its
    embedding reads our standardised encoder levels. Episodes are embedded one by one, so its batch norm is a group
    norm, which does not depend on what else is in a batch.

        rows    (background + base + novel, width)
        scores  (queries, background + base + novel, h, w)   embedding times rows

    Args:
        channels: of the encoder levels that features carry; those that the base model reads if left out.
    """

    name = "denet"

    def __init__(
        self, head: PyramidHead, options: DenetOptions | None = None, channels: Mapping[str, int] | None = None
    ) -> None:
        self.options = options or DenetOptions()
        self.embedding = Embedding(level_channels(channels or head.channels, self.options.levels), self.options)
        self.classifier = DynamicClassifier(head.classifier.weight.shape[0], self.options)
        super().__init__(nn.ModuleDict({"embedding": self.embedding, "classifier": self.classifier}))

    @property
    def settings(self) -> dict[str, Any]:
        return {"published": self.options == PUBLISHED}

    def learn(self, support: Support) -> None:
        support.check()
        maps = self._embed(support.features)
        rows = [self.classifier.base_rows(support.base_labels)]
        for position, label in enumerate(support.novel_labels):
            own = images_of(support, position)
            shares = mask_shares(support.labels[own], label, support.features.size).to(maps)
            rows.append(self.classifier.novel_row(maps[own], shares)[None])
        self.rows = torch.cat(rows)

    def logits(self, query: Features) -> Tensor:
        return F.conv2d(self._embed(query), self.rows[..., None, None])

    def _embed(self, features: Features) -> Tensor:
        return self.embedding(features.named(self.options.levels))
