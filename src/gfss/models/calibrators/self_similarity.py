"""Similarity within a query: does a position look like the rest of what a class claims in the same image?

One object looks more like itself than like its kind. So each class gathers the features of the positions that it
claims, which is the covariance of its score map with the feature channels, as in the paper's calibrator, and every
position is compared with what was gathered. A class that claims next to nothing gathers nothing and is like nothing.
Nothing is trained here; :mod:`gfss.models.calibrators.class_interaction` learns what it means.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.models.pspnet import Features

SHARPNESS = 2  # power of the scores: positions that a class is sure of count more


def self_similarity(query: Features, scores: Tensor, names: Sequence[str]) -> Tensor:
    """Cosine of every position with what each class claims, (queries, classes, maps, h, w).

    Args:
        scores: of all classes, in [0, 1], (queries, classes, h, w).
        names: maps to compare.
    """
    claims = scores.flatten(2) ** SHARPNESS
    found: list[Tensor] = []
    for name in names:
        rows = query.unit(name).flatten(2)  # (queries, channels, positions)
        gathered = F.normalize(claims @ rows.transpose(1, 2), dim=2)  # (queries, classes, channels)
        found.append(gathered @ rows)
    return torch.stack(found, dim=2).unflatten(3, query.size)
