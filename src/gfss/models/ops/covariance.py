"""The cross-covariance in another order of its products: the same numbers up to rounding.

There are few classes and many channels, so the products are taken as (Y Omega^T Gamma) F^T and (attention F) Lambda^T:
the channels are never projected. Pyramid branches enter at their own resolution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gfss.models.calibrators.cross_covariance import FLAT, CrossCovariance, unit_rows
from gfss.models.ops.upsample import upsample


class FastCrossCovariance(CrossCovariance):
    """:class:`CrossCovariance` without projected channels."""

    def forward(self, scores: Tensor, maps: Sequence[Tensor]) -> Tensor:
        """Offset (batch, classes, h, w); arguments as in :meth:`CrossCovariance.forward`."""
        batch, classes, height, width = scores.shape
        size, heads = (height, width), self.options.heads
        tokens = scores.flatten(2)
        groups = [Channels(group, size, self.options.normalise) for group in maps]
        if self.options.normalise:
            tokens = unit_rows(tokens)
        query, key, value = self.projections(size)
        # Y Omega^T Gamma, (batch, heads, classes, positions)
        patterns = self.split(tokens @ query.T) @ key.unflatten(0, (heads, -1))
        attention = self.weigh(torch.cat([group.products(patterns) for group in groups], dim=-1))
        parts = attention.split([group.count for group in groups], dim=-1)
        mixed = sum(group.mix(part) for group, part in zip(groups, parts, strict=True))
        assert isinstance(mixed, Tensor)
        values = mixed @ value.unflatten(0, (heads, -1)).transpose(1, 2)
        return self.offset(values.transpose(1, 2).reshape(batch, classes, self.options.dimension), size)


class Channels:
    """A group of feature channels as tokens, at its own resolution, optionally centred and of length one."""

    def __init__(self, maps: Tensor, size: tuple[int, int], normalise: bool) -> None:
        self.count = maps.shape[1]
        small = (maps.shape[-2], maps.shape[-1])
        self.rows = maps.flatten(2)  # (batch, channels, own positions)
        self.spread = None if small == size else interpolation(small, size, maps)  # (own positions, positions)
        if normalise:
            ones = maps.new_ones(1, size[0] * size[1]) if self.spread is None else self.spread.sum(1)[None]
            mean = (self.rows * ones).sum(dim=2, keepdim=True) / (size[0] * size[1])
            self.rows = self.rows - mean  # bilinear weights sum to one, so a constant stays a constant
            full = self.rows if self.spread is None else self.rows @ _root(self.spread)
            self.rows = self.rows / full.norm(dim=2, keepdim=True).clamp_min(FLAT)

    def products(self, patterns: Tensor) -> Tensor:
        """Inner products with patterns (batch, heads, classes, positions): (batch, heads, classes, channels)."""
        if self.spread is not None:
            patterns = patterns @ self.spread.T
        return patterns @ self.rows[:, None].transpose(2, 3)

    def mix(self, weights: Tensor) -> Tensor:
        """Channels mixed by weights (batch, heads, classes, channels): (batch, heads, classes, positions)."""
        mixed = weights @ self.rows[:, None]
        return mixed if self.spread is None else mixed @ self.spread


def interpolation(small: tuple[int, int], size: tuple[int, int], like: Tensor) -> Tensor:
    """Bilinear upsampling as a matrix (small positions, positions)."""
    count = small[0] * small[1]
    unit = torch.eye(count, device=like.device, dtype=like.dtype).view(count, 1, *small)
    return upsample(unit, size).view(count, -1)


def _root(spread: Tensor) -> Tensor:
    """A small matrix R with R R^T = S S^T, so that row lengths can be taken without upsampling."""
    values, vectors = torch.linalg.eigh(spread @ spread.T)
    return vectors * values.clamp_min(0).sqrt()
