"""Calibrators: from fused scores to calibrated ones, with the help of the image's features and of the support's.

The paper's is :mod:`gfss.models.calibrators.cross_covariance`, ours :mod:`gfss.models.calibrators.pcn_support`;
the others are the paper's ablations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gfss.common.errors import GfssError, unknown
from gfss.common.options import options
from gfss.models.base_model import Features
from gfss.models.calibrators.cross_covariance import CrossCovariance
from gfss.models.calibrators.pcn_support import ClassInteraction, PixelInteraction, SimilarityMaps
from gfss.models.ops.covariance import FastCrossCovariance

Kind = Literal["cross-covariance", "self-attention", "linear", "linear-no-residual", "pixel", "class-interaction"]


@options
class CalibratorOptions:
    """What a calibrator is made of; the defaults are those of our ``pcn-support``, :data:`PAPER` is the paper's form.

    Attributes:
        kind: ``class-interaction`` (ours, without attention), ``cross-covariance`` (the paper's),
            ``self-attention``, ``linear``, ``linear-no-residual`` or ``pixel``.
        features: maps whose channels are keys and values; the paper: ``("layer4", "pooled")``.
        dimension: d, columns of the projections.
        heads: attention heads.
        scaling: divide by sqrt(d) ``inside`` the softmax or ``after`` it (as printed).
        normalise: tokens are centred and scaled to length one, with a learned temperature: a true correlation.
        start: projections start as ``cosine`` (low spatial frequencies) or ``random``.
        zero_head: Delta starts at zero, so that training starts at the fused scores.
        scale: initial value of the learned scale of the fused scores; None keeps them as they are.
        class_interaction: add the interaction between classes, which also reads the similarity maps of support and
            query.
        compared: feature maps that these similarities are taken in.
        both_fusions: the interaction reads score fusion beside NSF. Not with episodes of the base model itself: fake
            novel classes that it was trained on have high raw scores, true ones do not.
        dropout: dropout of the attention.
    """

    kind: Kind = "class-interaction"
    features: tuple[str, ...] = ("layer3", "layer4", "bottleneck")
    dimension: int = 256
    heads: int = 1
    scaling: Literal["inside", "after"] = "inside"
    normalise: bool = True
    start: Literal["cosine", "random"] = "cosine"
    zero_head: bool = True
    scale: float | None = 1.0
    class_interaction: bool = True
    compared: tuple[str, ...] = ("layer3", "layer4", "bottleneck")
    both_fusions: bool = True
    dropout: float = 0.0


# equations 4 to 6 to the letter
AS_PRINTED = CalibratorOptions(
    kind="cross-covariance",
    features=("layer4", "pooled"),
    dimension=512,
    scaling="after",
    normalise=False,
    start="random",
    zero_head=False,
    scale=None,
    class_interaction=False,
)
# the paper's calibrator; scale of the scores and start of Delta, which it leaves open, settled in its favour
PAPER = replace(AS_PRINTED, scale=10.0, zero_head=True)
# by the name of the method that has them
PRESETS = {
    "pcn": PAPER,
    "pcn-as-printed": AS_PRINTED,
    "pcn-support": CalibratorOptions(),
    # for episodes of the base model itself (held_out: 0)
    "pcn-support-same-model": CalibratorOptions(both_fusions=False),
    "pcn-support-attention": CalibratorOptions(kind="cross-covariance"),
    "self-attention": replace(AS_PRINTED, kind="self-attention", scaling="inside"),
    "linear": replace(AS_PRINTED, kind="linear"),
    "linear-no-residual": replace(AS_PRINTED, kind="linear-no-residual"),
    "pixel": CalibratorOptions(kind="pixel", scale=10.0, class_interaction=False),
}


def stored_options(given: Mapping[str, Any]) -> CalibratorOptions:
    """Options from JSON."""
    lists = {name: tuple(given[name]) for name in ("features", "compared")}
    return CalibratorOptions(**{**given, **lists})


class Calibrator(nn.Module):
    """Calibrated scores = learned scale x fused scores + offsets."""

    def __init__(self, options: CalibratorOptions, size: tuple[int, int], fast: bool = False) -> None:
        """Make a calibrator.

        Args:
            size: of the maps; others are handled by resampling its projections.
            fast: take the products of the cross-covariance in a faster order.
        """
        super().__init__()
        self.options = options
        self.map_size = size
        self.fast = fast
        positions = size[0] * size[1]
        self.scale = nn.Parameter(torch.tensor(float(options.scale))) if options.scale is not None else None
        self.attention = None
        self.linear = None
        self.pixel = None
        self.class_interaction = None
        if options.kind in ("cross-covariance", "self-attention"):
            self.attention = (FastCrossCovariance if fast else CrossCovariance)(options, size)
        elif options.kind in ("linear", "linear-no-residual"):
            self.linear = nn.Linear(positions, positions)
        elif options.kind == "pixel":
            self.pixel = PixelInteraction()
        elif options.kind != "class-interaction":
            raise unknown("calibrator", options.kind, get_args(Kind))
        if options.class_interaction:
            attention = self.attention is not None
            self.class_interaction = ClassInteraction(len(options.compared), attention, options.both_fusions)

    def forward(
        self, fused: Tensor, features: Features | None, novel: int, similarity: SimilarityMaps | None = None
    ) -> Tensor:
        """Calibrate.

        Args:
            fused: fused scores (batch, background + base + novel, h, w).
            features: of the same images; None will do where :attr:`reads_features` is false.
            novel: number of novel classes, last in class order.
            similarity: of the query to the support and to itself; None will do where :attr:`reads_similarity` is false.

        Returns:
            Scores like ``fused``; their softmax are the calibrated probabilities.
        """
        scores = fused if self.scale is None else fused * self.scale
        if self.linear is not None:
            return self._linear(scores, fused)
        if self.pixel is not None:
            return scores + self.pixel(fused, novel)
        offsets = None
        if self.attention is not None:
            offsets = self.attention(fused, self._tokens(fused, features))
            scores = scores + offsets
        if self.class_interaction is None:
            return scores
        if similarity is None:
            raise GfssError(
                "this calibrator needs the similarity maps of support and query; pass them, or use another calibrator"
            )
        return scores + self.class_interaction(fused, novel, similarity, offsets)

    def _tokens(self, fused: Tensor, features: Features | None) -> list[Tensor]:
        if not self.reads_features:
            return [fused]
        assert features is not None
        return channel_maps(features, self.options.features)

    @property
    def reads_features(self) -> bool:
        """Whether it looks at the image's features, not only at scores and similarity maps."""
        return self.options.kind == "cross-covariance"

    @property
    def reads_similarity(self) -> bool:
        """Whether it looks at the similarity maps of support and query."""
        return self.class_interaction is not None

    def _linear(self, scores: Tensor, fused: Tensor) -> Tensor:
        assert self.linear is not None
        if fused.shape[-2:] != self.map_size:
            raise GfssError(
                f"a linear calibrator works on {self.map_size[0]} x {self.map_size[1]} maps only, "
                f"these are {fused.shape[-2]} x {fused.shape[-1]}"
            )
        offset = self.linear(fused.flatten(2)).view_as(fused)
        return offset if self.options.kind == "linear-no-residual" else scores + offset


def channel_maps(features: Features, names: Sequence[str]) -> list[Tensor]:
    """Maps by name, pyramid branches at their own resolution."""
    maps: list[Tensor] = []
    for name in names:
        maps += list(features.pooled) if name == "pooled" else [features.named([name])]
    return maps
