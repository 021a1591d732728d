"""Labels without features, for methods that read none: the harness runs before any model is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gfss.common.devices import CPU
from gfss.data.datasets.base import Dataset
from gfss.data.transforms import square_label
from gfss.models.pspnet import Features

SIDE = 2  # of the empty maps


@dataclass(frozen=True)
class LabelOnlyStore:
    """Labels of a split, and empty features.

    Attributes:
        dataset: the split.
        base: number of base classes.
        size: side of the square labels.
    """

    dataset: Dataset
    base: int
    size: int

    def features(self, images: Sequence[int]) -> Features:
        """Maps of zeros."""
        empty = torch.zeros(len(images), 1, SIDE, SIDE)
        return Features({}, (), empty, empty.expand(-1, self.base + 1, -1, -1))

    device = CPU

    def labels(self, images: Sequence[int], table: np.ndarray | None = None, stride: int = 1) -> Tensor:
        """Label maps as :meth:`gfss.features.bank.Bank.labels` gives them."""
        rows = np.stack([square_label(self.dataset.mask(i), self.size)[::stride, ::stride] for i in images])
        return torch.from_numpy(rows if table is None else table[rows])

    def rows(self) -> Tensor:
        """Rows of a base classifier that knows nothing."""
        return torch.zeros(self.base + 1, 1)
