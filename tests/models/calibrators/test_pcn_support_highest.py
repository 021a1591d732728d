"""The highest values are those of torch's top k."""

from __future__ import annotations

import pytest
import torch

from gfss.models.calibrators.pcn_support import highest


@pytest.mark.parametrize("count", [1, 3, 7])
def test_top_k(count: int) -> None:
    values = torch.randint(0, 5, (2, 7, 3, 4), generator=torch.Generator().manual_seed(count)).float()
    assert torch.equal(highest(values, count), values.topk(count, dim=1).values)
