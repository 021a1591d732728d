"""Own data in any format as a data set."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.data.make import boxes, labelme, photo, plain, png

from gfss.common.errors import GfssError
from gfss.data import open_dataset
from gfss.data.datasets.folder import read_own


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    """Twelve labelme files."""
    root = tmp_path / "farm"
    for i in range(12):
        photo(root / f"p{i:02d}.jpg", seed=i)
        labelme(root / f"p{i:02d}.json", [("cow" if i % 2 else "hen", "rectangle", [[2, 2], [9, 9]])])
    return root


def test_plain_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    root = plain(tmp_path / "mine", {"a": boxes(1), "b": boxes(1)}, ["cat"], val=["b"])
    dataset = open_dataset(str(root), split="train")
    assert (dataset.name, dataset.ids, dataset.masks) == ("mine train", ("a",), (root / "masks" / "a.png",))


def test_labels_are_drawn_into_index_masks(annotated: Path) -> None:
    dataset = open_dataset(str(annotated), split="train")
    assert dataset.classes == ("cow", "hen")
    expected = np.zeros((24, 32), np.uint8)
    expected[2:10, 2:10] = 1
    np.testing.assert_array_equal(dataset.mask(dataset.ids.index("p01")), expected)
    assert annotated not in dataset.masks[0].parents


def test_every_fifth_image_is_for_val(annotated: Path) -> None:
    train, val = read_own(annotated, "train"), read_own(annotated, "val")
    assert val.ids == ("p00", "p05", "p10")
    assert sorted(train.ids + val.ids) == [f"p{i:02d}" for i in range(12)]


@pytest.mark.parametrize("listed", ["train", "val"])
def test_lists_decide_and_one_is_enough(annotated: Path, listed: str) -> None:
    (annotated / f"{listed}.txt").write_text("p03\np01\n")
    other = "val" if listed == "train" else "train"
    assert read_own(annotated, listed).ids == ("p03", "p01")
    assert set(read_own(annotated, other).ids) == {f"p{i:02d}" for i in range(12)} - {"p01", "p03"}


def test_list_with_an_image_that_has_no_labels(annotated: Path) -> None:
    (annotated / "val.txt").write_text("p99\n")
    with pytest.raises(GfssError, match=r"val\.txt lists 'p99', which has no labels"):
        read_own(annotated, "val")


def test_changed_labels_are_drawn_again(annotated: Path) -> None:
    before = read_own(annotated, "val")
    assert before.mask(0).max() == 2
    path = labelme(annotated / "p00.json", [("cow", "rectangle", [[2, 2], [9, 9]])])
    os.utime(path, ns=(1, 1))
    assert read_own(annotated, "val").mask(0).max() == 1


@pytest.mark.parametrize("changed", ["cat", "dog"])
def test_changed_mask_of_any_class_folder_is_drawn_again(tmp_path: Path, changed: str) -> None:
    for name in "ab":
        photo(tmp_path / "images" / f"{name}.jpg")
        png(tmp_path / "masks" / "dog" / f"{name}.png", boxes(255))
        png(tmp_path / "masks" / "cat" / f"{name}.png", boxes(0, 255))
    np.testing.assert_array_equal(read_own(tmp_path, "val").mask(0), boxes(2, 1))
    os.utime(png(tmp_path / "masks" / changed / "a.png", boxes(0, 0, 255)), ns=(1, 1))
    expected = boxes(2, 0, 1) if changed == "cat" else boxes(0, 1, 2)
    np.testing.assert_array_equal(read_own(tmp_path, "val").mask(0), expected)


def test_one_image_cannot_be_split(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    labelme(tmp_path / "a.json", [("cow", "rectangle", [[2, 2], [9, 9]])])
    with pytest.raises(GfssError, match=r"has 1 labelled image\(s\); at least 2 are needed"):
        read_own(tmp_path, "train")


def test_names_paths_and_splits_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="unknown data set 'pascla'; did you mean 'pascal'"):
        open_dataset("pascla")
    with pytest.raises(GfssError, match="unknown split 'test'"):
        open_dataset("scenes", split="test")
    with pytest.raises(GfssError, match="is a path already, leave --root out"):
        open_dataset(str(tmp_path), root=tmp_path)
