"""Methods that prove the harness: one that knows the truth, one that knows nothing."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.features.support import Support
from gfss.methods.base import Method
from gfss.models.pspnet import Features


class Oracle(Method):
    """Says the truth, which the harness shows it: every figure must be 100."""

    name = "oracle"

    def __init__(self) -> None:
        self.truth = torch.zeros(0)
        self.classes = 0

    def learn(self, support: Support) -> None:
        self.classes = support.base + 1 + support.novel

    def scores(self, query: Features) -> Tensor:
        labels = self.truth.long()
        return F.one_hot(labels.where(labels < self.classes, 0), self.classes).permute(0, 3, 1, 2).float()


class Background(Method):
    """Says background everywhere: base and novel figures must be 0."""

    name = "background"

    def __init__(self) -> None:
        self.classes = 0

    def learn(self, support: Support) -> None:
        self.classes = support.base + 1 + support.novel

    def scores(self, query: Features) -> Tensor:
        scores = query.base.new_zeros(len(query), self.classes, *query.size)
        scores[:, 0] = 1
        return scores


class BaseOnly(Method):
    """The base classifier alone: the upper bound on base classes, nothing on novel ones."""

    name = "base"

    def learn(self, support: Support) -> None:
        self.novel = support.novel

    def scores(self, query: Features) -> Tensor:
        lowest = query.base.amin(dim=1, keepdim=True) - 1
        return torch.cat([query.base, lowest.expand(-1, self.novel, -1, -1)], dim=1)
