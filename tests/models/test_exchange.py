"""Exchange between classes against a network written for one class at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gfss.models.exchange import Exchange, strongest_other


def scores_of(classes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, classes, 5, 7, generator=generator, dtype=torch.float64)


def make_exchange(evidence: bool, kernel: int = 3) -> Exchange:
    """An exchange whose last layer is not zero."""
    exchange = Exchange(evidence, hidden=6, kernel=kernel).double()
    generator = torch.Generator().manual_seed(0)
    for weight in exchange.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return exchange


def largest_other(scores: Tensor, label: int) -> Tensor:
    """Largest score among the other classes, (batch, h, w)."""
    return torch.stack([scores[:, other] for other in range(scores.shape[1]) if other != label]).max(dim=0).values


def reference(exchange: Exchange, fused: Tensor, evidence: Tensor | None, novel: int) -> Tensor:
    """One class after the other."""
    batch, classes = fused.shape[:2]
    offsets: list[Tensor] = []
    for label in range(classes):
        own = fused[:, label]
        flat = torch.ones_like(own)
        inputs = [
            own,
            own.clamp_min(1e-4).log() / 4,
            largest_other(fused, label),
            fused[:, 0],
            flat * own.reshape(batch, -1).max(dim=1).values.view(batch, 1, 1),
            flat * own.reshape(batch, -1).mean(dim=1).view(batch, 1, 1),
            flat * (label >= classes - novel),
            flat * (label == 0),
        ]
        if evidence is not None:
            inputs += [evidence[:, label], largest_other(evidence, label), evidence[:, 0]]
        first, second = exchange.first, exchange.second
        hidden = F.conv2d(torch.stack(inputs, dim=1), first.weight, first.bias, padding=first.weight.shape[-1] // 2)
        offset = F.conv2d(hidden.clamp_min(0), second.weight, second.bias)[:, 0]
        offsets.append(offset if evidence is None else offset + evidence[:, label])
    return torch.stack(offsets, dim=1)


@pytest.mark.parametrize(("kernel", "with_evidence"), [(1, False), (3, True)])
@pytest.mark.parametrize(("classes", "novel"), [(3, 1), (6, 2)])
def test_exchange_equals_one_class_at_a_time(kernel: int, with_evidence: bool, classes: int, novel: int) -> None:
    exchange = make_exchange(with_evidence, kernel)
    fused = scores_of(classes)
    evidence = scores_of(classes, seed=1) - 0.5 if with_evidence else None
    expected = reference(exchange, fused, evidence, novel)
    torch.testing.assert_close(exchange(fused, evidence, novel), expected, rtol=0, atol=1e-10)


def test_exchange_starts_as_the_evidence_alone() -> None:
    evidence = scores_of(5, seed=1).float()
    assert torch.equal(Exchange(evidence=True)(scores_of(5).float(), evidence, 1), evidence)


def test_permuting_base_classes_permutes_the_offsets() -> None:
    exchange, fused, evidence = make_exchange(True), scores_of(6), scores_of(6, seed=1)
    order = [0, 3, 1, 4, 2, 5]  # background first, the novel class last
    expected = exchange(fused, evidence, 1)[:, order]
    torch.testing.assert_close(exchange(fused[:, order], evidence[:, order], 1), expected, rtol=0, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(0, 1000))
def test_strongest_other_with_many_ties(classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(3, (2, classes, 3, 3), generator=generator).float()
    expected = torch.stack([largest_other(scores, label) for label in range(classes)], dim=1)
    assert torch.equal(strongest_other(scores), expected)
