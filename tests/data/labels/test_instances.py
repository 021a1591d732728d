"""COCO files of own data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.make import box_polygon, coco_json, photo, write

from gfss.common.errors import GfssError
from gfss.data.labels import read_labels
from gfss.data.labels.instances import CocoImage, _lengths, draw_instances

pytest.importorskip("pycocotools", reason="needs the extra gfss[coco]")

CLASSES = {7: "dog", 3: "cat"}


def box(category: int, *corners: int, **more: Any) -> dict[str, Any]:
    return {"category_id": category, "segmentation": [box_polygon(*corners)], **more}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    photo(tmp_path / "images" / "a.jpg")
    photo(tmp_path / "images" / "b.jpg")
    return tmp_path


def test_classes_in_order_of_id_and_only_annotated_images(root: Path) -> None:
    coco_json(root / "labels.json", {"b.jpg": [box(7, 0, 0, 8, 8)], "a.jpg": []}, CLASSES)
    labels = read_labels(root)
    assert (labels.format, labels.classes) == ("COCO JSON", ("cat", "dog"))
    assert [path.name for path in labels.images] == ["b.jpg"]
    expected = np.zeros((24, 32), np.uint8)
    expected[:8, :8] = 2
    np.testing.assert_array_equal(labels.mask(0), expected)


def test_all_polygons_of_an_instance(root: Path) -> None:
    two = {
        "category_id": 3,
        "segmentation": [box_polygon(0, 0, 4, 4), box_polygon(10, 10, 14, 14), [1.0, 1.0, 2.0, 2.0]],
    }
    path = coco_json(root / "labels.json", {"a.jpg": [two]}, CLASSES)
    mask = read_labels(path).mask(0)
    assert (mask[:4, :4] == 1).all()
    assert (mask[10:14, 10:14] == 1).all()
    assert (mask == 1).sum() == 32


def test_small_on_top_whatever_the_order_and_crowds_at_the_bottom(root: Path) -> None:
    crowd = np.zeros((24, 32), np.uint8)
    crowd[:, 16:] = 1
    flat = crowd.T.ravel()  # run lengths go down the columns
    runs = [int((flat == 0).sum()), int((flat == 1).sum())]
    annotations = [
        box(7, 10, 10, 14, 14),
        box(3, 0, 0, 20, 20),
        {"category_id": 3, "iscrowd": 1, "segmentation": {"size": [24, 32], "counts": runs}},
    ]
    for order in (annotations, annotations[::-1]):
        path = coco_json(root / "labels.json", {"a.jpg": order}, CLASSES)
        mask = read_labels(path).mask(0)
        assert (mask[10:14, 10:14] == 2).all()
        assert mask[15, 18] == 1  # the crowd does not hide an object
        assert (mask[:, 20:] == 255).all()


def test_images_as_the_file_names_say(tmp_path: Path) -> None:
    photo(tmp_path / "left" / "1.jpg")
    path = coco_json(tmp_path / "annotations" / "labels.json", {"left/1.jpg": [box(3, 0, 0, 4, 4)]}, CLASSES)
    assert read_labels(path).images == (tmp_path / "left" / "1.jpg",)


def test_missing_images(root: Path) -> None:
    path = coco_json(root / "labels.json", {"a.jpg": [box(3, 0, 0, 4, 4)], "x.jpg": [box(3, 0, 0, 4, 4)]}, CLASSES)
    with pytest.raises(GfssError, match=r"1 of 2 images of .* were not found, first 'x\.jpg'"):
        read_labels(path)


@pytest.mark.parametrize("content", [{"images": [], "categories": []}, {"annotations": []}])
def test_no_annotations(root: Path, content: dict[str, Any]) -> None:
    with pytest.raises(
        GfssError, match=r"labels\.json has no annotations; export the file again with the labels in it"
    ):
        read_labels(write(root / "labels.json", content))


def test_boxes_alone(root: Path) -> None:
    annotation = {"category_id": 3, "bbox": [0, 0, 4, 4]}
    path = coco_json(root / "labels.json", {"a.jpg": [annotation]}, CLASSES)
    with pytest.raises(GfssError, match="annotation 0 has no segmentation; boxes alone cannot be learned from"):
        read_labels(path)


def test_incomplete_files(root: Path) -> None:
    path = coco_json(root / "labels.json", {"a.jpg": [box(99, 0, 0, 4, 4)]}, CLASSES)
    with pytest.raises(GfssError, match=r"is not a complete COCO file \(annotation 0 is of category 99, not listed\)"):
        read_labels(path)
    with pytest.raises(GfssError, match="is not a COCO file"):
        read_labels(write(path, [1, 2]))


def test_run_lengths_of_another_size(root: Path) -> None:
    annotation = {"category_id": 3, "segmentation": {"size": [10, 10], "counts": [0, 100]}}
    path = coco_json(root / "labels.json", {"a.jpg": [annotation]}, CLASSES)
    with pytest.raises(GfssError, match=r"malformed outline in a\.jpg"):
        read_labels(path).mask(0)


def test_picture_of_another_size(root: Path) -> None:
    photo(root / "images" / "a.jpg", (50, 60))
    path = coco_json(root / "labels.json", {"a.jpg": [box(3, 0, 0, 4, 4)]}, CLASSES)
    with pytest.raises(GfssError, match=r"of 32 x 24 but .*a\.jpg is 60 x 50"):
        read_labels(path).mask(0)


def test_without_pycocotools(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = coco_json(root / "labels.json", {"a.jpg": [box(3, 0, 0, 4, 4)]}, CLASSES)
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(GfssError, match=r"need the package pycocotools; install it with: pip install 'gfss\[coco\]'"):
        read_labels(path).mask(0)


def test_pictures_of_one_name_are_told_apart_by_their_folder(tmp_path: Path) -> None:
    for camera in ("cam1", "cam2"):
        photo(tmp_path / camera / "0001.jpg")
    annotations = {"cam1/0001.jpg": [box(3, 0, 0, 4, 4)], "cam2/0001.jpg": [box(3, 8, 8, 12, 12)]}
    path = coco_json(tmp_path / "labels.json", annotations, CLASSES)
    for camera, row in (("cam1", 0), ("cam2", 8)):
        labels = read_labels(path, [tmp_path / camera])
        assert labels.images == (tmp_path / camera / "0001.jpg",)
        assert labels.mask(0)[row, row] == 1
    (image,) = read_labels(path, [tmp_path / "cam1"]).images
    assert image.parent.name == "cam1"


def test_only_the_pictures_that_were_named_are_taken(root: Path) -> None:
    path = coco_json(root / "labels.json", {n: [box(3, 0, 0, 4, 4)] for n in ("a.jpg", "b.jpg")}, CLASSES)
    assert [image.name for image in read_labels(path, [root / "images" / "b.jpg"]).images] == ["b.jpg"]
    assert len(read_labels(path).images) == 2


def test_names_as_windows_writes_them(root: Path) -> None:
    path = coco_json(root / "labels.json", {r"images\a.jpg": [box(3, 0, 0, 4, 4)]}, CLASSES)
    assert read_labels(path).images == (root / "images" / "a.jpg",)


@pytest.mark.parametrize(
    "outline",
    [
        [[0, 0, float("inf"), 0, 4, 4]],
        [[0, 0, 1e9, 0, 4, 4]],
        {"size": [24, 32], "counts": [10, 20]},
        {"size": [24, 32], "counts": [10, 24 * 32]},
        {"size": [24, 32], "counts": [-5, 24 * 32 + 5]},
        {"size": [24, 32], "counts": "52203"},
    ],
)
def test_outlines_that_pycocotools_would_crash_on_are_refused(root: Path, outline: object) -> None:
    path = coco_json(root / "labels.json", {"a.jpg": [{"category_id": 3, "segmentation": outline}]}, CLASSES)
    with pytest.raises(GfssError, match=r"malformed outline in a\.jpg"):
        read_labels(path).mask(0)


def test_compressed_run_lengths_are_read_as_pycocotools_reads_them() -> None:
    from pycocotools import mask as codec

    rng = np.random.default_rng(0)
    for share in (0.0, 0.02, 0.5, 1.0):
        drawn = np.asfortranarray(rng.random((40, 300)) < share, dtype=np.uint8)
        code = codec.encode(drawn)["counts"]
        flat = drawn.ravel(order="F")
        values = np.flatnonzero(np.diff(np.concatenate([[0], flat]))).tolist()
        expected = np.diff([0, *values, flat.size]).tolist()
        assert _lengths(code) == _lengths(code.decode()) == expected


def test_an_enormous_picture_is_refused_before_memory_is_asked_for(root: Path) -> None:
    path = coco_json(root / "labels.json", {"a.jpg": [box(3, 0, 0, 4, 4)]}, CLASSES)
    content = json.loads(path.read_text())
    content["images"][0] |= {"height": 200_000, "width": 200_000}
    path.write_text(json.dumps(content))
    with pytest.raises(GfssError, match="of 200000 x 200000 but"):
        read_labels(path).mask(0)
    with pytest.raises(GfssError, match="has 200000 x 200000 pixels"):
        draw_instances(CocoImage("a.jpg", 200_000, 200_000, ()), path)
