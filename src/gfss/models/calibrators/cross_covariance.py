"""The paper's T: a transformer over the cross-covariance of features and scores.

Every class's score map is a query, every feature channel a key and a value; all projections act over positions, so the
number of classes is free. Written with Y (classes x positions) and F (channels x positions):

    attention = softmax(Y Omega^T (F Gamma^T)^T)        classes x channels
    offset    = Delta(attention F Lambda^T)             classes x positions

A faster order of these products is :mod:`gfss.models.ops.covariance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.ops.upsample import upsample

if TYPE_CHECKING:
    from gfss.models.calibrators.calibrator import CalibratorOptions

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
        size, options = (height, width), self.options
        tokens = scores.flatten(2)  # Y
        channels = torch.cat([upsample(group, size) for group in maps], dim=1).flatten(2)  # F
        if options.normalise:
            tokens, channels = (unit_rows(rows) for rows in (tokens, channels))
        query, key, value = self.projections(size)
        q, k, v = self.split(tokens @ query.T), self.split(channels @ key.T), self.split(channels @ value.T)
        attention = self.weigh(q @ k.transpose(2, 3))  # eq. 4, (batch, heads, classes, channels)
        values = (attention @ v).transpose(1, 2).reshape(batch, classes, options.dimension)  # eq. 5
        return self.offset(values, size)  # eq. 6

    def projections(self, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Omega, Gamma and Lambda for maps of a size, (d, positions) each."""
        power = 0.5 if self.options.normalise else 1.0  # tokens of length one grow weaker per position on larger maps
        query, key = (_resample(weight, self.map_size, size, power) for weight in (self.query, self.key))
        return query, key, _resample(self.value, self.map_size, size)

    def split(self, rows: Tensor) -> Tensor:
        """Rows (batch, n, d) by heads, (batch, heads, n, d / heads)."""
        return rows.unflatten(2, (self.options.heads, -1)).transpose(1, 2)

    def weigh(self, logits: Tensor) -> Tensor:
        """Attention over channels, (..., channels)."""
        if self.temperature is not None:
            logits = logits * self.temperature.exp()
        elif self.options.scaling == "inside":
            logits = logits / math.sqrt(self.options.dimension / self.options.heads)
        return self.dropout(logits.softmax(dim=-1))

    def offset(self, values: Tensor, size: tuple[int, int]) -> Tensor:
        """Delta: from values (batch, classes, d) to maps (batch, classes, h, w)."""
        if self.options.normalise:
            values = values * (size[0] * size[1]) ** 0.5
        if self.options.scaling == "after":
            values = values / math.sqrt(self.options.dimension)
        weight, bias = (
            _resample(w, self.map_size, size, power=0.0) for w in (self.head.weight.T, self.head.bias[None])
        )
        return (values @ weight + bias).unflatten(2, size)


def unit_rows(rows: Tensor) -> Tensor:
    """Rows (batch, n, positions) centred and of length one; nearly constant ones stay short."""
    return F.normalize(rows - rows.mean(dim=2, keepdim=True), dim=2, eps=FLAT)


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
