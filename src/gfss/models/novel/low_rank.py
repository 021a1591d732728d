"""The first layer of a fitted novel classifier as its initial weights plus a matrix of low rank.

Fitting starts at the same weights in every task, so their response to an image can be cached with the image. What
fitting adds is nearly of low rank, since all hidden channels are pulled by the differences of a few class scores; the
rest is left out. So an image needs as many convolutions as there are directions, not as hidden channels. The result is
nearly that of the whole layer, so this is an option (``NovelOptions.low_rank``), off by default.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gfss.models.novel.classifier import convolve


@dataclass(frozen=True)
class LowRankLayer:
    """A 3x3 layer as ``start + mix @ directions``.

    Attributes:
        mix: (hidden, rank).
        directions: (rank, channels, 3, 3).
    """

    mix: Tensor
    directions: Tensor

    def whole(self, start: Tensor) -> Tensor:
        """The weights that this form stands for, (hidden, channels, 3, 3)."""
        return start + (self.mix @ self.directions.flatten(1)).view_as(start)

    def __call__(self, maps: Tensor, start: Tensor) -> Tensor:
        """Results of the layer, (images, hidden, h, w).

        Args:
            maps: (images, channels, h, w).
            start: results of the initial layer, (images, hidden, h, w).
        """
        moved = self.mix @ convolve(maps, self.directions).flatten(2)
        return moved.view_as(start).add_(start)


def low_rank(weights: Tensor, start: Tensor, smallest: float) -> LowRankLayer:
    """The low-rank form of a layer that fitting brought from ``start`` to ``weights``, both (hidden, channels, 3, 3).

    Args:
        smallest: directions are left out whose singular value is below this share of the largest.
    """
    moved = (weights - start).movedim(1, 3)  # taps before channels, as convolve reads them
    rows = moved.flatten(1)
    squares, vectors = torch.linalg.eigh((rows @ rows.T).double())  # ascending
    kept = squares > smallest**2 * squares[-1]
    kept[-1] = True  # one direction at least, also of a layer that did not move
    mix = vectors[:, kept].to(weights.dtype)
    return LowRankLayer(mix, (mix.T @ rows).view(-1, *moved.shape[1:]).movedim(3, 1))
