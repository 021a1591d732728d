"""The Dataset type: areas, membership, cache, fingerprint."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.data.make import boxes, plain, png

from gfss.common.errors import GfssError
from gfss.data import open_dataset
from gfss.data.datasets import base as module
from gfss.data.datasets.base import Dataset, least_area
from gfss.data.datasets.folder import read_folder


@pytest.fixture
def small(tmp_path: Path) -> Dataset:
    masks = {"a": boxes(1, 2), "b": boxes(2, 255), "c": boxes()}
    return read_folder(plain(tmp_path / "d", masks, ["cat", "dog"]), "train")


def test_reading(small: Dataset) -> None:
    assert len(small) == 3
    assert small.image(0).shape == (24, 32, 3)
    np.testing.assert_array_equal(small.mask(1), boxes(2, 255))


def test_a_mask_of_another_size_than_its_image_is_refused(small: Dataset) -> None:
    png(small.masks[1], boxes(2, size=(24, 16)))
    with pytest.raises(GfssError, match=r"b\.png is 16 x 24 but its image b\.jpg is 32 x 24"):
        _ = small.members


def test_areas_count_every_value(small: Dataset) -> None:
    assert small.areas.shape == (3, 256)
    assert (small.areas.sum(axis=1) == 24 * 32).all()
    assert small.areas[0, [1, 2, 255]].tolist() == [64, 64, 0]
    assert small.areas[1, [1, 2, 255]].tolist() == [0, 64, 64]


def test_images_of_a_class(small: Dataset) -> None:
    assert small.images_of(1).tolist() == [0]
    assert small.images_of(2).tolist() == [0, 1]


def test_index_is_read_from_the_cache(small: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = small.areas.copy()
    again = Dataset(small.name, small.classes, small.ids, small.images, small.masks)
    monkeypatch.setattr(module, "read_mask", lambda path: pytest.fail("the mask was read again"))
    np.testing.assert_array_equal(again.areas, expected)


def test_index_is_rebuilt_when_a_mask_changes(small: Dataset) -> None:
    assert small.images_of(1).tolist() == [0]
    png(small.masks[2], boxes(1))
    again = Dataset(small.name, small.classes, small.ids, small.images, small.masks)
    assert again.fingerprint != small.fingerprint
    assert again.images_of(1).tolist() == [0, 2]


def test_torn_cache_file_is_made_again(small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    expected = small.areas.copy()
    (file,) = (tmp_path / "cache" / "index").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    again = Dataset(small.name, small.classes, small.ids, small.images, small.masks)
    np.testing.assert_array_equal(again.areas, expected)


def test_fingerprint_changes_with_classes_and_reference_side(small: Dataset) -> None:
    parts = (small.ids, small.images, small.masks)
    prints = {
        small.fingerprint,
        Dataset("x", ("cat", "cow"), *parts).fingerprint,
        Dataset("x", small.classes, *parts, reference_side=None).fingerprint,
    }
    assert len(prints) == 3


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "bmp", "tif"])
def test_fingerprint_changes_when_a_picture_does(tmp_path: Path, kind: str) -> None:
    """Also where the file stays as long as it was, and wherever in the picture the change is."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    mask = png(tmp_path / "mask.png", boxes(1))

    def fingerprint(image: np.ndarray) -> str:
        path = tmp_path / f"image.{kind}"
        Image.fromarray(image).save(path)
        return Dataset("x", ("cat",), ("image",), (path,), (mask,)).fingerprint

    prints = [fingerprint(pixels)]
    for y, x in ((0, 0), (12, 16), (23, 31)):
        changed = pixels.copy()
        changed[y, x] = 255 - changed[y, x]
        prints.append(fingerprint(changed))
    assert len(set(prints)) == 4
    assert fingerprint(pixels) == prints[0]


def test_a_mask_of_the_same_length_in_bytes_has_another_fingerprint(small: Dataset) -> None:
    before, size = small.fingerprint, small.masks[0].stat().st_size
    png(small.masks[0], boxes(2, 1))  # labels swapped
    assert small.masks[0].stat().st_size == size
    assert replace(small).fingerprint != before


def test_fingerprint_stays_when_files_are_copied_or_touched(small: Dataset, tmp_path: Path) -> None:
    before = small.fingerprint
    os.utime(small.masks[1], ns=(0, 0))
    assert replace(small).fingerprint == before
    shutil.copytree(tmp_path / "d", tmp_path / "elsewhere")
    assert read_folder(tmp_path / "elsewhere", "train").fingerprint == before


def test_files_shorter_than_their_ending_have_a_fingerprint(small: Dataset) -> None:
    prints = set()
    for content in (b"", b"a", b"b"):
        small.masks[1].write_bytes(content)
        prints.add(replace(small).fingerprint)
    assert len(prints) == 3


def test_missing_mask_is_named(small: Dataset) -> None:
    small.masks[1].unlink()
    with pytest.raises(GfssError, match=r"b\.png is in the list of 'd train' but the file is missing"):
        _ = small.areas


def test_mask_value_without_class(tmp_path: Path) -> None:
    root = plain(tmp_path, {"a": boxes(1), "b": boxes(1, 3, 9)}, ["cat"])
    with pytest.raises(GfssError, match=r"b\.png has the value 3, 9 but 1 class\(es\) are named"):
        _ = read_folder(root, "train").members


@given(height=st.integers(1, 600), width=st.integers(1, 600))
def test_least_area_follows_the_square_of_the_long_side(height: int, width: int) -> None:
    sizes = np.array([[height, width]])
    expected = max(1, int(2 * 32 * 32 * (max(height, width) / 500) ** 2 + 1e-9))
    assert abs(least_area(sizes, 500)[0] - expected) <= 1
    assert least_area(sizes, None)[0] == 2048


def test_membership_at_the_edge_of_the_threshold(tmp_path: Path) -> None:
    exact, below = np.zeros((400, 500), np.uint8), np.zeros((400, 500), np.uint8)
    exact[:32, :64] = 1
    below[:32, :64] = 1
    below[0, 0] = 0
    dataset = read_folder(plain(tmp_path, {"exact": exact, "below": below}, ["cat"]), "train")
    assert dataset.images_of(1).tolist() == [0]


def test_the_fingerprint_of_own_data_sees_every_byte(tmp_path: Path) -> None:
    plain(tmp_path, {"a": boxes(1), "b": boxes(1)}, ["cat"], val=["b"])
    path = tmp_path / "images" / "b.jpg"
    content = bytearray(path.read_bytes())
    assert len(content) > 600

    def fingerprint() -> str:
        return open_dataset(str(tmp_path), split="val").fingerprint

    before = fingerprint()
    content[300] ^= 1  # the same size, the same last 256 bytes
    path.write_bytes(bytes(content))
    assert fingerprint() != before
