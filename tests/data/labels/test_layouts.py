"""Data sets as they come: every layout is read as it is, by the same call, and gives the same two masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data.labels.layouts import (
    CAT,
    DOG,
    LAYOUTS,
    PAGE,
    camvid,
    cityscapes,
    coco_file,
    coco_panoptic,
    coco_tree,
    folders_of_splits,
    names,
    page,
    pascal_voc,
    roboflow_masks,
    yolo,
    yolo_of_roboflow,
)
from tests.data.make import boxes, photo, png

from gfss.app.inputs import labelled_images
from gfss.app.regression_check import read_validation
from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.data import open_dataset
from gfss.data.datasets.folder import read_own
from gfss.data.labels import read_labels
from gfss.data.labels.png import UNNAMED

IDS = [make.__name__ for make, _, _ in LAYOUTS]


def source_of(root: Path) -> Path:
    return next(iter(root.glob("*.zip")), root)


@pytest.mark.parametrize(("make", "first", "second"), LAYOUTS, ids=IDS)
def test_every_layout_is_read_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], first: str, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    labels = read_labels(source_of(root), class_name=UNNAMED)
    for name, where in ((first, CAT), (second, DOG)):
        if name:
            for path, mask in labels.supports(name):
                assert path.exists()
                inside = mask[8:15, :] == 1  # polygons may or may not take their last row and column
                np.testing.assert_array_equal(inside[:, 1:7], where[8:15, 1:7] == 1)
                np.testing.assert_array_equal(inside[:, 9:15], where[8:15, 9:15] == 1)
                assert not (mask[:7] == 1).any()
    assert not labels.unlabelled
    assert main(["data", "check", str(source_of(root))]) == 0
    out = capsys.readouterr().out
    assert labels.format in out.replace("\n", " ")
    assert "gfss teach " in out


@pytest.mark.parametrize(("make", "first", "second"), LAYOUTS, ids=IDS)
def test_teach_train_and_report_read_what_check_reads(
    tmp_path: Path, make: Callable[[Path], None], first: str, second: str
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    source, called = source_of(root), None if first != UNNAMED else "cat"
    taught = labelled_images(source, source, called or first)
    assert any(one.shows for one in taught)
    validation = read_validation(source, ("background", called or first), called)
    assert (validation.masks(0) > 0).any()
    if len(read_labels(source, class_name=UNNAMED)) > 1:
        sets = [read_own(source, split, name=called) for split in ("train", "val")]
        assert all((one.mask(0) == one.classes.index(called or first) + 1).any() for one in sets)


def test_label_and_void_are_read_alike(tmp_path: Path) -> None:
    """Value 0 is the class and 7 is void: for teaching, training and validation."""
    for i in range(6):
        photo(tmp_path / "images" / f"{i}.jpg", seed=i)
        png(tmp_path / "masks" / f"{i}.png", boxes(1, 7))
    expected = np.where(boxes(1, 7) == 0, 1, np.where(boxes(1, 7) == 7, 255, 0))
    taught = labelled_images(tmp_path, tmp_path, "0", void=7)
    trained = read_own(tmp_path, "train", name="floor", label="0", void=7)
    validation = read_validation(tmp_path, ("background", "floor"), "floor", label="0", void=7)
    assert trained.classes == validation.classes == ("floor",)
    for mask in (taught[0].mask, trained.mask(0), validation.masks(0)):
        np.testing.assert_array_equal(mask, expected)
    other = read_own(tmp_path, "train", name="floor", label="0", void=1)  # not what was drawn before
    np.testing.assert_array_equal(other.mask(0) == 255, boxes(1, 7) == 1)


def test_a_label_that_is_called_otherwise(tmp_path: Path) -> None:
    coco_tree(tmp_path)
    assert read_validation(tmp_path, ("background", "lion"), "lion", label="cat").classes == ("lion", "dog")
    with pytest.raises(GfssError, match="unknown class 'lynx'; known: cat, dog"):
        read_own(tmp_path, "train", name="lion", label="lynx")
    with pytest.raises(GfssError, match="have a class 'dog' beside 'cat'"):
        read_own(tmp_path, "train", name="dog", label="cat")


def test_masks_without_names_are_named_to_train_on_them(tmp_path: Path) -> None:
    for i in range(6):
        photo(tmp_path / "images" / f"{i}.jpg", seed=i)
        png(tmp_path / "masks" / f"{i}.png", boxes(255))
    with pytest.raises(GfssError, match="have no names; name the one class with --name"):
        read_own(tmp_path, "train")
    assert read_own(tmp_path, "train", name="cat").classes == ("cat",)


@pytest.mark.parametrize(
    "make", [coco_tree, yolo, yolo_of_roboflow, roboflow_masks, folders_of_splits, cityscapes, camvid, pascal_voc]
)
def test_splits_are_those_of_the_folders(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    train, val = (open_dataset(str(tmp_path), split=split) for split in ("train", "val"))
    assert (len(train), len(val)) == (1, 1)
    assert train.ids != val.ids


def test_two_readings_ask_for_one_option(tmp_path: Path) -> None:
    for name in "ab":
        photo(tmp_path / "left" / f"{name}.jpg")
        photo(tmp_path / "right" / f"{name}.jpg")
    with pytest.raises(GfssError, match=r"either could be the masks; say which with --images .*left --masks .*right"):
        read_labels(tmp_path, class_name="cat")
    for name in "ab":
        png(tmp_path / "masks_a" / f"{name}_mask.png", boxes(1))
        png(tmp_path / "masks_b" / f"{name}_mask.png", boxes(1))
        (tmp_path / "right" / f"{name}.jpg").unlink()
    with pytest.raises(GfssError, match=r"only one of them can be meant; say which with --masks .*masks_a or --masks"):
        read_labels(tmp_path, class_name="cat")
    assert len(read_labels(tmp_path / "masks_b", [tmp_path / "left"], "cat")) == 2


def test_a_folder_of_masks_alone_finds_its_images_beside_it(tmp_path: Path) -> None:
    """So that a command that takes one path can be told which of two folders holds the masks."""
    for name in "ab":
        photo(tmp_path / "left" / f"{name}.png")
        png(tmp_path / "first" / f"{name}.png", boxes(1))
        png(tmp_path / "second" / f"{name}_mask.png", boxes(0, 1))
    with pytest.raises(GfssError, match="say which with"):
        read_labels(tmp_path, class_name="cat")
    (path, mask), _ = read_labels(tmp_path / "second", class_name="cat").supports("cat")
    assert path == tmp_path / "left" / "a.png"
    np.testing.assert_array_equal(mask, boxes(0, 1))
    for name in "ab":
        photo(tmp_path / "right" / f"{name}.png")
    with pytest.raises(GfssError, match=r"say which with --images .*left or --images .*right"):
        read_labels(tmp_path / "second", class_name="cat")


def test_images_of_one_name_in_two_splits(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "val")):
        photo(tmp_path / "images" / split / "1.jpg", seed=number)
        png(tmp_path / "masks" / split / "1.png", boxes(*([0] * number), 4))
    names(tmp_path / "class_names.txt", "background", "x", "y", "z", "cat")
    train, val = (open_dataset(str(tmp_path), split=split) for split in ("train", "val"))
    assert (train.ids, val.ids) == (("train-1",), ("val-1",))
    np.testing.assert_array_equal(train.mask(0), boxes(4))
    np.testing.assert_array_equal(val.mask(0), boxes(0, 4))


def test_masks_are_drawn_again_when_their_meaning_changes(tmp_path: Path) -> None:
    for i in range(2):
        photo(tmp_path / "images" / f"{i}.jpg", seed=i)
        png(tmp_path / "masks" / f"{i}.png", boxes(1, 2))
    names(tmp_path / "_classes.csv", "value, name", "0, background", "1, cat", "2, void")
    np.testing.assert_array_equal(open_dataset(str(tmp_path), split="train").mask(0), boxes(1, 255))
    names(tmp_path / "_classes.csv", "value, name", "0, background", "1, void", "2, cat", "")
    np.testing.assert_array_equal(open_dataset(str(tmp_path), split="train").mask(0), boxes(255, 1))


def test_instances_and_panoptic_ask_which(tmp_path: Path) -> None:
    coco_panoptic(tmp_path)
    coco_file(tmp_path / "annotations" / "instances_val2017.json", "a.jpg", tmp_path / "val2017")
    with pytest.raises(GfssError, match=r"say which with --masks .*instances_val2017.* or --masks .*panoptic_val2017"):
        read_labels(tmp_path)
    assert read_labels(tmp_path / "annotations" / "panoptic_val2017.json").classes == ("cat", "dog", "grass")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("0 0.5 0.5 0.2 0.2", "is a box; boxes alone cannot be learned from"),
        ("0 0.5 0.5 0.2", "has class 0 and 3 numbers"),
        ("cat 0.1 0.1 0.2 0.1 0.2 0.2", "expected a class number and points"),
        ("0 0.1 0.1 9 0.1 0.2 0.2", "points outside the image"),
        ("0 0.1 0.1 nan 0.1 0.2 0.2", "points outside the image"),
        ("7 0.1 0.1 0.2 0.1 0.2 0.2", "has class 7 but 2 are named"),
        ("-1 0.1 0.1 0.2 0.1 0.2 0.2", "has class -1"),
    ],
)
def test_yolo_lines_that_are_none(tmp_path: Path, line: str, sentence: str) -> None:
    yolo(tmp_path)
    names(tmp_path / "labels" / "train" / "train1.txt", line)
    with pytest.raises(GfssError, match=sentence):
        read_labels(tmp_path).mask(0)


def test_yolo_without_names_counts(tmp_path: Path) -> None:
    yolo(tmp_path)
    (tmp_path / "data.yaml").unlink()
    photo(tmp_path / "images" / "train" / "extra.jpg")
    names(tmp_path / "labels" / "train" / "empty.txt")
    photo(tmp_path / "images" / "train" / "empty.jpg")
    labels = read_labels(tmp_path)
    assert labels.classes == ("0", "1")
    assert [path.name for path in labels.unlabelled] == ["extra.jpg"]
    assert not labels.mask([path.name for path in labels.images].index("empty.jpg")).any()


def test_the_page_shows_every_layout_as_it_is_made() -> None:
    """``python -m tests.data.labels.layouts`` writes it."""
    assert PAGE.read_text() == page()
