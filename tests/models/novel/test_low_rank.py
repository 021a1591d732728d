"""The low-rank form of a fitted first layer against convolutions, and what leaving out directions costs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gfss.models.novel.low_rank import low_rank

HIDDEN, CHANNELS = 6, 5


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(seed: int, rank: int) -> Tensor:
    """A change of the layer of some rank."""
    return torch.einsum("hr,rcyx->hcyx", drawn(seed, HIDDEN, rank), drawn(seed + 1, rank, CHANNELS, 3, 3))


@pytest.mark.parametrize("rank", [1, 3, HIDDEN])
def test_all_directions_are_the_layer_itself(rank: int) -> None:
    start, maps = drawn(0, HIDDEN, CHANNELS, 3, 3), drawn(1, 4, CHANNELS, 7, 8)
    weights = start + moved(2, rank)
    layer = low_rank(weights, start, smallest=1e-6)
    assert layer.directions.shape == (rank, CHANNELS, 3, 3)
    found = layer(maps, F.conv2d(maps, start, padding=1))
    torch.testing.assert_close(found, F.conv2d(maps, weights, padding=1))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), smallest=st.sampled_from([0.02, 0.3, 0.7]))
def test_what_is_left_out_is_small(seed: int, smallest: float) -> None:
    start = drawn(seed, HIDDEN, CHANNELS, 3, 3)
    weights = start + moved(seed + 1, HIDDEN)
    layer = low_rank(weights, start, smallest)
    found = start + torch.einsum("hr,rcyx->hcyx", layer.mix, layer.directions)
    torch.testing.assert_close(layer.whole(start), found)
    largest = torch.linalg.matrix_norm((weights - start).flatten(1), ord=2)
    assert torch.linalg.matrix_norm((weights - found).flatten(1), ord=2) <= smallest * largest * (1 + 1e-6)
    values = torch.linalg.svdvals((weights - start).flatten(1))
    assert layer.mix.shape[1] == int((values > smallest * largest).sum())


def test_a_layer_that_did_not_move() -> None:
    start, maps = drawn(0, HIDDEN, CHANNELS, 3, 3), drawn(1, 2, CHANNELS, 4, 4)
    response = F.conv2d(maps, start, padding=1)
    assert torch.equal(low_rank(start, start, 0.02)(maps, response), response)
