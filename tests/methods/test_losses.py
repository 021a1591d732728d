"""The part of a calibrator's loss that counts objects and not pixels: by loops, and what it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.methods.losses import calibration_loss, missed_overlap
from gfss.models.ops.upsample import upsample

SIZE = (5, 6)
CLASSES = 5
seeds = st.integers(0, 1000)


def make_case(seed: int = 0, images: int = 3) -> tuple[Tensor, Tensor]:
    """Random scores and labels, some of them void; not every image shows every class."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(images, CLASSES, *SIZE, generator=generator, dtype=torch.float64)
    values = torch.tensor([*range(CLASSES), 0, VOID])
    labels = values[torch.randint(len(values), (images, *SIZE), generator=generator)]
    for image in range(images):
        labels[image][labels[image] == 1 + image % (CLASSES - 1)] = 0
    return scores, labels


def slow_missed(scores: np.ndarray, labels: np.ndarray) -> float:
    """Of one image, class by class and pixel by pixel."""
    missed = []
    for label in range(1, len(scores)):
        both, found, true = 0.0, 0.0, 0
        for y, x in np.ndindex(*labels.shape):
            if labels[y, x] == VOID:
                continue
            powers = [math.exp(value) for value in scores[:, y, x]]
            probability = powers[label] / sum(powers)
            found += probability
            if labels[y, x] == label:
                both += probability
                true += 1
        if true:
            missed.append(1 - both / (found + true - both))
    return sum(missed) / len(missed) if missed else 0.0


