"""Novel classifier as logistic regression: one linear row per class over feature maps of several strides.

Every level is brought to unit length over its channels, so that fine and deep levels speak equally loud. A row is
linear, so each level is multiplied at its own resolution and only the products are upsampled to the finest grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.ops.upsample import upsample

SHORTEST = 1e-6  # vectors are not taken as shorter when they are brought to length one
FLAT = 1e-4  # channels are not taken as less spread when they are standardised


@dataclass(frozen=True)
class LogisticOptions:
    """How a row is fitted; chosen on base classes and on the tuning half of ``benchmarks/own_data.py``.

    Attributes:
        l2: weight of the squared length of the row, on standardised features.
        iterations: at most so many of L-BFGS.
    """

    l2: float = 0.03
    iterations: int = 60


@dataclass(frozen=True)
class LogisticHead:
    """Rows of several classes.

    Attributes:
        weight: (classes, channels of all levels one after the other).
        bias: (classes,).
    """

    weight: Tensor
    bias: Tensor

    def logits(self, maps: Mapping[str, Tensor]) -> Tensor:
        """Log-odds of every class on the finest grid, (batch, classes, h, w).

        Args:
            maps: what :func:`unit_maps` gave, name -> (batch, channels, h, w).
        """
        parts = self.parts(maps)
        return torch.stack(parts).sum(dim=0) + self.bias[:, None, None]

    def parts(self, maps: Mapping[str, Tensor]) -> list[Tensor]:
        """The share of every level in the log-odds, each (batch, classes, h, w) on the finest grid."""
        widths = [level.shape[1] for level in maps.values()]
        if sum(widths) != self.weight.shape[1]:
            raise GfssError(
                f"the novel classifier was fitted on {self.weight.shape[1]} channels, these features have "
                f"{sum(widths)}; use the features it was fitted on"
            )
        size = finest_grid(maps)
        rows = self.weight.split(widths, dim=1)
        return [
            upsample((row @ level.flatten(2)).unflatten(2, (level.shape[-2], level.shape[-1])), size)
            for row, level in zip(rows, maps.values(), strict=True)
        ]


def unit_maps(levels: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Levels, name -> (batch, channels, h, w), with vectors of length one at every position."""
    return {
        name: level / level.square().sum(dim=1, keepdim=True).sqrt().clamp_min(SHORTEST)
        for name, level in levels.items()
    }


def finest_grid(maps: Mapping[str, Tensor]) -> tuple[int, int]:
    """Height and width of the finest level."""
    height, width = max((level.shape[-2], level.shape[-1]) for level in maps.values())
    return height, width


def features_at(maps: Mapping[str, Tensor], rows: Tensor, columns: Tensor) -> Tensor:
    """Feature vectors of one image at positions of the finest grid, (positions, channels of all levels).

    Args:
        maps: name -> (1, channels, h, w).
        rows: (positions,) of the finest grid.
        columns: (positions,).
    """
    height, width = finest_grid(maps)
    places = torch.stack([columns * (2 / max(1, width - 1)) - 1, rows * (2 / max(1, height - 1)) - 1], dim=-1)
    parts = [
        F.grid_sample(level, places.to(level.dtype)[None, None], mode="bilinear", align_corners=True)[0, :, 0]
        for level in maps.values()
    ]
    return torch.cat(parts).T


@torch.inference_mode(False)
@torch.enable_grad()
def fit_logistic(
    features: Tensor,
    labels: Tensor,
    weights: Tensor,
    options: LogisticOptions | None = None,
    usual: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The row and bias that minimise the weighted mean cross entropy plus l2 / 2 times the squared row.

    Features are standardised first; the row that is returned takes them as they come.

    Args:
        features: (samples, channels).
        labels: (samples,) of 0 and 1; both must occur.
        weights: (samples,), not negative.
        usual: mean and spread (channels,) to standardise by; those of these features if left out.
    """
    options = options or LogisticOptions()
    features, weights = features.float().clone(), (weights / weights.sum()).float()
    positive = labels.bool()
    if not positive.any() or positive.all():
        raise GfssError("a class is fitted from positions of the class and positions of the rest; one kind is missing")
    if not torch.isfinite(features).all():
        raise GfssError("the support features hold NaN or infinite values; check the images")
    if usual is None:
        mean = weights @ features
        spread = (weights @ (features - mean).square()).sqrt()
    else:
        mean, spread = usual
    spread = spread.clamp_min(FLAT)
    inputs = (features - mean) / spread
    sign = torch.where(positive, 1.0, -1.0)
    row = torch.zeros(features.shape[1] + 1, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [row],
        max_iter=options.iterations,
        history_size=10,
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        margin = sign * (inputs @ row[:-1] + row[-1])
        value = weights @ F.softplus(-margin) + options.l2 / 2 * row[:-1].square().sum()
        value.backward()
        return value

    optimiser.step(loss)  # pyright: ignore[reportArgumentType] torch wants a float, its own docs give a tensor
    fitted = row.detach()
    weight = fitted[:-1] / spread
    return weight, fitted[-1] - weight @ mean


def known_or_novel(base: Tensor, odds: Tensor) -> Tensor:
    """Scores in which a novel class wins where its log-odds are positive: the best known class has 0.

    Args:
        base: base logits (batch, base + 1, h, w).
        odds: log-odds of the novel classes (batch, novel, h', w').
    """
    known = upsample(base.log_softmax(dim=1), (odds.shape[-2], odds.shape[-1]))
    return torch.cat([known - known.amax(dim=1, keepdim=True), odds], dim=1)
