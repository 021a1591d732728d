"""First masks from a click or a box."""

from __future__ import annotations

import numpy as np
import pytest
from tests.server import make

from gfss.server.studio import Studio


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def test_a_click_finds_most_of_the_object(studio: Studio, stars: dict[str, np.ndarray]) -> None:
    found = [make.iou(studio.region(name, make.centre(mask), None), mask) for name, mask in stars.items()]
    discs = []
    for mask in stars.values():  # a disc as large as the object is what a click alone says
        x, y = make.centre(mask)
        rows, columns = np.mgrid[: mask.shape[0], : mask.shape[1]]
        disc = (rows - y) ** 2 + (columns - x) ** 2 <= mask.sum() / np.pi
        discs.append(make.iou(disc, mask))
    assert np.mean(found) > 0.5
    assert np.median(found) > np.median(discs)


def test_a_box_finds_more_than_the_box(studio: Studio, stars: dict[str, np.ndarray]) -> None:
    found, whole = [], []
    for name, mask in stars.items():
        left, top, right, bottom = box_of(mask)
        region = studio.region(name, None, (left, top, right, bottom))
        full = np.zeros_like(mask)
        full[top:bottom, left:right] = True
        rows, columns = np.nonzero(region)
        assert rows.min() >= top - 4
        assert rows.max() < bottom + 4
        assert columns.min() >= left - 4
        assert columns.max() < right + 4
        found.append(make.iou(region, mask))
        whole.append(make.iou(full, mask))
    assert np.mean(found) > np.mean(whole) + 0.2


def test_the_same_click_gives_the_same_region_and_holds_the_click(studio: Studio, stars: dict[str, np.ndarray]) -> None:
    name, mask = next(iter(stars.items()))
    x, y = make.centre(mask)
    first, second = studio.region(name, (x, y), None), studio.region(name, (x, y), None)
    assert (first == second).all()
    assert first.shape == mask.shape
    assert first[y, x]


def test_further_clicks_correct_and_leave_the_rest(studio: Studio, stars: dict[str, np.ndarray]) -> None:
    studio.add_class(make.NEW)
    better = 0
    for name, mask in stars.items():
        left, _, right, _ = box_of(mask)
        half = mask.copy()
        half[:, (left + right) // 2 :] = False  # the right half is missing
        spill = half.copy()
        spill[:12, :12] |= ~mask[:12, :12]  # and a corner of the image too much
        studio.project.set_label(name, spill.astype(np.uint8))
        added = studio.region(name, make.centre(mask & ~half), None, make.NEW)
        assert not (added & spill).any()
        assert added[make.centre(mask & ~half)[::-1]]
        better += make.iou(spill | added, mask) > make.iou(spill, mask)
        taken = studio.region(name, (2, 2), None, make.NEW, away=True)
        assert taken[2, 2]
        assert not (taken & ~spill).any()
        better += make.iou(spill & ~taken, mask) > make.iou(spill, mask)
    assert better >= 1.5 * len(stars)


@pytest.mark.parametrize("point", [(0, 0), (111, 111), (0, 111), (56, 0)])
def test_clicks_at_the_border_work(studio: Studio, stars: dict[str, np.ndarray], point: tuple[int, int]) -> None:
    assert studio.region(next(iter(stars)), point, None).any()


@pytest.mark.parametrize("shape", [(3, 200), (200, 3), (9, 9), (40, 31)])
def test_images_of_any_shape(shape: tuple[int, int], studio: Studio) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for point, box in (((1, 1), None), (None, (0, 0, shape[1], shape[0])), (None, (1, 1, 2, 2))):
        region = studio.regions.propose((shape, point), lambda: pixels, point, box)
        assert region.shape == shape
