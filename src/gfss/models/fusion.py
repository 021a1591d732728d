"""Fusion: how base and novel scores become one set of scores.

Class order of the result: background, base classes, novel classes. The novel classifier's own "none" output
is dropped: the base model already says what is background.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def score_fusion(base: Tensor, novel: Tensor) -> Tensor:
    """Raw scores side by side.

    Args:
        base: base logits (batch, base + 1, h, w).
        novel: logits of the novel classifier (batch, 1 + new, h, w), "none" first.

    Returns:
        (batch, base + 1 + new, h, w).
    """
    return torch.cat([base, novel[:, 1:]], dim=1)


def normalised_score_fusion(base: Tensor, novel: Tensor) -> Tensor:
    """NSF, eq. 3: each classifier's softmax, side by side; shapes as in :func:`score_fusion`."""
    return torch.cat([base.softmax(dim=1), novel.softmax(dim=1)[:, 1:]], dim=1)


def normalised_parameter_fusion(bottleneck: Tensor, base_rows: Tensor, novel_rows: Tensor) -> Tensor:
    """NPF: all classifier rows scaled to length one, then multiplied with the (unscaled) features.

    Args:
        bottleneck: (batch, channels, h, w).
        base_rows: base classifier (base + 1, channels).
        novel_rows: (new, channels).
    """
    rows = F.normalize(torch.cat([base_rows, novel_rows]), dim=1)
    return F.conv2d(bottleneck, rows[..., None, None])


def masked_average(maps: Tensor, masks: Tensor) -> Tensor:
    """Prototype: average feature inside each support's mask, then over supports; (channels,).

    Args:
        maps: (supports, channels, h, w).
        masks: (supports, h, w) in [0, 1], the class's share of every position.
    """
    masks = masks.to(maps)
    sums = torch.einsum("schw,shw->sc", maps, masks)
    return (sums / masks.sum(dim=(1, 2)).clamp_min(1e-6)[:, None]).mean(dim=0)


def mask_shares(labels: Tensor, label: int, size: tuple[int, int]) -> Tensor:
    """Share of a class at every position of the maps: its mask averaged to map size, (supports, h, w)."""
    mask = (labels == label).float()[:, None]
    return F.interpolate(mask, size=size, mode="area")[:, 0]
