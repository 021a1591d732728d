"""The highest values of a dimension."""

from __future__ import annotations

import torch
from torch import Tensor


def highest(values: Tensor, count: int) -> Tensor:
    """The ``count`` highest values over dimension 1, highest first: ``values.topk(count, dim=1).values``.

    Row by row, all columns at once: for few of many that is faster on a CPU than torch's top k.
    """
    if torch.compiler.is_exporting():
        return values.topk(count, dim=1).values
    found: list[Tensor] = []
    for row in values.unbind(dim=1):
        for rank, best in enumerate(found):
            found[rank], row = torch.maximum(best, row), torch.minimum(best, row)
        if len(found) < count:
            found.append(row)
    return torch.stack(found, dim=1)
