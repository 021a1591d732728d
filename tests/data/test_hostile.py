"""Data made to break the program: one sentence each, soon, and without much memory."""

from __future__ import annotations

import json
import os
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.make import SIZE, box_polygon, boxes, coco_json, labelme, photo, png, write

from gfss.common.errors import GfssError
from gfss.data.images import read_image
from gfss.data.labels import read_labels
from gfss.data.labels.outlines import LONGEST, length, refuse_endless
from gfss.data.labels.png import UNNAMED

HEIGHT, WIDTH = SIZE


def to_and_fro(points: int) -> list[list[float]]:
    return [[float(WIDTH * (i % 2)), float(i % HEIGHT)] for i in range(points)]


def coco(root: Path, **changes: Any) -> Path:
    """A COCO file of one image with one annotation; changes of image, annotation and category."""
    photo(root / "a.jpg")
    image = {"id": 1, "file_name": "a.jpg", "height": HEIGHT, "width": WIDTH, **changes.get("image", {})}
    polygon = [box_polygon(2, 2, 9, 9)]
    annotation = {"id": 1, "image_id": 1, "category_id": 3, "segmentation": polygon, **changes.get("annotation", {})}
    category = {"id": 3, "name": "cat", **changes.get("category", {})}
    return write(root / "labels.json", {"images": [image], "annotations": [annotation], "categories": [category]})


def quickly(work: Callable[[], object], sentence: str) -> None:
    """The work ends with a sentence within 5 s and 300 MB."""
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(GfssError, match=sentence):
        work()
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_a_coco_polygon_that_goes_to_and_fro(tmp_path: Path) -> None:
    outline = [value for point in to_and_fro(100_000) for value in point]
    path = coco(tmp_path, annotation={"segmentation": [outline]})
    quickly(lambda: read_labels(path).mask(0), "outlines of .* pixels in length")


