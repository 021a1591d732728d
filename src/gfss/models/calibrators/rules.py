"""Calibration rules without training: the bar that a learned calibrator has to clear.

All take NSF scores (batch, background + base + novel, h, w) and the number of novel classes, and return scores of
the same shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

EPSILON = 1e-6


def split(fused: Tensor, novel: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of background, base classes and novel classes."""
    base = fused.shape[1] - novel - 1
    background, known, new = fused.split([1, base, novel], dim=1)
    return background, known, new


def gated(fused: Tensor, novel: int) -> Tensor:
    """Novel score times (1 - largest base score): a base class that is sure keeps its pixel."""
    background, known, new = split(fused, novel)
    return torch.cat([background, known, new * (1 - known.amax(dim=1, keepdim=True))], dim=1)


def background_share(fused: Tensor, novel: int) -> Tensor:
    """Novel classes take their share of the background's probability and of nothing else."""
    background, known, new = split(fused, novel)
    none = (1 - new).prod(dim=1, keepdim=True)
    return torch.cat([background * none, known, background * new], dim=1)


def log_odds(fused: Tensor, novel: int) -> Tensor:
    """Novel logit = background logit + log-odds of the novel classifier, renormalised."""
    background, known, new = split(fused, novel)
    new = new.clamp(EPSILON, 1 - EPSILON)
    scores = torch.cat([background, known, background * new / (1 - new)], dim=1)
    return scores / scores.sum(dim=1, keepdim=True).clamp_min(EPSILON)


RULES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "gated": gated,
    "background-share": background_share,
    "log-odds": log_odds,
}
