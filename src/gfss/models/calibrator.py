"""Calibrators: from fused scores to calibrated ones, with the help of the image's features.

The paper's T is :class:`CrossCovariance`: every class's score map is a query, every feature channel a key and a
value; all projections act over positions, so the number of classes is free. Written with Y (classes x positions)
and F (channels x positions):

    attention = softmax(Y Omega^T (F Gamma^T)^T)        classes x channels
    offset    = Delta(attention F Lambda^T)             classes x positions

There are few classes and many channels, so the products are taken as (Y Omega^T Gamma) F^T and
(attention F) Lambda^T: the channels are never projected. Pyramid branches enter at their own resolution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.errors import GfssError, unknown
from gfss.models.evidence import Evidence
from gfss.models.exchange import Exchange, PixelExchange
from gfss.models.maps import upsample
from gfss.models.pspnet import Features

Kind = Literal["cross-covariance", "self-attention", "linear", "linear-no-residual", "pixel", "exchange"]
FLAT = 1e-3  # a map whose variation is shorter than this is taken as constant, not blown up to length one


@dataclass(frozen=True)
class CalibratorOptions:
    """What a calibrator is made of; the defaults are our best, :data:`PRINTED` is the paper's form.

    Attributes:
        kind: ``exchange`` (between classes, with the evidence of support and query; no attention),
            ``cross-covariance`` (the paper's), ``self-attention``, ``linear``, ``linear-no-residual`` or ``pixel``.
        features: maps whose channels are keys and values; the paper: ``("layer4", "pooled")``.
        dimension: d, columns of the projections.
        heads: attention heads.
        scaling: divide by sqrt(d) ``inside`` the softmax or ``after`` it (as printed).
        normalise: tokens are centred and scaled to length one, with a learned temperature: a true correlation.
        start: projections start as ``cosine`` (low spatial frequencies) or ``random``.
        zero_head: Delta starts at zero, so that training starts at the fused scores.
        scale: initial value of the learned scale of the fused scores; None keeps them as they are.
        exchange: add the exchange between classes, which also reads the evidence of support and query.
        compared: maps that this evidence comes from.
        both_fusions: the exchange reads score fusion beside NSF. Not with episodes of the base model itself: fake
            novel classes that it was trained on have high raw scores, true ones do not.
        dropout: dropout of the attention.
    """

    kind: Kind = "exchange"
    features: tuple[str, ...] = ("layer3", "layer4", "bottleneck")
    dimension: int = 256
    heads: int = 1
    scaling: Literal["inside", "after"] = "inside"
    normalise: bool = True
    start: Literal["cosine", "random"] = "cosine"
    zero_head: bool = True
    scale: float | None = 1.0
    exchange: bool = True
    compared: tuple[str, ...] = ("layer3", "layer4", "bottleneck")
    both_fusions: bool = True
    dropout: float = 0.0


PRINTED = CalibratorOptions(
    kind="cross-covariance",
    features=("layer4", "pooled"),
    dimension=512,
    scaling="after",
    normalise=False,
    start="random",
    zero_head=False,
    scale=None,
    exchange=False,
)
PRESETS = {
    "default": CalibratorOptions(),
    "same-model": CalibratorOptions(both_fusions=False),  # for episodes of the base model itself (held_out: 0)
    "with-attention": CalibratorOptions(kind="cross-covariance"),
    "printed": PRINTED,
    "self-attention": replace(PRINTED, kind="self-attention", scaling="inside"),
    "linear": replace(PRINTED, kind="linear"),
    "linear-no-residual": replace(PRINTED, kind="linear-no-residual"),
    "pixel": CalibratorOptions(kind="pixel", scale=10.0, exchange=False),
}


def stored_options(given: Mapping[str, Any]) -> CalibratorOptions:
    """Options from JSON."""
    lists = {name: tuple(given[name]) for name in ("features", "compared")}
    return CalibratorOptions(**{**given, **lists})


class Calibrator(nn.Module):
    """Calibrated scores = learned scale x fused scores + offsets."""

    def __init__(self, options: CalibratorOptions, size: tuple[int, int]) -> None:
        """Make a calibrator for maps of a size (others are handled by resampling its projections)."""
        super().__init__()
        self.options = options
        self.map_size = size
        positions = size[0] * size[1]
        self.scale = nn.Parameter(torch.tensor(float(options.scale))) if options.scale is not None else None
        self.attention = None
        self.linear = None
        self.pixel = None
        self.exchange = None
        if options.kind in ("cross-covariance", "self-attention"):
            self.attention = CrossCovariance(options, size)
        elif options.kind in ("linear", "linear-no-residual"):
            self.linear = nn.Linear(positions, positions)
        elif options.kind == "pixel":
            self.pixel = PixelExchange()
        elif options.kind != "exchange":
            raise unknown("calibrator", options.kind, get_args(Kind))
        if options.exchange:
            self.exchange = Exchange(len(options.compared), self.attention is not None, options.both_fusions)

    def forward(self, fused: Tensor, features: Features | None, novel: int, evidence: Evidence | None = None) -> Tensor:
        """Calibrate.

        Args:
            fused: fused scores (batch, background + base + novel, h, w).
            features: of the same images; None will do where :attr:`reads_features` is false.
            novel: number of novel classes, last in class order.
            evidence: what support and query say; None will do where :attr:`reads_evidence` is false.

        Returns:
            Scores like ``fused``; their softmax are the calibrated probabilities.
        """
        kept = fused if self.scale is None else fused * self.scale
        if self.linear is not None:
            return self._linear(kept, fused)
        if self.pixel is not None:
            return kept + self.pixel(fused, novel)
        offsets = None
        if self.attention is not None:
            offsets = self.attention(fused, self._tokens(fused, features))
            kept = kept + offsets
        if self.exchange is None:
            return kept
        if evidence is None:
            raise GfssError(
                "this calibrator reads the evidence of support and query; give it, or take another calibrator"
            )
        return kept + self.exchange(fused, novel, evidence, offsets)

    def _tokens(self, fused: Tensor, features: Features | None) -> list[Tensor]:
        if not self.reads_features:
            return [fused]
        assert features is not None
        return channel_maps(features, self.options.features)

    @property
    def reads_features(self) -> bool:
        """Whether it looks at the image's features, not only at scores and evidence."""
        return self.options.kind == "cross-covariance"

    @property
    def reads_evidence(self) -> bool:
        """Whether it looks at the evidence of support and query."""
        return self.exchange is not None

    def _linear(self, kept: Tensor, fused: Tensor) -> Tensor:
        assert self.linear is not None
        if fused.shape[-2:] != self.map_size:
            raise GfssError(
                f"a linear calibrator works on {self.map_size[0]} x {self.map_size[1]} maps only, "
                f"these are {fused.shape[-2]} x {fused.shape[-1]}"
            )
        offset = self.linear(fused.flatten(2)).view_as(fused)
        return offset if self.options.kind == "linear-no-residual" else kept + offset


def channel_maps(features: Features, names: Sequence[str]) -> list[Tensor]:
    """Maps by name, pyramid branches at their own resolution."""
    maps: list[Tensor] = []
    for name in names:
        maps += list(features.pooled) if name == "pooled" else [features.named([name])]
    return maps


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