def test_a_labelme_polygon_of_many_points(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    labelme(tmp_path / "a.json", [("cat", "polygon", to_and_fro(100_000))])
    quickly(lambda: read_labels(tmp_path).mask(0), "outlines of .* pixels in length")


def test_many_outlines_count_together() -> None:
    one = np.array([[0, 0], [LONGEST / 2 - 10, 0], [0, 1]])
    refuse_endless([one] * 10, "it")
    with pytest.raises(GfssError, match="simplify"):
        refuse_endless([one] * 11, "it")
    assert length(one) == LONGEST - 20 + 4


@pytest.mark.parametrize("name", [5, "", "..", "/", None, "\\", ["a"]])
def test_coco_file_names_that_are_none(tmp_path: Path, name: object) -> None:
    with pytest.raises(GfssError, match=r"not a complete COCO file .*an image without a file name"):
        read_labels(coco(tmp_path, image={"file_name": name}))


@pytest.mark.parametrize("name", [None, 7, "", ["cat"]])
def test_coco_categories_without_a_name(tmp_path: Path, name: object) -> None:
    with pytest.raises(GfssError, match="a category without a name"):
        read_labels(coco(tmp_path, category={"name": name}))


@pytest.mark.parametrize(
    ("height", "words"),
    [
        (float("inf"), "not whole numbers"),
        ("high", "not whole numbers"),
        (None, "an entry of the wrong kind"),
        ([3], "an entry of the wrong kind"),
        (-4, "must have the same size"),
        (10**30, "must have the same size"),
    ],
)
def test_coco_heights_that_are_none(tmp_path: Path, height: object, words: str) -> None:
    path = coco(tmp_path, image={"height": height})
    path.write_text(path.read_text().replace("Infinity", "1e999"))
    with pytest.raises(GfssError, match=rf"labels\.json .*{words}"):
        read_labels(path).mask(0)


@pytest.mark.parametrize("counts", [[0.5, 767.5], [True, 767], ["768"], [768.0]])
def test_run_lengths_that_are_not_whole_numbers(tmp_path: Path, counts: list) -> None:
    outline = {"size": [HEIGHT, WIDTH], "counts": counts}
    with pytest.raises(GfssError, match="malformed outline"):
        read_labels(coco(tmp_path, annotation={"segmentation": outline})).mask(0)


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf")])
def test_a_labelme_point_beyond_all_numbers(tmp_path: Path, value: float) -> None:
    photo(tmp_path / "a.jpg")
    labelme(tmp_path / "a.json", [("cat", "polygon", [[0, 0], [value, 0], [5, 5]])])
    with pytest.raises(GfssError, match="points that are not numbers"):
        read_labels(tmp_path).mask(0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_pixels_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    pixels = np.ones((4, 5), dtype=np.float32)
    pixels[1, 2] = value
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    with pytest.raises(GfssError, match="NaN or infinite"):
        read_image(tmp_path / "a.tif")


@pytest.mark.parametrize("name", ["images/a.jpg", "masks/a.png", "masks.zip", "a.json"])
def test_pipes_are_not_waited_for(tmp_path: Path, name: str) -> None:
    photo(tmp_path / "images" / "a.jpg")
    png(tmp_path / "masks" / "a.png", boxes(255))
    path = tmp_path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    source = path if path.parent == tmp_path else tmp_path
    with pytest.raises(GfssError, match="is a pipe or a device"):
        read_labels(source, class_name="box").mask(0)


def test_a_zip_that_unpacks_to_far_more_than_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gfss.data.labels.UNZIPPED_ANYWAY", 5_000_000)
    with (
        zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("masks/a.png", "w") as file,
    ):
        for _ in range(2):
            file.write(bytes(5_000_000))
    quickly(lambda: read_labels(tmp_path / "bomb.zip"), "unpacks to 10 MB, more than labels would")


def test_unpacked_files_that_nobody_uses_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    photo(tmp_path / "images" / "a.jpg")
    png(tmp_path / "a.png", boxes(255))
    for name in ("one", "two"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.write(tmp_path / "a.png", "masks/a.png")
    unpacked = tmp_path / "cache" / "unzipped"
    read_labels(tmp_path / "one.zip", [tmp_path / "images"], "box")
    (unpacked / ".unpacking-killed").mkdir()
    past = time.time() - 40 * 24 * 3600
    for folder in unpacked.iterdir():
        os.utime(folder, (past, past))
    read_labels(tmp_path / "two.zip", [tmp_path / "images"], "box")
    assert [folder.name.partition("-")[0] for folder in unpacked.iterdir()] == ["two"]


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", " ", "x\x00"])
def test_class_names_that_a_terminal_would_obey(tmp_path: Path, name: str) -> None:
    with pytest.raises(GfssError, match="class names are printable text"):
        read_labels(coco(tmp_path, category={"name": name}))


def test_many_annotations_of_one_image_are_still_drawn(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    boxes_ = [{"category_id": 3, "segmentation": [box_polygon(i % 20, 2, i % 20 + 3, 9)]} for i in range(500)]
    assert (read_labels(coco_json(tmp_path / "x.json", {"a.jpg": boxes_}, {3: "cat"})).mask(0) == 1).any()


def two_images(root: Path) -> None:
    for number, name in enumerate("ab"):
        photo(root / "images" / f"{name}.jpg", seed=number)
        png(root / "masks" / f"{name}.png", boxes(255))


@pytest.mark.parametrize("colour", [0, 255])
def test_a_mask_that_is_drawn_on_transparency(tmp_path: Path, colour: int) -> None:
    """As drawing programs save it: without its transparency it is one area from edge to edge."""
    two_images(tmp_path)
    pixels = np.dstack([np.full((*SIZE, 3), colour, dtype=np.uint8), boxes(255)])
    for name in "ab":
        png(tmp_path / "masks" / f"{name}.png", pixels)
    np.testing.assert_array_equal(read_labels(tmp_path, class_name="cat").mask(0), boxes(1))


@pytest.mark.parametrize("kind", ["gif", "tif"])
def test_a_mask_of_several_pictures(tmp_path: Path, kind: str) -> None:
    two_images(tmp_path)
    (tmp_path / "masks" / "a.png").unlink()
    first, second = (Image.fromarray(boxes(*values)) for values in ((255,), (0, 255)))
    first.save(tmp_path / "masks" / f"a.{kind}", save_all=True, append_images=[second])
    with pytest.raises(GfssError, match=rf"a\.{kind} holds 2 images; save the one that is the mask"):
        read_labels(tmp_path, class_name="cat").mask(0)


def test_a_mask_with_smaller_copies_of_itself(tmp_path: Path) -> None:
    """Overviews, as GeoTIFF has them."""
    two_images(tmp_path)
    (tmp_path / "masks" / "a.png").unlink()
    whole = Image.fromarray(boxes(255))
    copy = whole.resize((WIDTH // 2, HEIGHT // 2))
    copy.encoderinfo = {"tiffinfo": {254: 1}}
    whole.save(tmp_path / "masks" / "a.tif", save_all=True, append_images=[copy])
    np.testing.assert_array_equal(read_labels(tmp_path, class_name="cat").mask(0), boxes(1))


def test_names_with_accents_in_one_or_two_characters(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "cafe\u0301.jpg")
    photo(tmp_path / "images" / "b.jpg")
    png(tmp_path / "masks" / "caf\u00e9.png", boxes(255))
    png(tmp_path / "masks" / "b.png", boxes(255))
    assert len(read_labels(tmp_path, class_name="cat")) == 2
    assert len(read_labels(tmp_path / "masks", [tmp_path / "images"], "cat")) == 2


def test_a_folder_that_holds_itself(tmp_path: Path) -> None:
    two_images(tmp_path)
    (tmp_path / "masks" / "self").symlink_to(".")
    (tmp_path / "images" / "up").symlink_to("..")
    labels = read_labels(tmp_path, class_name="cat")
    assert (labels.format, labels.classes, len(labels)) == ("binary masks", ("cat",), 2)


def test_a_zip_with_backslashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    two_images(tmp_path / "x")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for path in (tmp_path / "x").rglob("*.*"):
            archive.writestr(f"{path.parent.name}\\{path.name}", path.read_bytes())
        archive.writestr("..\\..\\evil.txt", "x")
    assert len(read_labels(tmp_path / "x.zip", class_name="cat")) == 2
    assert all(path.is_relative_to(tmp_path / "cache" / "unzipped") for path in tmp_path.rglob("evil.txt"))


def test_a_value_that_no_mask_has_is_not_another_one(tmp_path: Path) -> None:
    two_images(tmp_path)
    with pytest.raises(GfssError, match="have the values 0, 255, and none of them is 9; --label VALUE says"):
        read_labels(tmp_path, class_name="9")


def test_a_data_yaml_without_names_does_not_become_numbers(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.1 0.1 0.5 0.1 0.5 0.5\n")
    (tmp_path / "data.yaml").write_text("names: [[cat], [dog]]\n")
    with pytest.raises(GfssError, match="has no list of class names"):
        read_labels(tmp_path)
    (tmp_path / "data.yaml").unlink()
    os.mkfifo(tmp_path / "data.yaml")
    with pytest.raises(GfssError, match="is a pipe or a device"):
        read_labels(tmp_path)


@pytest.mark.parametrize(("image", "annotation"), [("1", 1), (1, "1"), (1.0, "1"), ("one", "one")])
def test_coco_ids_of_several_kinds(tmp_path: Path, image: object, annotation: object) -> None:
    path = coco(tmp_path, image={"id": image}, annotation={"image_id": annotation, "category_id": "3"})
    assert read_labels(path).mask(0).any()


def test_an_image_that_a_coco_file_lists_twice_is_one(tmp_path: Path) -> None:
    """Else each of the two would lack the objects of the other."""
    path = coco(tmp_path)
    content = json.loads(path.read_text())
    content["images"] += [content["images"][0], {**content["images"][0], "id": 9}]
    content["annotations"].append(
        {**content["annotations"][0], "image_id": 9, "segmentation": [box_polygon(20, 2, 27, 9)]}
    )
    write(path, content)
    labels = read_labels(path)
    assert len(labels) == 1
    assert labels.mask(0)[4, [4, 22]].all()


def test_jpeg_masks_are_not_many_classes(tmp_path: Path) -> None:
    two_images(tmp_path)
    for name in "ab":
        (tmp_path / "masks" / f"{name}.png").unlink()
        Image.fromarray(np.roll(boxes(255), 3)).save(tmp_path / "masks" / f"{name}.jpg", quality=30)
    with pytest.raises(GfssError, match="a JPG cannot hold a mask"):
        read_labels(tmp_path, class_name=UNNAMED).mask(0)
