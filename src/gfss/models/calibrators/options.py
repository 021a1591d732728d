"""What calibrators are made of: options and presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from gfss.common.options import options

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