def one_hot(labels: Tensor, sureness: float) -> Tensor:
    """Scores of someone who knows the labels; at void pixels, of a class that is nowhere else."""
    known = labels.where(labels != VOID, torch.tensor(CLASSES - 1))
    return sureness * F.one_hot(known, CLASSES).movedim(-1, 1).double()


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_missed_overlap_equals_loops(seed: int) -> None:
    scores, labels = make_case(seed)
    found = missed_overlap(scores, labels)
    assert found.shape == (3,)
    expected = [slow_missed(s.numpy(), t.numpy()) for s, t in zip(scores, labels, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seeds, st.floats(0, 50))
def test_values_are_between_zero_and_one(seed: int, sureness: float) -> None:
    scores, labels = make_case(seed)
    found = missed_overlap(sureness * scores, labels)
    assert (found >= 0).all()
    assert (found <= 1).all()


def test_a_perfect_and_sure_map_misses_nothing_and_a_wrong_one_everything() -> None:
    _, labels = make_case()
    torch.testing.assert_close(missed_overlap(one_hot(labels, 50), labels), torch.zeros(3, dtype=torch.float64))
    wrong = torch.where(labels == VOID, VOID, (labels + 1) % CLASSES)
    torch.testing.assert_close(missed_overlap(one_hot(wrong, 50), labels), torch.ones(3, dtype=torch.float64))
    doubtful = missed_overlap(one_hot(labels, 3), labels)
    assert ((doubtful > 0.01) & (doubtful < 0.99)).all()


def test_an_image_that_shows_no_class_misses_nothing() -> None:
    scores, labels = make_case()
    labels[0] = 0
    labels[1] = VOID
    scores.requires_grad_()
    found = missed_overlap(scores, labels)
    assert found[:2].tolist() == [0, 0]
    assert found[2] > 0
    found.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert (scores.grad[:2] == 0).all()


def test_only_classes_that_are_shown_count() -> None:
    """Class 1 is shown and half found, wherever the others are claimed; background never counts by itself."""
    labels = torch.zeros(1, 4, 4, dtype=torch.int64)
    labels[:, :2] = 1
    for claimed in (0, 2, 3):
        said = labels.clone()
        said[:, 1] = claimed
        torch.testing.assert_close(missed_overlap(one_hot(said, 60), labels), torch.tensor([0.5], dtype=torch.float64))


def test_small_objects_count_as_much_as_large_ones() -> None:
    labels = torch.zeros(2, 8, 8, dtype=torch.int64)
    labels[:, :6], labels[:, 7, 7] = 1, 2
    said = labels.clone()
    said[0, 7, 7] = 0  # the small object is missed
    said[1, :6] = 0  # the large one is
    torch.testing.assert_close(missed_overlap(one_hot(said, 60), labels), torch.full((2,), 0.5, dtype=torch.float64))


def test_scores_at_void_pixels_do_not_matter() -> None:
    scores, labels = make_case()
    void = (labels == VOID)[:, None].expand_as(scores)
    assert void.any()
    other = scores.where(~void, 7 * scores.flip(1))
    torch.testing.assert_close(missed_overlap(other, labels), missed_overlap(scores, labels), rtol=0, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(seeds, st.permutations(range(1, CLASSES)))
def test_the_order_of_classes_does_not_matter(seed: int, order: list[int]) -> None:
    scores, labels = make_case(seed)
    table = torch.arange(VOID + 1)
    table[torch.tensor(order)] = torch.arange(1, CLASSES)
    expected = missed_overlap(scores, labels)
    torch.testing.assert_close(missed_overlap(scores[:, [0, *order]], table[labels]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("novel", "weight"), [(0, 1.0), (2, 3.0)])
def test_the_loss_counts_the_missed_overlap_at_every_valid_pixel(overlap: float, novel: int, weight: float) -> None:
    scores, labels = make_case()
    labels[1, :3] = VOID  # images differ in their valid pixels
    plain, pixels = calibration_loss(scores, labels, novel, weight)
    found, counted = calibration_loss(scores, labels, novel, weight, overlap)
    expected = float(plain)
    for image in range(3):
        valid = sum(int(label) != VOID for label in labels[image].flatten())
        expected += overlap * valid * slow_missed(scores[image].numpy(), labels[image].numpy())
    assert float(found) == pytest.approx(expected, rel=1e-10)
    assert int(counted) == int(pixels) == int((labels != VOID).sum())


def test_the_overlap_is_that_of_upsampled_scores() -> None:
    """Labels come as bytes and at full size."""
    scores, labels = make_case()
    full = labels.repeat_interleave(3, dim=1).repeat_interleave(2, dim=2)
    larger = (full.shape[1], full.shape[2])
    found, pixels = calibration_loss(scores, full.to(torch.uint8), overlap=1.5)
    plain, _ = calibration_loss(scores, full.to(torch.uint8))
    grown = upsample(scores, larger)
    missed = [slow_missed(s.numpy(), t.numpy()) for s, t in zip(grown, full, strict=True)]
    valid = (full != VOID).sum(dim=(1, 2)).tolist()
    extra = sum(1.5 * m * v for m, v in zip(missed, valid, strict=True))
    assert float(found - plain) == pytest.approx(extra, rel=1e-9)
    assert int(pixels) == sum(valid)


def test_the_loss_passes_gradients_of_the_overlap() -> None:
    scores, labels = make_case()
    scores.requires_grad_()
    (plain,) = torch.autograd.grad(calibration_loss(scores, labels)[0], scores)
    (found,) = torch.autograd.grad(calibration_loss(scores, labels, overlap=2.0)[0], scores)
    valid = (labels != VOID).sum(dim=(1, 2))
    (extra,) = torch.autograd.grad((missed_overlap(scores, labels) * valid).sum(), scores)
    assert extra.abs().max() > 0.01
    torch.testing.assert_close(found, plain + 2 * extra, rtol=0, atol=1e-10)


def test_gradients_lead_to_more_overlap() -> None:
    scores, labels = make_case()
    before = missed_overlap(scores, labels)
    for _ in range(60):
        scores = scores.detach().requires_grad_()
        missed_overlap(scores, labels).sum().backward()
        assert scores.grad is not None
        scores = scores - 20 * scores.grad
    assert (missed_overlap(scores.detach(), labels) < before - 0.1).all()
