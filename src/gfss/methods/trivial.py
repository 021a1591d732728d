"""The base model alone, as a method."""

from __future__ import annotations

import torch
from torch import Tensor

from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.models.base_model import Features


class BaseOnly(Method):
    """The base classifier alone: the upper bound on base classes, nothing on novel ones."""

    name = "base"

    def learn(self, support: Support) -> None:
        self.novel = support.novel

    def scores(self, query: Features) -> Tensor:
        lowest = query.base.amin(dim=1, keepdim=True) - 1
        return torch.cat([query.base, lowest.expand(-1, self.novel, -1, -1)], dim=1)
