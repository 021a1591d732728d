"""Fusion of base and novel scores, pixel by pixel, and its properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gfss.methods.pcn import normalised_parameter_fusion, normalised_score_fusion, score_fusion
from gfss.methods.prototypes import masked_average
from gfss.models.ops.upsample import mask_shares


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(scores: list[float]) -> list[float]:
    exponentials = [math.exp(score) for score in scores]
    return [value / sum(exponentials) for value in exponentials]


@pytest.mark.parametrize("new", [1, 3])
def test_score_and_nsf_pixel_by_pixel(new: int) -> None:
    base, novel = randn(2, 5, 3, 4), randn(2, 1 + new, 3, 4, seed=1)
    raw, normalised = score_fusion(base, novel), normalised_score_fusion(base, novel)
    assert raw.shape == normalised.shape == (2, 5 + new, 3, 4)
    for image in range(2):
        for y in range(3):
            for x in range(4):
                b, n = base[image, :, y, x].tolist(), novel[image, :, y, x].tolist()
                assert raw[image, :, y, x].tolist() == [*b, *n[1:]]
                expected = [*softmax(b), *softmax(n)[1:]]
                assert normalised[image, :, y, x].tolist() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from([1.0, 100.0]), st.integers(0, 100))
def test_each_block_of_nsf_sums_to_one(base: int, new: int, spread: float, seed: int) -> None:
    base_logits = spread * randn(2, base + 1, 3, 3, seed=seed)
    novel_logits = spread * randn(2, 1 + new, 3, 3, seed=seed + 1)
    scores = normalised_score_fusion(base_logits, novel_logits)
    ones = torch.ones(2, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(scores[:, : base + 1].sum(dim=1), ones, rtol=0, atol=1e-12)
    none = novel_logits.softmax(dim=1)[:, 0]  # the one output that fusion drops
    torch.testing.assert_close(scores[:, base + 1 :].sum(dim=1) + none, ones, rtol=0, atol=1e-12)


def test_adding_a_novel_class_leaves_the_base_scores() -> None:
    base, novel = randn(1, 5, 3, 3), randn(1, 4, 3, 3, seed=1)
    for fusion in (score_fusion, normalised_score_fusion):
        assert torch.equal(fusion(base, novel)[:, :5], fusion(base, novel[:, :2])[:, :5])


def test_npf_scales_every_row_to_length_one() -> None:
    features, rows, prototypes = randn(2, 6, 3, 4), randn(4, 6, seed=1), randn(2, 6, seed=2)
    scores = normalised_parameter_fusion(features, rows, prototypes)
    assert scores.shape == (2, 6, 3, 4)
    for label, row in enumerate([*rows, *prototypes]):
        length = math.sqrt(sum(value * value for value in row.tolist()))
        expected = sum(row[channel] / length * features[:, channel] for channel in range(6))
        torch.testing.assert_close(scores[:, label], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        normalised_parameter_fusion(features, 7 * rows, prototypes / 3), scores, rtol=0, atol=1e-12
    )


def test_prototype_is_the_mean_over_supports_of_their_means() -> None:
    maps = randn(2, 5, 4, 4)
    masks = torch.zeros(2, 4, 4, dtype=torch.float64)
    masks[0, 1, 1], masks[0, 2, 3] = 1, 0.5
    masks[1, :3] = 1
    first = (maps[0, :, 1, 1] + 0.5 * maps[0, :, 2, 3]) / 1.5
    second = maps[1, :, :3].mean(dim=(1, 2))
    torch.testing.assert_close(masked_average(maps, masks), (first + second) / 2, rtol=0, atol=1e-12)


def test_mask_shares_are_the_share_of_each_cell() -> None:
    labels = torch.zeros(1, 8, 12, dtype=torch.uint8)
    labels[0, :4, :3] = 6
    labels[0, 4:, 8:] = 6
    labels[0, 0, 0] = 255
    shares = mask_shares(labels, 6, (2, 3))
    assert shares.tolist() == [[[11 / 16, 0, 0], [0, 0, 1]]]
