"""The paper's T: a transformer over the cross-covariance of features and scores.

Every class's score map is a query, every feature channel a key and a value; all projections act over positions, so the
number of classes is free. Written with Y (classes x positions) and F (channels x positions):

    attention = softmax(Y Omega^T (F Gamma^T)^T)        classes x channels
    offset    = Delta(attention F Lambda^T)             classes x positions

There are few classes and many channels, so the products are taken as (Y Omega^T Gamma) F^T and
(attention F) Lambda^T: the channels are never projected. Pyramid branches enter at their own resolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.calibrators.options import CalibratorOptions
from gfss.models.ops.upsample import upsample

FLAT = 1e-3  # a map whose variation is shorter than this is taken as constant, not blown up to length one


class CrossCovariance(nn.Module):
    """The feature-score cross-covariance transformer (eq. 4 to 6); returns the offset of the scores."""

    def __init__(self, options: CalibratorOptions, size: tuple[int, int]) -> None:
        super().__init__()
        if options.dimension % options.heads:
            raise GfssError(f"d = {options.dimension} cannot be split into {options.heads} heads")
        self.options = options
        self.map_size = size
        positions, d = size[0] * size[1], options.dimension
        start = cosine_basis(size, d) if options.start == "cosine" else None
        deviation = math.sqrt(2 / (positions + d))
        self.query = _projection(start, d, positions, deviation)  # Omega
        self.key = _projection(start, d, positions, deviation)  # Gamma
        self.value = _projection(start, d, positions, deviation)  # Lambda
        self.head = nn.Linear(d, positions)  # Delta
        if options.zero_head:
            nn.init.zeros_(self.head.weight)
        else:
            nn.init.xavier_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.temperature = nn.Parameter(torch.tensor(math.log(15.0))) if options.normalise else None
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, scores: Tensor, maps: Sequence[Tensor]) -> Tensor:
        """Offset (batch, classes, h, w).

        Args:
            scores: (batch, classes, h, w).
            maps: channel groups (batch, channels, h or bin, w or bin).
        """
        batch, classes, height, width = scores.shape
        size, d, heads = (height, width), self.options.dimension, self.options.heads
        tokens = scores.flatten(2)
        groups = [Channels(group, size, self.options.normalise) for group in maps]
        if self.options.normalise:
            tokens = F.normalize(tokens - tokens.mean(dim=2, keepdim=True), dim=2, eps=FLAT)
        power = 0.5 if self.options.normalise else 1.0  # tokens of length one grow weaker per position on larger maps
        query, key = (_resample(weight, self.map_size, size, power) for weight in (self.query, self.key))
        value = _resample(self.value, self.map_size, size)
        projected = (tokens @ query.T).view(batch, classes, heads, d // heads).transpose(1, 2)
        patterns = projected @ key.view(heads, d // heads, -1)  # Y Omega^T Gamma, (batch, heads, classes, positions)
        logits = torch.cat([group.products(patterns) for group in groups], dim=-1)
        if self.temperature is not None:
            logits = logits * self.temperature.exp()
        elif self.options.scaling == "inside":
            logits = logits / math.sqrt(d / heads)
        attention = self.dropout(logits.softmax(dim=-1))
        parts = attention.split([group.count for group in groups], dim=-1)
        mixed = sum(group.mix(part) for group, part in zip(groups, parts, strict=True))
        assert isinstance(mixed, Tensor)
        values = mixed @ value.view(heads, d // heads, -1).transpose(1, 2)
        values = values.transpose(1, 2).reshape(batch, classes, d)
        if self.options.normalise:
            values = values * (height * width) ** 0.5
        if self.options.scaling == "after":
            values = values / math.sqrt(d)
        offset = values @ _resample(self.head.weight.T, self.map_size, size, power=0.0)
        bias = _resample(self.head.bias[None], self.map_size, size, power=0.0)
        return (offset + bias).view(batch, classes, height, width)


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


def cosine_basis(size: tuple[int, int], count: int) -> Tensor:
    """The ``count`` cosine patterns of lowest frequency on a grid, orthonormal rows, (count, positions)."""
    axes: list[Tensor] = []
    for length in size:
        steps = (torch.arange(length, dtype=torch.float64) + 0.5) * math.pi / length
        waves = torch.cos(torch.arange(length, dtype=torch.float64)[:, None] * steps)
        axes.append(F.normalize(waves, dim=1))
    pairs = [(y * y + x * x, y, x) for y in range(size[0]) for x in range(size[1])]
    chosen = sorted(pairs)[:count]
    rows = [torch.outer(axes[0][y], axes[1][x]).flatten() for _, y, x in chosen]
    rows += [torch.zeros(size[0] * size[1], dtype=torch.float64)] * (count - len(rows))
    return torch.stack(rows).float()


def _projection(start: Tensor | None, d: int, positions: int, deviation: float) -> nn.Parameter:
    return nn.Parameter(start.clone() if start is not None else torch.randn(d, positions) * deviation)


def _resample(weight: Tensor, trained: tuple[int, int], size: tuple[int, int], power: float = 1.0) -> Tensor:
    """Projection (d, positions) for another map size: its patterns resized, sums over positions kept comparable.

    Args:
        power: of the ratio of positions that the patterns are multiplied with; 0 leaves their values as they are.
    """
    if trained == size:
        return weight
    patterns = upsample(weight.reshape(weight.shape[0], 1, *trained), size).reshape(weight.shape[0], -1)
    return patterns * (trained[0] * trained[1] / (size[0] * size[1])) ** power
