"""Data sets as they come: every layout is read as it is, by the same call, and gives the same two masks."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.make import SIZE, box_polygon, boxes, coco_json, labelme, photo, png, write

from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.data import open_dataset
from gfss.data.labels import read_labels
from gfss.data.labels.png import UNNAMED

HEIGHT, WIDTH = SIZE
CAT, DOG = boxes(1), boxes(0, 1)  # where the two classes are
PALETTE = np.array([[0, 0, 0], [128, 0, 0], [0, 128, 0]], dtype=np.uint8)


def names(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def yolo_line(number: int, left: int) -> str:
    points = [(left, 8), (left + 7, 8), (left + 7, 15), (left, 15)]
    return f"{number} " + " ".join(f"{x / WIDTH:.6f} {y / HEIGHT:.6f}" for x, y in points)


def coco_file(path: Path, image: str, folder: Path) -> None:
    photo(folder / image)
    animals = [{"category_id": i, "segmentation": [box_polygon(left, 8, left + 8, 16)]} for i, left in ((1, 0), (5, 8))]
    coco_json(path, {image: animals}, {1: "cat", 5: "dog"})


def index_and_names(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        png(root / "masks" / f"{name}.png", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def folder_per_class(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        png(root / "masks" / "cat" / f"{name}.png", boxes(255))
        png(root / "masks" / "dog" / f"{name}.png", boxes(0, 255))


def pascal_voc(root: Path) -> None:
    for name, split in (("a", "train"), ("b", "val")):
        photo(root / "JPEGImages" / f"{name}.jpg")
        picture = Image.fromarray(np.where(boxes(1) == 1, 8, np.where(boxes(0, 1) == 1, 12, 0)).astype(np.uint8))
        picture.putpalette(bytes(range(256)) * 3)
        (root / "SegmentationClass").mkdir(parents=True, exist_ok=True)
        picture.save(root / "SegmentationClass" / f"{name}.png")
        png(root / "SegmentationObject" / f"{name}.png", boxes(1))
        names(root / "ImageSets" / "Segmentation" / f"{split}.txt", name)


def labelme_beside(root: Path) -> None:
    for name in "ab":
        photo(root / f"{name}.jpg")
        shapes = [("cat", "rectangle", [[0, 8], [7, 15]]), ("dog", "rectangle", [[8, 8], [15, 15]])]
        labelme(root / f"{name}.json", shapes)


def labelme_apart(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        shapes = [("cat", "rectangle", [[0, 8], [7, 15]]), ("dog", "rectangle", [[8, 8], [15, 15]])]
        labelme(root / "annotations" / f"{name}.json", shapes, imagePath=f"..\\images\\{name}.jpg")


def labelme_voc_export(root: Path) -> None:
    for name in "ab":
        photo(root / "JPEGImages" / f"{name}.jpg")
        png(root / "SegmentationClass" / f"{name}.png", boxes(1, 2), "P")
        photo(root / "SegmentationClassVisualization" / f"{name}.jpg")
        (root / "SegmentationClassNpy").mkdir(exist_ok=True)
        np.save(root / "SegmentationClassNpy" / f"{name}.npy", boxes(1, 2))
    names(root / "class_names.txt", "_background_", "cat", "dog")


def coco_one_file(root: Path) -> None:
    coco_file(root / "labels.json", "a.jpg", root / "images")


def coco_tree(root: Path) -> None:
    for split in ("train", "val"):
        coco_file(root / "annotations" / f"instances_{split}2017.json", f"{split}1.jpg", root / f"{split}2017")
        write(root / "annotations" / f"captions_{split}2017.json", {"annotations": [{"caption": "two animals"}]})


def coco_panoptic(root: Path) -> None:
    photo(root / "val2017" / "a.jpg")
    segments = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    segments[boxes(1) == 1] = (44, 1, 0)  # 300
    segments[boxes(0, 1) == 1] = (7, 0, 0)
    segments[boxes(1, 1) == 0] = (9, 0, 0)
    png(root / "annotations" / "panoptic_val2017" / "a.png", segments)
    infos = [{"id": 300, "category_id": 1}, {"id": 7, "category_id": 5}, {"id": 9, "category_id": 9}]
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": HEIGHT, "width": WIDTH}],
        "annotations": [{"image_id": 1, "file_name": "a.png", "segments_info": infos}],
        "categories": [{"id": i, "name": n, "isthing": 1} for i, n in ((1, "cat"), (5, "dog"), (9, "grass"))],
    }
    write(root / "annotations" / "panoptic_val2017.json", content)


def coco_of_roboflow(root: Path) -> None:
    for split in ("train", "valid"):
        coco_file(root / split / "_annotations.coco.json", f"{split}1.jpg", root / split)


def coco_of_cvat(root: Path) -> None:
    coco_file(root / "annotations" / "instances_default.json", "a.jpg", root / "images" / "default")


def yolo(root: Path) -> None:
    for split in ("train", "val"):
        photo(root / "images" / split / f"{split}1.jpg")
        names(root / "labels" / split / f"{split}1.txt", yolo_line(0, 0), yolo_line(1, 8))
    names(root / "data.yaml", "path: .", "train: images/train", "val: images/val", "names:", "  0: cat", "  1: dog")


def yolo_of_roboflow(root: Path) -> None:
    for split in ("train", "valid"):
        photo(root / split / "images" / f"{split}1.jpg")
        names(root / split / "labels" / f"{split}1.txt", yolo_line(0, 0), yolo_line(1, 8))
    names(root / "data.yaml", "train: ../train/images", "nc: 2", "names: ['cat', 'dog']")


def cvat_masks(root: Path) -> None:
    export = root / "export"
    png(export / "SegmentationClass" / "a.png", PALETTE[boxes(1, 2)])
    png(export / "SegmentationObject" / "a.png", PALETTE[boxes(1, 2)])
    photo(export / "JPEGImages" / "a.jpg")
    names(
        export / "labelmap.txt",
        "# label:color_rgb:parts:actions",
        "background:0,0,0::",
        "cat:128,0,0::",
        "dog:0,128,0::",
    )
    with zipfile.ZipFile(root / "task.zip", "w") as archive:
        for path in sorted(export.rglob("*")):
            archive.write(path, path.relative_to(export))


def roboflow_masks(root: Path) -> None:
    for split in ("train", "valid"):
        photo(root / split / f"{split}1.jpg")
        png(root / split / f"{split}1_mask.png", boxes(1, 2))
        names(root / split / "_classes.csv", "Pixel Value, Class", "0, background", "1, cat", "2, dog")


def side_by_side(root: Path) -> None:
    for name in "ab":
        photo(root / f"{name}.jpg")
        png(root / f"{name}.png", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def suffix_pairs(root: Path) -> None:
    for name in ("001", "002"):
        photo(root / f"{name}_image.png")
        png(root / f"{name}_mask.png", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def suffixes_in_two_folders(root: Path) -> None:
    for name in "ab":
        photo(root / "imgs" / f"{name}.jpg")
        png(root / "train_masks" / f"{name}_mask.gif", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def parallel_folders(root: Path) -> None:
    for name in "ab":
        photo(root / "Aufnahmen" / f"{name}.png")
        png(root / "Ziele" / f"{name}.png", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def folders_of_splits(root: Path) -> None:
    for split in ("training", "validation"):
        photo(root / "images" / split / f"{split}1.jpg")
        png(root / "annotations" / split / f"{split}1.png", boxes(1, 2))
    names(root / "objectInfo150.txt", "Idx\tRatio\tTrain\tVal\tName", "1\t0.1\t9\t9\tcat, kitty", "2\t0.1\t9\t9\tdog")


def cityscapes(root: Path) -> None:
    for split in ("train", "val"):
        stem = f"bonn_{split}_000019"
        photo(root / "leftImg8bit" / split / "bonn" / f"{stem}_leftImg8bit.png")
        values = np.where(boxes(1) == 1, 26, np.where(boxes(0, 1) == 1, 24, 4)).astype(np.uint8)
        png(root / "gtFine" / split / "bonn" / f"{stem}_gtFine_labelIds.png", values)
        photo(root / "gtFine" / split / "bonn" / f"{stem}_gtFine_color.png")
        photo(root / "gtFine" / split / "bonn" / f"{stem}_gtFine_instanceIds.png")


def camvid(root: Path) -> None:
    for split in ("train", "val"):
        photo(root / split / f"{split}1.png")
        png(root / f"{split}_labels" / f"{split}1_L.png", PALETTE[boxes(1, 2)])
    names(root / "class_dict.csv", "name,r,g,b", "cat,128,0,0", "dog,0,128,0", "Void,0,0,0")


def oxford_pets(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        mask = np.where(boxes(1) == 1, 1, np.where(boxes(0, 1) == 1, 3, 2)).astype(np.uint8)
        png(root / "annotations" / "trimaps" / f"{name}.png", mask)


def binary_masks(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        png(root / "masks" / f"{name}.png", boxes(255))


LAYOUTS: list[tuple[Callable[[Path], None], str, str]] = [
    (index_and_names, "cat", "dog"),
    (folder_per_class, "cat", "dog"),
    (pascal_voc, "cat", "dog"),
    (labelme_beside, "cat", "dog"),
    (labelme_apart, "cat", "dog"),
    (labelme_voc_export, "cat", "dog"),
    (coco_one_file, "cat", "dog"),
    (coco_tree, "cat", "dog"),
    (coco_panoptic, "cat", "dog"),
    (coco_of_roboflow, "cat", "dog"),
    (coco_of_cvat, "cat", "dog"),
    (yolo, "cat", "dog"),
    (yolo_of_roboflow, "cat", "dog"),
    (cvat_masks, "cat", "dog"),
    (roboflow_masks, "cat", "dog"),
    (side_by_side, "cat", "dog"),
    (suffix_pairs, "cat", "dog"),
    (suffixes_in_two_folders, "cat", "dog"),
    (parallel_folders, "cat", "dog"),
    (folders_of_splits, "cat", "dog"),
    (cityscapes, "car", "person"),
    (camvid, "cat", "dog"),
    (oxford_pets, UNNAMED, ""),
    (binary_masks, UNNAMED, ""),
]
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
