"""Losses of the methods that are trained on episodes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.models.ops.upsample import upsample


def calibration_loss(
    scores: Tensor, labels: Tensor, novel: int = 0, novel_weight: float = 1.0, overlap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross entropy of upsampled calibrated scores (eq. 9) as (sum, pixels); void ignored.

    Args:
        novel: number of novel classes, last in class order.
        novel_weight: pixels of these count so many times.
        overlap: weight of :func:`missed_overlap`, taken for every pixel of an image.
    """
    target = labels.long()
    full = upsample(scores, (labels.shape[-2], labels.shape[-1]))
    weights = scores.new_ones(scores.shape[1])
    weights[scores.shape[1] - novel :] = novel_weight
    total = F.cross_entropy(full, target, weights, ignore_index=VOID, reduction="sum")
    valid = target != VOID
    if overlap:
        total = total + overlap * (missed_overlap(full, target) * valid.sum(dim=(1, 2))).sum()
    return total, valid.sum()


def missed_overlap(scores: Tensor, labels: Tensor) -> Tensor:
    """One minus the soft IoU of every image, averaged over the classes that it shows (background apart), (batch,).

    A small object counts as much as a large one, as in the per-image metric. 0 for an image that shows no class.

    Args:
        scores: (batch, classes, height, width).
        labels: (batch, height, width), int64.
    """
    classes = torch.arange(1, scores.shape[1], device=scores.device)
    truth = (labels[:, None] == classes[:, None, None]).to(scores.dtype)
    found = scores.softmax(dim=1)[:, 1:] * (labels != VOID)[:, None]
    both = (found * truth).sum(dim=(2, 3))
    size = truth.sum(dim=(2, 3))
    missed = 1 - both / (found.sum(dim=(2, 3)) + size - both).clamp_min(1e-6)
    shown = size > 0
    return (missed * shown).sum(dim=1) / shown.sum(dim=1).clamp_min(1)
